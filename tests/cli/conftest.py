"""The command line run inside the test's process."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer import rich_utils

from hf_bert_impl.cli import main
from hf_bert_impl.distributed.job import Job
from hf_bert_impl.hub import pushing
from hf_bert_impl.measuring import timing
from hf_bert_impl.parity import ParityReport, ParityRow
from tests.cli.cases import LINES, make_place
from tests.support.commands import Result


@pytest.fixture
def hasty(monkeypatch):
    """Nothing is timed longer than one call takes: figures are of no interest here."""
    monkeypatch.setattr(timing, "TURN_SECONDS", 0.0)


@pytest.fixture
def unchecked(monkeypatch):
    """A push does not load what it wrote; call it with the result to report."""

    def report(passed=True):
        row = ParityRow("as it is", "logits", 0.5, 0.5, 0.5, 1.0, passed, None, "so so")
        monkeypatch.setattr(pushing, "check_loading", lambda *args, **options: ParityReport([row]))

    report()
    return report


@pytest.fixture(scope="session")
def original(tmp_path_factory) -> Path:
    """The folder of tests/cli/cases.py, made once."""
    return make_place(tmp_path_factory.mktemp("cli") / "place")


@pytest.fixture
def place(original, tmp_path, monkeypatch) -> Path:
    """A copy of it, as the working directory."""
    monkeypatch.chdir(shutil.copytree(original, tmp_path / "place"))
    return tmp_path / "place"


@pytest.fixture
def hf_bert(capsys: pytest.CaptureFixture[str], monkeypatch) -> Callable[..., Result]:
    """Run `hf-bert` with these arguments, in a window of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    # The variable alone is not enough: what other tests have left to the garbage collector, such as
    # a compiler's changed environment, may restore the variables in the middle of a test.
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", 100)

    def run(*arguments: object) -> Result:
        status = main([str(argument) for argument in arguments])
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture
def interrupt(hf_bert, monkeypatch) -> Callable[..., Result]:
    """Run a command until Ctrl-C comes, when so many parts are made."""
    compute = Job.compute

    def interrupt(parts: int, *command: object) -> Result:
        left = iter(range(parts))

        def stop(*arguments):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return compute(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Job, "compute", stop)
            result = hf_bert(*command)
        assert result.status == 130
        return result

    return interrupt


# --- what `hf-bert embed` reads and writes ---------------------------------------------------


@pytest.fixture
def model(save_tiny) -> Path:
    return save_tiny("BertModel")


@pytest.fixture
def lines(write) -> Path:
    return write("lines.txt", "\n".join(LINES) + "\n")


@pytest.fixture
def output(tmp_path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "vectors.npy"
