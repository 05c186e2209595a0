"""Measuring models: parity with transformers' own BERT, and published figures.

The names are imported on first use: scoring predictions needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "parity_report" if name.startswith("Parity") else "parity"
    return getattr(import_module(f"{__name__}.{module}"), name)
