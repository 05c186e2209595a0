"""Optional libraries: imported when needed, and asked for by the extra that brings them."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from hf_bert_impl.errors import InputError


def require(module: str, extra: str, purpose: str) -> Any:
    """Import an optional library.

    Args:
        module: Its import name.
        extra: The extra of this package that installs it.
        purpose: What it is needed for, as in "training".

    Returns:
        The module.

    Raises:
        InputError: It is not installed. The message names the extra.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # the library is there, and something in it is broken
        raise InputError(
            f"{purpose} needs {error.name}, which is not installed",
            f"the extra {extra!r}",
            f"install it: pip install 'hf_bert_impl[{extra}]'",
        ) from error


def set_up_ray() -> None:
    """Settings of a Ray that is started on this machine, where the user's environment has none.

    It sends no usage statistics. Its workers get the priority of other processes: by Ray's own
    niceness of 15 they have a thirtieth of a processor for which another job asks too.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
