"""Folders of texts, with a subfolder for each class, as the IMDB reviews come."""

from pathlib import Path

#: Texts without a class beside those of the classes: the name that aclImdb gives to their folder.
UNLABELLED = "unsup"


def text_files(folder: str | Path) -> list[Path]:
    """The .txt files of a folder, in the order of their paths.

    Where subfolders hold texts, they alone count: what lies beside them is about the data (lists
    of addresses, in aclImdb).

    Args:
        folder: A folder, or anything else, which holds none.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        return []
    below = sorted(it for it in folder.iterdir() if it.is_dir() and not it.name.startswith("."))
    texts = [file for inner in below for file in text_files(inner)]
    return texts or sorted(it for it in folder.glob("*.txt") if it.is_file())


def labelled_text_files(folder: Path) -> list[tuple[Path, str]]:
    """The .txt files of a folder's subfolders, and the names of these, which are the classes."""
    classes = sorted(it for it in folder.iterdir() if it.is_dir() and it.name != UNLABELLED)
    return [(file, inner.name) for inner in classes for file in sorted(inner.glob("*.txt"))]
