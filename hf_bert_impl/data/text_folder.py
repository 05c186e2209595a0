"""Folders of texts, with a subfolder for each class, as the IMDB reviews come."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from hf_bert_impl.errors import InputNote

#: Texts without a class beside those of the classes: the name that aclImdb gives to their folder.
UNLABELLED = "unsup"
#: Names that a note lists.
SHOWN = 3


def text_files(folder: str | Path) -> list[Path]:
    """The .txt files of a folder and of those below it, in the order of their paths.

    An `InputNote` names files that are left out: those of another ending, and aclImdb's lists about
    its data (`urls_pos.txt` beside the folder `pos`). Hidden ones are passed over.

    Args:
        folder: A folder, or anything else, which holds none.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        return []
    files = list(_files(folder))
    texts = [file for file in files if _is_text(file)]
    if texts:
        _note_left(folder, [file for file in files if not _is_text(file)], "no .txt, or a list")
    return texts


def labelled_text_files(folder: Path) -> list[tuple[Path, str]]:
    """The .txt files of a folder's subfolders, and the names of these, which are the classes."""
    inside = sorted(it for it in folder.iterdir() if not it.name.startswith("."))
    classes = [it for it in inside if it.is_dir() and it.name != UNLABELLED]
    found = [(file, inner.name) for inner in classes for file in text_files(inner)]
    if found:
        beside = [it for it in inside if it.is_file() and _is_text(it)]
        _note_left(folder, beside, "in no subfolder that names their class")
    return found


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(it for it in folder.iterdir() if not it.name.startswith(".")):
        if path.is_dir():
            yield from _files(path)
        else:
            yield path


def _is_text(file: Path) -> bool:
    """Whether it ends in .txt and is none of aclImdb's lists."""
    listed = file.stem.startswith("urls_") and (file.parent / file.stem[5:]).is_dir()
    return file.suffix.lower() == ".txt" and not listed and file.name != "imdbEr.txt"


def _note_left(folder: Path, files: Sequence[Path], what: str) -> None:
    if files:
        names = ", ".join(file.name for file in files[:SHOWN])
        more = f" and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
        note = f"files of {folder} that are not read ({what}): {names}{more}"
        warnings.warn(note, InputNote, stacklevel=3)
