"""A check whether the Hugging Face hub has a model and can be reached."""

from __future__ import annotations

import os
import urllib.request

from . import data

TIMEOUT_SECONDS = 5


def has(repository: str) -> bool:
    """Whether the hub can be reached and has a model; otherwise prints a note.

    Args:
        repository: OWNER/NAME.

    Returns:
        True if its config can be read.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        data.note(f"HF_HUB_OFFLINE is set, so {repository} is skipped.")
        return False
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        url = f"{endpoint}/{repository}/resolve/main/config.json"
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            return bool(answer.read())
    except OSError as error:  # includes URLError and time-outs
        data.note(f"the hub cannot be reached ({error}), so {repository} is skipped.")
        return False
