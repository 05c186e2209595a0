"""Finds the real data in the folder that the environment variable HF_BERT_DATA names.

Without the variable, a lesson runs on a small generated sample and says so.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "HF_BERT_DATA"


def find(name: str) -> Path | None:
    """Returns a file or folder of the real data, or prints a note and returns None.

    Args:
        name: Its place in the data folder, such as `sst2/train.tsv`.

    Returns:
        Its path, or None if the variable is not set.

    Raises:
        ValueError: The folder of HF_BERT_DATA lacks it.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        note(
            f"{VARIABLE} is not set, so {name} is missing. The lesson uses a small generated "
            "sample, whose results do not apply to real language."
        )
        return None
    path = Path(folder).expanduser() / name
    if not path.exists():
        raise ValueError(
            f"{VARIABLE} is {folder}, which has no {name}. Set it to the absolute path of the real "
            "data, or unset it to use a generated sample."
        )
    return path


def note(text: str) -> None:
    """Prints a note among a notebook's outputs."""
    print(f"NOTE: {text}")
