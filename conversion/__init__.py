"""BERT checkpoints of every published format, without the frameworks that wrote them.

Installed as `hf_bert_impl.conversion`. `readers` handle bytes of any model, and `maps` the names of
BERT.
"""

from typing import TYPE_CHECKING

from hf_bert_impl.errors import InputError as ConversionError
from hf_bert_impl.lazy import lazy_names

if TYPE_CHECKING:
    from .pipeline import convert, load_any
    from .report import Report

__all__ = ["ConversionError", "Report", "convert", "load_any"]
# Imported on first use: users of the readers need no model, whose import takes seconds.
__getattr__ = lazy_names(
    __name__,
    {
        "Report": ".report",
        "convert": ".pipeline",
        "load_any": ".pipeline",
    },
)
