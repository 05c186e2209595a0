"""BERT checkpoints of every published format, read and written without the framework behind them.

Installed as `hf_bert_impl.conversion`. Readers know bytes and no BERT; maps know BERT and no bytes.
"""

from typing import TYPE_CHECKING

from hf_bert_impl.errors import InputError as ConversionError
from hf_bert_impl.lazy import lazy_names

if TYPE_CHECKING:
    from .pipeline import convert, load_any
    from .report import Report

__all__ = ["ConversionError", "Report", "convert", "load_any"]
# On first use: the readers' own users need no torch model, and importing costs seconds.
__getattr__ = lazy_names(
    __name__,
    {
        "Report": ".report",
        "convert": ".pipeline",
        "load_any": ".pipeline",
    },
)
