"""sentence-transformers' own tests, run on models given to `optimize` and on `TextEncoder`.

The tests come from sentence-transformers' repository (see `download.py`). They run in a process of
their own, with `sentence_plugin.py` and without a network: the small models that they load from the
hub are made here, random, in a cache. Tests of other models are skipped.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
import transformers

from hf_bert_impl import TextEncoder, optimize
from tests.upstream import download

sentence_transformers = pytest.importorskip("sentence_transformers")

FOLDER = download.tests_folder("sentence-transformers")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not FOLDER.is_dir(),
        reason=f"sentence-transformers' own tests are not in {FOLDER}: run `make upstream-tests`",
    ),
]

#: The files and folders that construct and call models, without training them.
FILES = {
    "sentence_transformer": (
        "test_model test_compute_embeddings test_multi_process modules evaluation"
    ),
    "base": "test_model test_data_collator modules/test_dense modules/test_router",
    "cross_encoder": "test_model test_multi_process evaluation",
    "sparse_encoder": "test_model test_multi_process",
    "multi_vector_encoder": "test_model test_multi_process test_token_pooling test_evaluators",
    "util": "test_similarity",
}
CASES = [
    *((optimize.__name__, folder) for folder in FILES),
    *((TextEncoder.__name__, folder) for folder in ("sentence_transformer", "base", "util")),
]
#: Tests that fail here by design, below the folder `tests`.
EXCEPTIONS = {
    # The packed loop orders texts itself, so the library's own order is switched off.
    "base/test_model.py::test_can_flatten_inputs_transformer_model",
    # The error is this package's.
    "base/test_model.py::test_model_path_pointing_to_a_file_is_rejected",
    # A module of the test holds the model that it is in.
    "base/modules/test_router.py::test_router_forwards_on_model_ready_to_routed_modules",
    # The commit message and the error name TextEncoder.
    "base/test_model.py::test_push_to_hub_commit_message_includes_backend",
    "base/test_model.py::test_push_to_hub_create_pr_commit_description_sentence_transformer",
    "sentence_transformer/test_model.py::test_get_model_kwargs",
    # TextEncoder refuses models that another class has saved.
    "sentence_transformer/test_model.py::test_conversion_ignores_source_prompts_and_default_prompt_name",
    "sentence_transformer/test_model.py::test_conversion_ignores_source_similarity_fn_name",
    # The BERT has this package's class.
    "sentence_transformer/test_model.py::test_router_transformers_model_property",
    "sentence_transformer/test_model.py::test_transformers_model_property",
    # The error names the method of SpladeFold in place of forward.
    "sparse_encoder/test_model.py::test_get_model_kwargs",
}


#: The class of sentence-transformers and of BERT of each model that the suite loads.
MODELS = {
    "sentence-transformers-testing/stsb-bert-tiny-safetensors": (
        "SentenceTransformer",
        "BertModel",
    ),
    "cross-encoder-testing/reranker-bert-tiny-gooaq-bce": (
        *("CrossEncoder", "BertForSequenceClassification"),
    ),
    "sparse-encoder-testing/splade-bert-tiny-nq": ("SparseEncoder", "BertForMaskedLM"),
}


def snapshot(cache: Path, name: str) -> Path:
    """Where the hub's cache has a repository's files."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    return repository / "snapshots" / ("0" * 40)


@pytest.fixture(scope="session")
def cache(minilm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the hub with a random model of each kind, and the vocabulary of a trained one."""
    place = tmp_path_factory.mktemp("hub")
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_path, model_max_length=512)
    tokenizer.save_pretrained(snapshot(place, "google-bert/bert-base-uncased"))

    sizes = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512}
    config = transformers.BertConfig(num_hidden_layers=2, num_labels=1, **sizes)
    for name, (kind, head) in MODELS.items():
        torch.manual_seed(0)
        getattr(transformers, head)(config).save_pretrained(place / kind)
        tokenizer.save_pretrained(place / kind)
        model = getattr(sentence_transformers, kind)(str(place / kind))
        model.save_pretrained(str(snapshot(place, name)), create_model_card=False)
    return place


def failing(mode: str, tests: Iterable[str], cache: Path, scratch: Path) -> set[str]:
    """The suite's functions that fail, apart from the exceptions; others pass."""
    settings = scratch / "pytest.ini"
    settings.write_text("[pytest]\nmarkers =\n    slow:\n    custom:\n", encoding="utf-8")
    environment = {
        **os.environ,
        # The suite's own package is called `tests` too, and pytest puts its parent first.
        "PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[:3:2])),
        "HF_BERT_SUITE": mode,
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "CI": "",  # there the suite would use an empty cache
    }
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "--tb=short", "-rs"]
    command += ["-c", str(settings), "--rootdir", str(FOLDER.parent), "-p", "sentence_plugin"]
    command += ["-p", "no:xdist", "-m", "not slow and not custom"]
    command += ["-o", f"cache_dir={scratch / mode}", *tests]
    command += [f"--deselect={FOLDER.name}/{test}" for test in EXCEPTIONS]
    run = subprocess.run(
        command, cwd=FOLDER.parent, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert run.returncode in (0, 1) and " passed" in run.stdout, run.stdout
    failed = scratch / mode / "v/cache/lastfailed"
    return set(json.loads(failed.read_text())) if failed.exists() else set()


@pytest.mark.parametrize(("mode", "folder"), CASES)
def test_what_passes_with_stock_passes_here(
    mode: str, folder: str, cache: Path, tmp_path: Path
) -> None:
    places = [FOLDER / folder / name for name in FILES[folder].split()]
    tests = [str(place if place.is_dir() else place.with_suffix(".py")) for place in places]
    if failed := failing(mode, tests, cache, tmp_path):
        assert failed - failing("stock", tests, cache, tmp_path) == set()
