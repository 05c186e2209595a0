"""Folders of texts with one subfolder per class, such as the IMDB reviews."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from hf_bert_impl.errors import InputNote

#: aclImdb's folder of texts without a class.
UNLABELLED = "unsup"
#: Maximum number of names in a note.
SHOWN = 3


def text_files(folder: str | Path) -> list[Path]:
    """The .txt files below a folder, in the order of their paths; none for anything else.

    Hidden files are skipped. An `InputNote` names other files that are skipped: other endings, and
    aclImdb's lists about its data (`urls_pos.txt` next to the folder `pos`).
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        return []
    files = [
        path
        for path in sorted(folder.rglob("[!.]*"))
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    texts = [file for file in files if _is_text(file)]
    if texts:
        skipped = [file for file in files if not _is_text(file)]
        _note_skipped(folder, skipped, "no .txt, or a list")
    return texts


def labelled_text_files(folder: Path) -> list[tuple[Path, str]]:
    """The .txt files of a folder's subfolders, and the names of these, which are the classes."""
    inside = sorted(folder.glob("[!.]*"))
    classes = [path for path in inside if path.is_dir() and path.name != UNLABELLED]
    labelled = [(file, inner.name) for inner in classes for file in text_files(inner)]
    if labelled:
        unlabelled = [path for path in inside if path.is_file() and _is_text(path)]
        _note_skipped(folder, unlabelled, "in no subfolder that names their class")
    return labelled


def read_lenient(file: Path) -> str:
    """A file's text; bytes that are not UTF-8 are surrogates, as in `text_input.Row`."""
    return file.read_bytes().decode("utf-8", "surrogateescape").removeprefix("\ufeff")


def _is_text(file: Path) -> bool:
    """Whether it ends in .txt and is not one of aclImdb's lists."""
    listed = file.stem.startswith("urls_") and (file.parent / file.stem[5:]).is_dir()
    return file.suffix.lower() == ".txt" and not listed and file.name != "imdbEr.txt"


def _note_skipped(folder: Path, files: Sequence[Path], what: str) -> None:
    if files:
        names = ", ".join(file.name for file in files[:SHOWN])
        more = f" and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
        note = f"files of {folder} that are not read ({what}): {names}{more}"
        warnings.warn(note, InputNote, stacklevel=3)
