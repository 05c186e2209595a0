"""Measuring models: parity with transformers' own BERT, and published figures."""

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
