"""Files that appear whole or not at all."""

import errno
import os

import pytest
from safetensors import SafetensorError

from hf_bert_impl.files.atomic import atomic_file, is_disk_full, swap_in


@pytest.fixture
def folders(tmp_path):
    for name in ("fresh", "folder"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(name)
    return tmp_path / "fresh", tmp_path / "folder"


def test_a_folder_takes_the_place_of_another(folders, tmp_path):
    fresh, folder = folders
    old = swap_in(fresh, folder)
    assert (folder / "a").read_text() == "fresh"
    assert (old / "a").read_text() == "folder"
    assert old.parent == tmp_path
    assert swap_in(old, tmp_path / "new") is None
    assert (tmp_path / "new" / "a").read_text() == "folder"


def test_a_file_is_replaced_at_once(tmp_path):
    """A process that has the old file open reads it whole."""
    place = tmp_path / "a"
    place.write_text("old")
    with place.open() as reader:
        with atomic_file(place) as fresh:
            fresh.write_text("new")
        assert (reader.read(), place.read_text()) == ("old", "new")
    with pytest.raises(KeyboardInterrupt), atomic_file(place) as fresh:
        fresh.write_text("half")
        raise KeyboardInterrupt
    assert place.read_text() == "new" and [*tmp_path.iterdir()] == [place]


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_an_old_folder_stays_when_the_new_one_does_not_come(folders, monkeypatch, failing, kind):
    fresh, folder = folders
    rename, calls = os.rename, []

    def fail(*places):
        calls.append(places)
        if len(calls) == failing:
            raise kind
        rename(*places)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(kind):
        swap_in(fresh, folder)
    assert (folder / "a").read_text() == "folder"
    assert sorted(entry.name for entry in folder.parent.iterdir()) == ["folder", "fresh"]


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (SafetensorError("I/O error: No space left on device (os error 28)"), True),
        (RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"), True),
        (RuntimeError("PytorchStreamWriter failed writing file data/3"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (ValueError("a bug"), False),
    ],
)
def test_a_full_disk_is_told_from_other_failures(error, is_full):
    assert is_disk_full(error) == is_full
