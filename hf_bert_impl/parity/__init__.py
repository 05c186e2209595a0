"""Comparison of two models tensor by tensor: outputs, losses and gradients.

Names are imported on first use: `hf-bert --help` needs no torch.
"""

from typing import TYPE_CHECKING

from hf_bert_impl.lazy import lazy_names

if TYPE_CHECKING:
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

_COMPARISON = ("attended_positions", "compare_models", "load_reference", "reference_model")
__getattr__ = lazy_names(
    __name__,
    dict.fromkeys(_COMPARISON, ".comparison")
    | dict.fromkeys(("ParityReport", "ParityRow"), ".report")
    | dict.fromkeys(("FP32_TOLERANCE", "compare_outputs"), ".tensors"),
)
