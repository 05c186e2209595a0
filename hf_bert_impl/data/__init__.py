"""Text to training examples: reference tokenizer, documents, masking and collators."""

from typing import TYPE_CHECKING

from hf_bert_impl.lazy import lazy_names

if TYPE_CHECKING:
    from hf_bert_impl.data.flattening_collator import FlatteningCollator
    from hf_bert_impl.data.masking import Masker, MaskingOptions
    from hf_bert_impl.data.pretraining_collator import PretrainingCollator

__all__ = ["FlatteningCollator", "Masker", "MaskingOptions", "PretrainingCollator"]
# On first use: reading task files needs no torch.
__getattr__ = lazy_names(
    __name__,
    {
        "FlatteningCollator": ".flattening_collator",
        "Masker": ".masking",
        "MaskingOptions": ".masking",
        "PretrainingCollator": ".pretraining_collator",
    },
)
