"""Contestants as processes: all of them end, and failures are reported."""

import functools
import os
import signal
import subprocess
import sys
import time
from unittest.mock import Mock, call

import psutil
import pytest

from hf_bert_impl.benchmark import contest
from hf_bert_impl.benchmark.cases import Unavailable
from hf_bert_impl.benchmark.contest import Contestant, race

pytestmark = pytest.mark.skipif(not contest.CAN_STOP, reason="this system cannot stop a process")


class Fragile:
    """Something that fails, or ends its process, when it is asked to."""

    def fail(self):
        raise Unavailable("broken")

    def end(self, status):
        os._exit(status)

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(autouse=True)
def nobody_stays():
    before = {*psutil.Process().children(recursive=True)}
    yield
    assert not {*psutil.Process().children(recursive=True)} - before


def wait_for(condition):
    while not condition():
        time.sleep(0.02)


def test_errors_and_ends_are_losses(tmp_path):
    def make(maker=Fragile):
        return Contestant("one", "float32", maker, 1, str(tmp_path))

    with make() as one:
        # It survives its own errors.
        with pytest.raises(Unavailable, match=r"AttributeError: .*no_such_thing"):
            one.ask("no_such_thing")
        with pytest.raises(Unavailable, match=r"^broken$"):
            one.ask("fail")
        assert psutil.Process(one.process.pid).status() == psutil.STATUS_STOPPED
        with pytest.raises(Unavailable, match="SIGKILL"):
            one.ask("die")
        assert not one.is_alive
        with pytest.raises(Unavailable, match="SIGKILL"):
            one.ask("fail")
    with make() as one, pytest.raises(Unavailable, match="ended with status 3"):
        one.ask("end", 3)
    with pytest.raises(Unavailable, match="TypeError"):
        make(functools.partial(Fragile, "surplus"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_is_stopped_leaves_nobody(number, tmp_path):
    # Where tests run in the background a shell has SIGINT ignored, and children inherit that.
    code = (
        "import signal, sys; from hf_bert_impl.cli import main; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(main())"
    )
    words = [sys.executable, "-c", code, "benchmark", "--random", "tiny", "--cases", "short"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = subprocess.Popen(words, env=os.environ | {"TMPDIR": str(tmp_path)}, **pipes)
    try:
        process = psutil.Process(command.pid)
        wait_for(process.children)
        children = process.children(recursive=True)
        command.send_signal(number)
        out, err = command.communicate(timeout=60)
    finally:
        command.kill()
        command.wait()
    assert command.returncode == (130 if number == signal.SIGINT else -number)
    assert b"Traceback" not in out + err
    # A contestant that has just started detects the end by itself.
    wait_for(lambda: not any(child.is_running() for child in children))
    # torch makes its own folder. A killed program leaves its temporary files.
    left = [path for path in tmp_path.iterdir() if path.name.startswith(("hf-bert", "tmp"))]
    assert number == signal.SIGKILL or not left


def test_a_race_alternates_and_goes_on_without_who_is_lost():
    sides, lost = Mock(), []
    first, second, third = sides.a, sides.b, sides.c
    first.ask.return_value = third.ask.return_value = 2.0
    second.ask.side_effect = [1.0, Unavailable("broken")]
    times = race([first, second, third], 3, "case", lambda one, error: lost.append(one))
    assert "".join(name[0] for name, *_ in sides.mock_calls) == "abc" + "cba" + "ac"
    assert first.ask.mock_calls == [call("turn", "case", number) for number in range(3)]
    assert lost == [second] and times == {first: [2.0] * 3, third: [2.0] * 3}
