"""Optional libraries: imported when needed, and asked for by the extra that brings them."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from hf_bert_impl.errors import InputError

#: The Python package index has no hf_bert_impl of this project: whoever takes that name there runs
#: code on the machines of those who install it. So no text may install it from there by its name.
NOT_PUBLISHED = (
    "hf_bert_impl is not on the Python package index yet, and a package of that name there is not "
    "this one. Install it from a clone of its repository"
)


def install_command(extra: str | None = None) -> str:
    """The command that installs the package, to be given in a clone of its repository."""
    return "pip install -e " + ("." if extra is None else f"'.[{extra}]'")


def install_remedy(extra: str) -> str:
    """How to get the libraries of an extra, for messages."""
    return f"Install it in a clone of hf_bert_impl: {install_command(extra)}"


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
            f"{purpose} needs {error.name}, which is not installed. {install_remedy(extra)}"
        ) from error


def set_up_ray() -> None:
    """Settings of a Ray that is started on this machine, where the user's environment has none.

    It sends no usage statistics. Its workers get the priority of other processes: by Ray's own
    niceness of 15 they have a thirtieth of a processor for which another job asks too.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
