"""Optional libraries: imported when needed, and asked for by the extra that brings them."""

from __future__ import annotations

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
