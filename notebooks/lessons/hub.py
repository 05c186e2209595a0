"""Whether a model of the Hugging Face hub can be reached, before anything depends on it."""

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
        data.note(f"HF_HUB_OFFLINE is set, so {repository} is left out.")
        return False
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        url = f"{endpoint}/{repository}/resolve/main/config.json"
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            return bool(answer.read())
    except OSError as error:  # URLError and time-outs are of this kind
        data.note(f"the hub cannot be reached ({error}), so {repository} is left out.")
        return False
