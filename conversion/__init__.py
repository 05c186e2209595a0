"""BERT checkpoints of every published format, read and written without the framework behind them.

Installed as `hf_bert_impl.conversion`. Readers know bytes and no BERT; maps know BERT and no bytes.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import ConversionError
    from .pipeline import convert, load_any
    from .report import Report

__all__ = ["ConversionError", "Report", "convert", "load_any"]
_HOMES = {
    "ConversionError": "errors",
    "Report": "report",
    "convert": "pipeline",
    "load_any": "pipeline",
}


def __getattr__(name: str) -> Any:
    # On first use: the readers' own users need no torch model, and importing costs seconds.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
