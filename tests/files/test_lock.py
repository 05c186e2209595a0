"""One writer an output, whatever became of the one before."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from hf_bert_impl.files.lock import output_lock

pytest.importorskip("fcntl", reason="locks files as Unix does")
SECONDS = 60
#: Locks the output, forks a process that lives on where asked to, says so, and waits.
HOLD = """
import os, sys, time
from pathlib import Path
from hf_bert_impl.files.lock import output_lock
with output_lock(Path(sys.argv[1])):
    if sys.argv[2:] and os.fork() == 0:
        time.sleep(3)
        os._exit(0)
    print("held", flush=True)
    time.sleep(600)
"""


def held(folder):
    """Whether another process would be refused."""
    try:
        with output_lock(folder):
            return False
    except ValueError:
        return True


def test_a_second_writer_is_refused(tmp_path):
    out = tmp_path / "new" / "out"
    with output_lock(out):
        words = rf"another run is writing {out}; expected one at a time; wait"
        with pytest.raises(ValueError, match=words), output_lock(tmp_path / "new" / "." / "out"):
            pass
        with output_lock(tmp_path / "new" / "other"):
            pass
    assert not held(out)
    assert not [*tmp_path.iterdir()]  # neither the lock nor the folder that was made for it
    with output_lock(out):
        out.mkdir()
    assert [*(tmp_path / "new").iterdir()] == [out]


@pytest.mark.parametrize("forked", [(), ("forked",)])
def test_a_killed_writer_locks_nothing(tmp_path, forked):
    """Not even where a process that it started lives on."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "out"), *forked], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"held\n"
        assert held(tmp_path / "out")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    end = time.monotonic() + 2.5  # the process that was started lets go in its first moments
    while held(tmp_path / "out") and time.monotonic() < end:
        time.sleep(0.05)
    assert not held(tmp_path / "out")
    assert not [*tmp_path.iterdir()]
    process.stdout.close()


def test_a_folder_beside_which_nothing_can_be_written(tmp_path, monkeypatch):
    """The folder itself is locked, and keeps its content."""
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with output_lock(tmp_path / "out"):
        assert [*tmp_path.rglob("*")] == [tmp_path / "out"]
        assert held(tmp_path / "out")
    assert not held(tmp_path / "out")
    assert (tmp_path / "out").is_dir()


def test_a_forked_process_does_not_unlock(tmp_path):
    """Not even where it leaves the statement that its parent is in."""
    with output_lock(tmp_path / "out"):
        with contextlib.ExitStack() as child, output_lock(tmp_path / "other"):
            if os.fork() == 0:
                child.callback(os._exit, 0)
                raise SystemExit  # unlocks what is locked inside
            assert os.wait()[1] == 0
            assert held(tmp_path / "other")
        assert held(tmp_path / "out")


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    words = r"out cannot be written \(Not a directory\)"
    with pytest.raises(ValueError, match=words), output_lock(tmp_path / "file" / "out"):
        pass
    (tmp_path / "victim").write_text("mine")
    (tmp_path / ".out.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(ValueError, match="out cannot be written"), output_lock(tmp_path / "out"):
        pass
    (tmp_path / ".mine.lock").write_text("mine")
    with output_lock(tmp_path / "mine"):
        pass
    assert (tmp_path / ".mine.lock").read_text() == (tmp_path / "victim").read_text() == "mine"


def test_of_many_at_once_one_holds_it(tmp_path):
    """Also while locks are deleted and made again."""
    context = multiprocessing.get_context("fork")
    inside, most = context.Value("i", 0), context.Value("i", 0)

    def compete():
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            try:
                with output_lock(tmp_path / "out"):
                    with inside.get_lock():
                        inside.value += 1
                        most.value = max(most.value, inside.value)
                    time.sleep(0.0002)
                    with inside.get_lock():
                        inside.value -= 1
            except ValueError:
                pass

    workers = [context.Process(target=compete) for _ in range(5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(SECONDS)
    assert [worker.exitcode for worker in workers] == [0] * 5
    assert most.value == 1
