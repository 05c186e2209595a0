"""One writer an output, whatever became of the one before."""

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hf_bert_impl.files.lock import output_lock
from hf_bert_impl.files.output_folder import check_output

pytest.importorskip("fcntl", reason="locks files as Unix does")


def is_held(folder):
    """Whether another process would be refused."""
    try:
        with output_lock(folder):
            return False
    except ValueError:
        return True


def test_a_second_writer_is_refused(tmp_path):
    out = tmp_path / "new" / "out"
    with output_lock(out):
        assert is_held(tmp_path / "new" / "." / "out")
        assert not is_held(tmp_path / "new" / "other")
    assert not is_held(out)
    assert not [*tmp_path.iterdir()]  # neither the lock nor the folder that was made for it


def test_a_folder_beside_which_nothing_can_be_written(tmp_path, monkeypatch):
    """The lock is inside the folder, which keeps its content."""
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with output_lock(tmp_path / "out"):
        assert [*(tmp_path / "out").iterdir()]
        check_output(tmp_path / "out", (), overwrite=False)  # the lock is no content
        assert is_held(tmp_path / "out")
    assert not is_held(tmp_path / "out")
    assert [*tmp_path.rglob("*")] == [tmp_path / "out"]


def test_a_forked_process_does_not_unlock(tmp_path):
    with contextlib.ExitStack() as child, output_lock(tmp_path / "out"):
        if os.fork() == 0:
            child.callback(os._exit, 0)
            raise SystemExit  # unlocks what is locked inside
        assert os.wait()[1] == 0 and is_held(tmp_path / "out")


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / ".out.lock").symlink_to(tmp_path / "file")
    (tmp_path / ".mine.lock").write_text("mine")
    for out in (tmp_path / "file" / "out", tmp_path / "out"):
        with pytest.raises(ValueError, match="out cannot be written"), output_lock(out):
            pass
    assert not is_held(tmp_path / "mine")
    assert (tmp_path / ".mine.lock").read_text() == (tmp_path / "file").read_text() == "mine"


def test_of_many_at_once_one_holds_it(tmp_path):
    """Also while locks are deleted and made again."""
    inside, counts = [], []

    def compete(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(ValueError), output_lock(tmp_path / "out"):
                inside.append(1)
                counts.append(len(inside))
                time.sleep(0.0002)
                inside.pop()

    with ThreadPoolExecutor(5) as pool:
        assert [*pool.map(compete, [0.7] * 5)] == [None] * 5
    assert {*counts} == {1}
