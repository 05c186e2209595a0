"""Where the real data are, and what stands in for them where they are not.

The environment variable HF_BERT_DATA names their folder. Without it a notebook runs on a small
generated sample, and says so: nothing is exchanged silently.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "HF_BERT_DATA"


def find(name: str) -> Path | None:
    """A file or folder of the real data, or None and a note where it is missing.

    Args:
        name: Its place in the data folder, such as `sst2/train.tsv`.

    Returns:
        Its path, or None; the note then says what was looked for and why it is not there.

    Raises:
        ValueError: HF_BERT_DATA names a folder that does not hold it. That is a mistake and not a
            machine without data.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        note(
            f"{VARIABLE} is not set, so there is no {name}: what follows runs on a small "
            "generated sample, whose figures say nothing about real language."
        )
        return None
    path = Path(folder).expanduser() / name
    if not path.exists():
        raise ValueError(
            f"{VARIABLE} is {folder}, which holds no {name}; name the folder of the real data, "
            "as an absolute path, or unset it to run on a generated sample"
        )
    return path


def note(text: str) -> None:
    """Prints a note that cannot be overlooked between a notebook's outputs.

    Args:
        text: One or more sentences.
    """
    print(f"NOTE: {text}")
