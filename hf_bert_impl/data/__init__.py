"""Text to training examples: reference tokenizer, documents, masking and collators."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_bert_impl.data.collators import PretrainingCollator
    from hf_bert_impl.data.masking import Masker, MaskingOptions

__all__ = ["Masker", "MaskingOptions", "PretrainingCollator"]
_HOMES = {"Masker": "masking", "MaskingOptions": "masking", "PretrainingCollator": "collators"}


def __getattr__(name: str) -> Any:
    # On first use: reading task files needs no torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
