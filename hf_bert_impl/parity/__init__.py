"""Two models compared tensor by tensor: outputs, losses and gradients."""

from hf_bert_impl.parity.comparison import (
    attended_positions,
    compare_models,
    load_reference,
    reference_model,
)
from hf_bert_impl.parity.report import ParityReport, ParityRow
from hf_bert_impl.parity.tensors import FP32_TOLERANCE, compare_outputs

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
