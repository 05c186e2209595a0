"""Comparison of the outputs of two models tensor by tensor, and its bounds.

Notation: B batch, S sequence, H heads.

Padding is not compared: this implementation skips it, and upstream's results there are meaningless.
Attention probabilities (B, H, S, S) are compared for the compared queries and all keys. Outputs of
one vector per sequence (the pooled output and its logits) are compared for every sequence: they are
read from position 0, which both compute even under padding.

Bounds, per tensor:

- float32: `max |ours - reference| <= tolerance * scale`, where the scale is the largest magnitude
  of the reference's tensor over the compared positions. A loss is a difference of logits, so its
  scale is at least 1.
- bfloat16 and float16: the error compared with the *float32 reference* is at most
  `LOW_PRECISION_FACTOR` times upstream's own error in that precision, plus one rounding to it. This
  holds for the maximum and for the mean. Two cases have wider bounds, because their ratio of errors
  is chance. A tensor of fewer than `FEW_NUMBERS` numbers (a loss, a few logits) may be off by
  `FEW_NUMBERS_ROUNDINGS` roundings, and its mean is not compared. The maximum error of an attention
  head is compared with upstream's maximum in any head of that layer. Between two correct
  implementations the maxima of 3 heads in 100 differ by more than 1.5 times; the means do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_bert_impl.errors import InputError
from hf_bert_impl.parity.report import ParityReport, ParityRow

if TYPE_CHECKING:
    from transformers.utils import ModelOutput

FP32_TOLERANCE = 2e-5
#: An accelerator's kernels sum in other orders for other shapes.
ACCELERATOR_TOLERANCE = 1e-4
LOW_PRECISION_FACTOR = 1.5
FEW_NUMBERS = 256
FEW_NUMBERS_ROUNDINGS = 4
# The minimum scale, for tensors of zeros.
SMALLEST_SCALE = 1e-6
# Outputs (B, S) with a number per position. Other outputs (B, n) have a vector per sequence.
PER_POSITION_2D = ("start_logits", "end_logits")


def compare_outputs(
    ours: ModelOutput,
    reference: ModelOutput,
    attended_mask: Tensor,
    *,
    case: str = "fp32",
    tolerance: float = FP32_TOLERANCE,
    precise: ModelOutput | None = None,
) -> ParityReport:
    """Compare two output objects, tensor by tensor, at given positions.

    Hidden states become rows `embeddings` and `layer i`, attentions `layer i head h`, every other
    tensor a row under its own name. Key/value caches are not compared.

    Args:
        ours: Outputs of this implementation.
        reference: Upstream's outputs for the same input, with the same fields.
        attended_mask: (B, S) true at attended tokens; for multiple choice (B * choices, S).
        case: The name of the rows' case.
        tolerance: The relative bound in float32 (see the module's docstring).
        precise: Upstream's outputs in float32, if the other two are of a lower precision, which
            then decides the bounds.

    Returns:
        One row per tensor, and one per head.

    Raises:
        ValueError: No position is attended.
    """
    mask = attended_mask.bool()
    if not mask.any():
        raise InputError("The mask attends to no position. Give one that attends to some.")
    left, right = selected_tensors(ours, mask), selected_tensors(reference, mask)
    exact = selected_tensors(precise, mask) if precise is not None else {}
    layers = _largest_by_layer(right, exact)
    report = ParityReport()
    for name in right | left:
        if name not in left or name not in right:
            side = "this implementation" if name not in left else "upstream"
            report.rows.append(ParityRow.failure(case, name, f"{side} lacks this output"))
        elif precise is None:
            floor = 1.0 if name == "loss" else SMALLEST_SCALE
            report.rows.append(exact_row(case, name, left[name], right[name], tolerance, floor))
        else:
            report.rows.append(
                low_precision_row(
                    case, name, left[name], right[name], exact[name], layers.get(_layer(name), 0.0)
                )
            )
    return report


def selected_tensors(outputs: ModelOutput, mask: Tensor) -> dict[str, Tensor]:
    """The compared part of every output, in the order of the computation.

    Args:
        outputs: Outputs of a BERT model, T positions of which are attended.
        mask: (B, S) booleans.

    Returns:
        Row name to tensor: (T, ...) for outputs per position, (sequences, ...) for outputs per
        sequence, the loss as a scalar.
    """
    selected: dict[str, Tensor] = {}
    for index, states in enumerate(outputs.get("hidden_states") or ()):
        name = f"layer {index - 1}" if index else "embeddings"
        if index:
            selected.update(_heads(outputs, "attentions", index - 1, name, mask))
            selected.update(_heads(outputs, "cross_attentions", index - 1, f"{name} cross", mask))
        selected[name] = states[mask.to(states.device)]  # (T, hidden)
    for name, value in outputs.items():
        if not isinstance(value, Tensor):
            continue
        # Otherwise it is the loss, or one vector per sequence.
        of_positions = value.dim() >= 3 or name in PER_POSITION_2D
        selected[name] = value[mask.to(value.device)] if of_positions else value
    return {name: value for name, value in selected.items() if value.numel()}


def _heads(
    outputs: ModelOutput, field: str, layer: int, name: str, mask: Tensor
) -> dict[str, Tensor]:
    """One layer's attention probabilities, by head."""
    layers = outputs.get(field)
    if not layers or layers[layer] is None:
        return {}
    probabilities = layers[layer]  # (B, H, S, S)
    here = mask.to(probabilities.device)
    return {
        f"{name} head {head}": probabilities[:, head][here]  # (T, S)
        for head in range(probabilities.shape[1])
    }


def _layer(name: str) -> str:
    """The layer of a head's row; empty for other rows."""
    return name.partition(" head ")[0] if " head " in name else ""


def _largest_by_layer(reference: dict[str, Tensor], precise: dict[str, Tensor]) -> dict[str, float]:
    """Upstream's maximum error in any attention head of a layer."""
    largest: dict[str, float] = {}
    for name, exact in precise.items():
        layer = _layer(name)
        if layer and name in reference and reference[name].shape == exact.shape:
            error, _ = _difference(reference[name], exact)
            largest[layer] = max(largest.get(layer, 0.0), error)
    return largest


def exact_row(
    case: str,
    name: str,
    ours: Tensor,
    reference: Tensor,
    tolerance: float,
    smallest_scale: float = SMALLEST_SCALE,
) -> ParityRow:
    """Compare two tensors by the float32 rule.

    Args:
        case: The row's case.
        name: The row's name.
        ours: Any shape.
        reference: The same shape.
        tolerance: The bound, relative to the largest magnitude of `reference`.
        smallest_scale: The minimum of that magnitude.
    """
    if ours.shape != reference.shape:
        return _other_shape(case, name, ours, reference)
    largest, mean = _difference(ours, reference)
    scale = max(reference.detach().abs().max().item(), smallest_scale)
    relative = largest / scale
    return ParityRow(case, name, largest, mean, relative, tolerance, relative <= tolerance)


def low_precision_row(
    case: str,
    name: str,
    ours: Tensor,
    reference: Tensor,
    precise: Tensor,
    largest_of_peers: float = 0.0,
) -> ParityRow:
    """Compare the errors of `ours` and `reference`, both relative to `precise`.

    Args:
        case: The row's case.
        name: The row's name.
        ours: Any shape, in a low precision.
        reference: The same shape: upstream's in a low precision.
        precise: The same shape: upstream's in float32.
        largest_of_peers: Upstream's maximum error in tensors of the same kind.
    """
    if not ours.shape == reference.shape == precise.shape:
        return _other_shape(case, name, ours, reference)
    largest, mean = _difference(ours, precise)
    own_largest, own_mean = _difference(reference, precise)
    magnitudes = precise.detach().abs().double()
    scale = max(magnitudes.max().item(), SMALLEST_SCALE)
    # A loss may be float32 although its logits are not.
    dtype = torch.float16 if torch.float16 in (ours.dtype, reference.dtype) else torch.bfloat16
    rounding = torch.finfo(dtype).eps / 2
    few = precise.numel() < FEW_NUMBERS
    allowance = rounding * scale * (FEW_NUMBERS_ROUNDINGS if few else 1)
    bound = LOW_PRECISION_FACTOR * max(own_largest, largest_of_peers) + allowance
    # Rounding errors are uniform up to `rounding`, so their mean is about a quarter of it.
    mean_bound = LOW_PRECISION_FACTOR * own_mean + rounding / 4 * magnitudes.mean().item()
    mean_passed = few or mean <= mean_bound
    return ParityRow(
        case,
        name,
        largest,
        mean,
        largest / scale,
        bound / scale,
        largest <= bound and mean_passed,
        own_largest,
        "" if mean_passed else f"mean error {mean:.2e} over its bound {mean_bound:.2e}",
    )


def _difference(left: Tensor, right: Tensor) -> tuple[float, float]:
    """Maximum and mean absolute difference."""
    gap = (left.detach().double() - right.detach().to(left.device).double()).abs()
    return gap.max().item(), gap.mean().item()


def _other_shape(case: str, name: str, ours: Tensor, reference: Tensor) -> ParityRow:
    shapes = f"shape {tuple(ours.shape)} where upstream has {tuple(reference.shape)}"
    return ParityRow.failure(case, name, shapes)
