"""Atomic writes of files."""

import errno
import os

import numpy as np
import pytest
from safetensors import SafetensorError

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.atomic import atomic_file, check_place, check_rights, is_disk_full, swap_in


def test_a_file_is_replaced_at_once(write):
    """A process that has the old file open reads it whole."""
    place = write("a", "old")
    with place.open() as reader:
        with atomic_file(place) as fresh:
            fresh.write_text("new")
        assert (reader.read(), place.read_text()) == ("old", "new")


@pytest.mark.parametrize("failing", [1, 2])
def test_an_old_folder_stays_when_the_new_one_does_not_come(tmp_path, monkeypatch, failing):
    fresh, folder = (tmp_path / name for name in ("fresh", "folder"))
    for place in (fresh, folder):
        place.mkdir()
    (folder / "a").write_text("old")
    rename, calls = os.rename, []

    def fail(*places):
        calls.append(places)
        if len(calls) == failing:
            raise KeyboardInterrupt
        rename(*places)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(KeyboardInterrupt):
        swap_in(fresh, folder)
    assert (folder / "a").read_text() == "old"
    assert {*tmp_path.iterdir()} == {fresh, folder}


def test_a_full_disk_is_told_from_other_failures(tmp_path, largest_file):
    """NumPy's error has no number, and only tells how much was written."""
    for error in (
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
        RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"),
    ):
        assert is_disk_full(error)
    assert not is_disk_full(OSError(errno.EACCES, "Permission denied"))
    place, words = tmp_path / "new" / "a.npy", r"a\.npy cannot be written \(.*\)\. Free some disk"
    for write in (lambda file: np.save(file, np.zeros(999)), lambda file: file.write_text("aa")):
        with largest_file(1), pytest.raises(InputError, match=words), atomic_file(place) as fresh:
            write(fresh)
    assert not [*tmp_path.iterdir()]


def test_places_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # a superuser may do anything
    with pytest.raises(InputError, match=r"b.png cannot be written \(Permission denied\)"):
        check_place(tmp_path / "b.png", "--plot")
    with pytest.raises(InputError, match=r"new/out cannot be written \(Permission denied\)"):
        check_rights(tmp_path / "new" / "out")
