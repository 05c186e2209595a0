"""Fixtures that all tests share, and the rules for tests that need the network."""

import collections
import contextlib
import functools
import getpass
import os
import sys
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before torch, transformers and huggingface_hub are imported: they read these once. Several
# processes run tests side by side, so each computes with one thread, as its child processes do.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# torch's compiler keeps its programs by names that do not tell a lowered instruction set from the
# processor's own, and a program of the one computes wrong numbers by the other.
if lowered := os.environ.get("ATEN_CPU_CAPABILITY"):
    programs = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}_{lowered}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(programs))

import pytest

# torch and all that imports it is imported where it is used: the process that hands out tests to
# the others runs none, and they wait for it.

HUB = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
HUB_TIMEOUT_SECONDS = 5


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases",
        type=int,
        metavar="N",
        help="of a test with more than N cases run N, the same ones each time",
    )


def pytest_collection_finish() -> None:
    import torch
    from transformers.utils import logging as transformers_logging

    # Sums of one thread are reproducible, whatever OMP_NUM_THREADS is.
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()


# After `-k` and `-m`: a case that they leave out must not stand for its test.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (number := config.option.cases) is not None:
        left_out = beyond(items, number)
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if item.get_closest_marker("hub") is not None and (reason := why_no_hub()) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def beyond(items: list[pytest.Item], number: int) -> set[pytest.Item]:
    """The items of each test function after the first `number`, by a hash of their names.

    Evenly spaced ones of a product of parameters would share the value of one of them.
    """
    counts: collections.Counter[str] = collections.Counter()
    found = set()
    for item in sorted(items, key=lambda item: zlib.crc32(item.nodeid.encode())):
        test = item.nodeid.split("[")[0]
        counts[test] += 1
        if counts[test] > number:
            found.add(item)
    return found


@functools.cache
def why_no_hub() -> str | None:
    """Why tests marked `hub` cannot run, or None where they can."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return "needs the Hugging Face hub, and HF_HUB_OFFLINE is set"
    # The tests load this file. A proxy's own page at the hub's address would mislead.
    url = f"{HUB}/google-bert/bert-base-cased/resolve/main/config.json"
    try:
        with urllib.request.urlopen(url, timeout=HUB_TIMEOUT_SECONDS) as answer:
            answer.read()
    except OSError as error:
        return f"needs the Hugging Face hub, and {HUB} cannot be reached ({error})"
    return None


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets that HF_BERT_DATA names."""
    named = os.environ.get("HF_BERT_DATA")
    if not named or not Path(named).is_dir():
        pytest.skip(f"needs real data: set HF_BERT_DATA to its folder (it is {named!r})")
    return Path(named)


@pytest.fixture(scope="session")
def fixtures_dir() -> Path:
    """The small files that the tests bring along."""
    return Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """A trained BERT of six layers (all-MiniLM-L6-v2) as a folder with weights and tokenizer."""
    from hf_bert_impl.checkpoints import demo_folder

    try:
        return demo_folder()
    except ValueError as error:
        pytest.skip(f"needs real weights: {error}")


@pytest.fixture
def largest_file(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """A context in which no file can be larger than so many bytes, as on a full disk."""
    resource = pytest.importorskip("resource")
    # Python keeps a compiled file of its own that was cut off.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    @contextlib.contextmanager
    def limited(size: int) -> Iterator[None]:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    return limited


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Writes a file of text or bytes; gives its path."""

    def write(name: str, content: str | bytes) -> Path:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return write


@pytest.fixture
def save_tiny(tmp_path: Path) -> Callable[..., Path]:
    """Saves a random model of a class as a folder of that name; see `save_checkpoint`."""
    from tests.support.checkpoints import save_checkpoint

    return lambda name="BertForMaskedLM", **options: save_checkpoint(
        tmp_path / name, name, **options
    )


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Folders of small random models by class and number of labels, each made once."""
    from tests.support.checkpoints import save_checkpoint

    @functools.cache
    def folder(name: str, num_labels: int = 2) -> str:
        place = tmp_path_factory.mktemp("models") / name
        fields: dict[str, Any] = {"num_labels": num_labels, "initializer_range": 0.4}
        return str(save_checkpoint(place, name, **fields))

    return folder


@pytest.fixture
def registered() -> Iterator[None]:
    """This package's classes stand behind transformers' Auto classes."""
    import hf_bert_impl

    with hf_bert_impl.registered():
        yield
