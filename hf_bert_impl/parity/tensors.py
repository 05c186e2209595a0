"""Compare the outputs of two models tensor by tensor; the bounds stand here.

Notation: B batch, S sequence, H heads.

Padding is not compared: this implementation does not compute it, and what upstream computes there
means nothing. Of attention probabilities (B, H, S, S) the compared queries by all keys are taken.
What is one vector a sequence (the pooled output and its logits) is compared for every sequence: it
is read from position 0, which both compute even under padding.

Bounds, per tensor:

- float32: `max |ours - reference| <= tolerance * scale`, where the scale is the largest magnitude
  of the reference's tensor over the compared positions. A loss is a difference of logits, so its
  scale is at least 1.
- bfloat16 and float16: the error against the *float32 reference* is at most `LOW_PRECISION_FACTOR`
  times upstream's own error in that precision, largest against largest and mean against mean, plus
  what storing the tensor in that precision costs by itself. Where a ratio of two errors would be
  chance, the bound is wider: in a tensor of fewer than `FEW_NUMBERS` numbers (a loss, a few logits)
  the allowance is `FEW_NUMBERS_ROUNDINGS` roundings, and means are not looked at; and the largest
  error of an attention head is held to upstream's largest in any head of that layer. (Between two
  right implementations one head's largest errors differ by more than 1.5 times in 3 of 100 heads,
  in either direction; their means do not, and stay bound head by head.)
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
LOW_PRECISION_FACTOR = 1.5
FEW_NUMBERS = 256
FEW_NUMBERS_ROUNDINGS = 4
# No scale is smaller than this, so that a tensor of zeros can be compared.
SMALLEST_SCALE = 1e-6
# Outputs (B, S) with a number for each position. The other (B, n) have a vector for each sequence.
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
    """Compare two output objects, tensor by tensor, at some positions.

    Hidden states become rows `embeddings` and `layer i`, attentions `layer i head h`, every other
    tensor a row under its own name. Key/value caches are not compared.

    Args:
        ours: Outputs of this implementation.
        reference: Upstream's outputs for the same input; the same fields must be there.
        attended_mask: (B, S) true where a token is attended; for multiple choice (B * choices, S).
        case: The name of the rows' case.
        tolerance: The relative bound in float32 (see the module's head).
        precise: Upstream's outputs in float32, where the other two are of a lower precision. The
            bounds are then those of low precision.

    Returns:
        One row a tensor, and one a head.

    Raises:
        ValueError: No position is attended.
    """
    mask = attended_mask.bool()
    if not mask.any():
        raise InputError(
            "no position is attended, so there is nothing to compare",
            "one or more",
            "mend the mask",
        )
    left, right = selected_tensors(ours, mask), selected_tensors(reference, mask)
    exact = selected_tensors(precise, mask) if precise is not None else {}
    layers = _largest_by_layer(right, exact)
    report = ParityReport()
    for name in right | left:
        if name not in left or name not in right:
            side = "this implementation" if name not in left else "upstream"
            report.rows.append(ParityRow.failure(case, name, f"{side} does not give this output"))
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
        Row name to tensor: (T, ...) for what is computed a position, (sequences, ...) for what is
        computed a sequence, the loss as a scalar.
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
        # All else is the loss, or one vector a sequence.
        of_positions = value.dim() >= 3 or name in PER_POSITION_2D
        selected[name] = value[mask.to(value.device)] if of_positions else value
    return {name: value for name, value in selected.items() if value.numel()}


def _heads(
    outputs: ModelOutput, field: str, layer: int, name: str, mask: Tensor
) -> dict[str, Tensor]:
    """One layer's attention probabilities, a row a head."""
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
    """The layer that a head's row belongs to; other rows belong to none."""
    return name.partition(" head ")[0] if " head " in name else ""


def _largest_by_layer(reference: dict[str, Tensor], precise: dict[str, Tensor]) -> dict[str, float]:
    """Upstream's largest error in any attention head of a layer."""
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
        smallest_scale: What that magnitude is taken for at least.
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
    """Compare the error of `ours` with that of `reference`, both against `precise`.

    Args:
        case: The row's case.
        name: The row's name.
        ours: Any shape, in a low precision.
        reference: The same shape: upstream's in a low precision.
        precise: The same shape: upstream's in float32.
        largest_of_peers: Upstream's largest error in tensors of the same kind.
    """
    if not ours.shape == reference.shape == precise.shape:
        return _other_shape(case, name, ours, reference)
    largest, mean = _difference(ours, precise)
    own_largest, own_mean = _difference(reference, precise)
    magnitudes = precise.detach().abs().double()
    scale = max(magnitudes.max().item(), SMALLEST_SCALE)
    # A loss may be float32 although the logits that it is computed from are not.
    dtype = torch.float16 if torch.float16 in (ours.dtype, reference.dtype) else torch.bfloat16
    rounding = torch.finfo(dtype).eps / 2
    few = precise.numel() < FEW_NUMBERS
    allowance = rounding * scale * (FEW_NUMBERS_ROUNDINGS if few else 1)
    bound = LOW_PRECISION_FACTOR * max(own_largest, largest_of_peers) + allowance
    # Rounding errors are spread evenly up to `rounding`, so a quarter of it is about their mean.
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
    """Largest and mean absolute difference."""
    gap = (left.detach().double() - right.detach().to(left.device).double()).abs()
    return gap.max().item(), gap.mean().item()


def _other_shape(case: str, name: str, ours: Tensor, reference: Tensor) -> ParityRow:
    shapes = f"shape {tuple(ours.shape)} where upstream has {tuple(reference.shape)}"
    return ParityRow.failure(case, name, shapes)
