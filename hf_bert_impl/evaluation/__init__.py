"""Measuring models: parity with transformers' own BERT, and published figures.

The names are imported on first use: scoring predictions needs no torch.
"""

from typing import TYPE_CHECKING

from hf_bert_impl.lazy import lazy_names

if TYPE_CHECKING:
    from hf_bert_impl.evaluation.parity import (
        FP32_TOLERANCE,
        attended_positions,
        compare_models,
        compare_outputs,
        load_reference,
        reference_model,
    )
    from hf_bert_impl.evaluation.parity_report import ParityReport, ParityRow

__all__ = [
    "FP32_TOLERANCE",
    "ParityReport",
    "ParityRow",
    "attended_positions",
    "compare_models",
    "compare_outputs",
    "load_reference",
    "reference_model",
]

__getattr__ = lazy_names(
    __name__,
    {name: ".parity_report" if name.startswith("Parity") else ".parity" for name in __all__},
)
