"""Optional libraries and the extras that install them."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from hf_bert_impl.errors import InputError

#: Anyone could register this name on the Python package index. So no text may install it by name.
NOT_PUBLISHED = (
    "hf_bert_impl is not on the Python package index yet, and a package of that name there is not "
    "this one. Install it from a clone of its repository"
)


def install_command(extra: str | None = None) -> str:
    """The command that installs the package in a clone of its repository."""
    return "pip install -e " + ("." if extra is None else f"'.[{extra}]'")


def install_remedy(extra: str) -> str:
    """How to get the libraries of an extra, for messages."""
    return f"Install it in a clone of hf_bert_impl: {install_command(extra)}"


def require(module: str, extra: str, purpose: str) -> Any:
    """Import an optional library.

    Args:
        module: Its import name.
        extra: The extra of this package that installs it.
        purpose: Its use, as in "training".

    Returns:
        The module.

    Raises:
        InputError: It is not installed. The message names the extra.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # a broken installation
        raise InputError(
            f"{purpose} needs {error.name}, which is not installed. {install_remedy(extra)}"
        ) from error


def set_up_ray() -> None:
    """Defaults for a Ray started on this machine; the user's environment takes precedence.

    Ray sends no usage statistics. Workers get normal priority: with Ray's niceness of 15 they get
    a thirtieth of a shared processor.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
