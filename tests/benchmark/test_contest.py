"""Contestants as processes: nobody stays behind, whatever happens, and who is lost is reported."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from hf_bert_impl.benchmark import contest
from hf_bert_impl.benchmark.cases import Unavailable
from hf_bert_impl.benchmark.contest import Contestant, race
from hf_bert_impl.benchmark.models import Entry, Source
from hf_bert_impl.measuring.batches import Case

pytestmark = pytest.mark.skipif(not contest.CAN_STOP, reason="this system cannot stop a process")
TINY = Source(random="tiny")


@pytest.fixture
def entry(tmp_path):
    return Entry("unchanged", "float32", TINY, 1, str(tmp_path))


@pytest.fixture(autouse=True)
def nobody_stays():
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    assert not [
        child for child in psutil.Process().children(recursive=True) if child.pid not in before
    ]


def wait_for(condition):
    end = time.monotonic() + 120  # on a machine that does much else
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def children_with(process, words):
    """Children whose command line has these words; one that ends meanwhile has none."""
    found = []
    for child in process.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if words in " ".join(child.cmdline()):
                found.append(child)
    return found


@pytest.mark.slow
def test_errors_ends_and_silence_are_losses(entry, monkeypatch):
    with Contestant(entry) as one:
        # A mistake of its own: it goes on.
        with pytest.raises(Unavailable, match=r"AttributeError: .*no_such_thing"):
            one.ask("no_such_thing")
        assert one.is_alive
        assert one.ask("products")
        assert psutil.Process(one.process.pid).status() == psutil.STATUS_STOPPED
        with (
            monkeypatch.context() as patch,
            pytest.raises(Unavailable, match="gave no answer for 0 s"),
        ):
            patch.setattr(contest, "PATIENCE_SECONDS", 0.01)
            one.ask("open", name="short")
        assert not one.is_alive
        with pytest.raises(Unavailable, match="SIGKILL"):
            one.ask("open", name="short")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_is_stopped_leaves_nobody(number, tmp_path):
    # Where tests run in the background a shell has SIGINT ignored, and children inherit that.
    code = (
        "import signal, sys; from hf_bert_impl.cli import main; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(main())"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", code, "benchmark", "--random", "tiny", "--peers", "none"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    try:
        process = psutil.Process(command.pid)
        wait_for(lambda: children_with(process, "benchmark.worker"))
        children = process.children(recursive=True)
        command.send_signal(number)
        out, err = command.communicate(timeout=60)
    finally:
        command.kill()
        command.wait()
    status = {signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}
    assert command.returncode == status[number]
    assert b"Traceback" not in out + err
    # One that had only just been started sees by itself that nobody asks.
    wait_for(lambda: not any(child.is_running() for child in children))
    # torch makes a folder of its own.
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(("hf-bert", "tmp"))]


class Fake:
    """A contestant that only notes its turns, and fails in one of them."""

    def __init__(self, name, heard, fails_at=None):
        self.name, self.heard, self.fails_at, self.turns = name, heard, fails_at, 0

    def turn(self, case, number):
        self.turns += 1
        if self.turns == self.fails_at:
            raise Unavailable("broken")
        self.heard.append(f"{self.name}{case.rows}")
        return float(number)


def test_a_race_alternates_and_goes_on_without_who_is_lost():
    heard, lost = [], []
    first, second, third = Fake("a", heard), Fake("b", heard, fails_at=4), Fake("c", heard)
    batches = [Case("line", (3,), 3), Case("line", (3, 3), 3)]
    times = race([first, second, third], batches, 3, lambda one, error: lost.append(one.name))
    # All once untimed, then each round in the other direction; b breaks in the first timed round.
    assert heard[:6] == ["a1", "b1", "c1", "a2", "b2", "c2"]
    assert heard[6:] == [
        *("a1", "b1", "c1", "a2", "c2"),
        *("c2", "a2", "c1", "a1"),
        *("a1", "c1", "a2", "c2"),
    ]
    assert lost == ["b"]
    assert times == [{first: [0.0, 1.0, 2.0], third: [0.0, 1.0, 2.0]}] * 2
