"""Losses of the heads, with upstream's semantics.

Every loss is a mean over its labelled items. With `num_items_in_batch` it is their sum over that
number, so that accumulated gradients equal the gradient of one large batch. (transformers' Trainer
counts the labels of all micro-batches of an optimizer step.)

Notation: B batch, S sequence, V vocabulary, L labels.
"""

import math

import torch
from torch import Tensor, nn

from .inputs import check_range, is_traced, reads_values

IGNORE_INDEX = -100


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = IGNORE_INDEX,
) -> Tensor:
    """Cross-entropy of class labels.

    Args:
        logits: (..., classes).
        labels: (...) class numbers; `ignore_index` skips an item.
        num_items_in_batch: Divisor instead of the number of labels given here.

    Returns:
        A scalar, in float32 for half-precision logits. Zero where no item is labelled: a mean
        over no items is NaN, and one unlucky micro-batch would end a training run.
    """
    labels = labels.reshape(-1).to(logits.device)
    total = nn.functional.cross_entropy(
        _at_least_float32(logits.reshape(-1, logits.shape[-1])),
        labels.long(),
        ignore_index=ignore_index,
        reduction="sum",
    )
    return total / _divisor(num_items_in_batch, (labels != ignore_index).sum(), total)


def labelled(labels: Tensor | None) -> Tensor | None:
    """(B, S) bool: positions whose hidden state a loss reads, padding or not."""
    return None if labels is None else labels != IGNORE_INDEX


def masked_lm_loss(
    logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Cross-entropy of the labelled tokens; the softmax of the others is not computed.

    Args:
        logits: (B, S, V), or (N, V) of the labelled tokens.
        labels: (B, S) or (N,).
    """
    if logits.ndim == 3 and not is_traced(logits.device, logits, labels):
        labels = labels.to(logits.device).flatten()
        index = (labels != IGNORE_INDEX).nonzero().flatten()
        logits, labels = logits.flatten(0, 1)[index], labels[index]
    return cross_entropy(logits, labels, num_items_in_batch)


def pretraining_loss(
    prediction_logits: Tensor,
    seq_relationship_logits: Tensor,
    labels: Tensor,
    next_sentence_label: Tensor,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    """Masked-LM loss plus next-sentence loss (Devlin et al. 2019, appendix A.2).

    `num_items_in_batch` counts masked tokens. The next-sentence mean of a micro-batch is weighted
    by its share of them, so that the weights of an optimizer step add up to one.

    Args:
        prediction_logits: (B, S, V).
        seq_relationship_logits: (B, 2).
        labels: (B, S).
        next_sentence_label: (B,), 0 for a true continuation.
    """
    next_sentence = cross_entropy(seq_relationship_logits, next_sentence_label)
    if num_items_in_batch is not None:
        next_sentence = _share(next_sentence, labels, num_items_in_batch)
    return masked_lm_loss(prediction_logits, labels, num_items_in_batch) + next_sentence


def infer_problem_type(num_labels: int, labels: Tensor) -> str:
    """The task that upstream infers from the labels of a classifier, if the config names none.

    Raises:
        ValueError: The labels are no tensor.
    """
    if not isinstance(labels, Tensor):
        raise ValueError(f"labels is a {type(labels).__name__}. Pass a tensor.")
    if num_labels == 1:
        return "regression"
    if labels.dtype in (torch.long, torch.int):
        return "single_label_classification"
    return "multi_label_classification"


def classification_loss(
    logits: Tensor,
    labels: Tensor,
    problem_type: str,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    """Loss of a sequence classifier.

    Args:
        logits: (B, L).
        labels: (B,) classes, (B, L) zeros and ones for several labels, or (B,) or (B, L) numbers
            for regression. As upstream, the last two treat -100 as a target like any other. Only
            the Trainer's count, which weights micro-batches, ignores it.
        problem_type: As in the config.
    """
    labels = labels.to(logits.device)
    if problem_type == "single_label_classification":
        return cross_entropy(logits, labels, num_items_in_batch)
    logits = _at_least_float32(logits).reshape(labels.shape)
    labels = labels.to(logits.dtype)
    if problem_type == "regression":
        loss = nn.functional.mse_loss(logits, labels)
    else:
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
    return loss if num_items_in_batch is None else _share(loss, labels, num_items_in_batch)


def span_loss(
    start_logits: Tensor, end_logits: Tensor, start_positions: Tensor, end_positions: Tensor
) -> Tensor:
    """Mean of the start and end losses; a position outside the sequence is ignored.

    Args:
        start_logits: (B, S).
        end_logits: (B, S).
        start_positions: (B,) or (B, 1).
        end_positions: (B,) or (B, 1).
    """
    length = start_logits.shape[1]
    start = cross_entropy(start_logits, start_positions.clamp(0, length), ignore_index=length)
    end = cross_entropy(end_logits, end_positions.clamp(0, length), ignore_index=length)
    return (start + end) / 2


def _at_least_float32(logits: Tensor) -> Tensor:
    """Logits in float32 or more: in half precision a softmax over a vocabulary loses too much."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _share(mean: Tensor, labels: Tensor, num_items_in_batch: Tensor | int) -> Tensor:
    """A micro-batch's mean, weighted by its share of the labels that the Trainer counts."""
    share = (labels != IGNORE_INDEX).sum().to(mean)
    return mean * share / _divisor(num_items_in_batch, share, share)


def _divisor(num_items_in_batch: Tensor | int | None, count: Tensor, like: Tensor) -> Tensor | int:
    if num_items_in_batch is None:
        return count.clamp(min=1)
    if isinstance(num_items_in_batch, Tensor):
        return num_items_in_batch.to(like.device)
    return num_items_in_batch


def check_labels(
    labels: Tensor | None,
    name: str,
    shape: tuple[int, ...],
    num_classes: int | None,
    classes_name: str = "num_labels",
) -> None:
    """Checks labels before the forward pass that they belong to.

    Args:
        labels: Anything that reshapes to `shape`, or None.
        shape: The shape that the head expects.
        num_classes: Labels must be below it, or -100 (ignored); None for numbers.
        classes_name: The config field that holds this number.

    Raises:
        ValueError: No tensor, a wrong number of labels, or one out of range.
    """
    if labels is None:
        return
    if not isinstance(labels, Tensor):
        raise ValueError(f"{name} is a {type(labels).__name__}. Pass a tensor of shape {shape}.")
    if labels.numel() != math.prod(shape) or (len(shape) > 1 and tuple(labels.shape) != shape):
        raise ValueError(
            f"{name} has shape {tuple(labels.shape)}; this batch needs {shape}: one label "
            "for each item"
        )
    if num_classes is not None:
        if labels.is_floating_point():
            raise ValueError(
                f"{name} has dtype {labels.dtype}; classes are whole numbers (torch.long)"
            )
        if reads_values(labels) and labels.numel():
            check_range(labels, name, num_classes, classes_name, ignore=IGNORE_INDEX)


def check_targets(labels: Tensor, count: int, num_labels: int, problem_type: str) -> None:
    """Checks the labels of a sequence classifier; several labels are numbers from 0 to 1.

    Args:
        count: R, the number of sequences.
        problem_type: As in the config.

    Raises:
        ValueError: A wrong shape, or a number out of range.
    """
    if problem_type == "single_label_classification":
        if labels.ndim == 2 and labels.shape == (count, num_labels) and num_labels > 1:
            raise ValueError(
                f"labels has shape {tuple(labels.shape)}, and single_label_classification takes "
                f"({count},), one class each; for several labels at once set "
                'config.problem_type="multi_label_classification", or give floats: labels.float()'
            )
        check_labels(labels, "labels", (count,), num_labels)
        return
    shape = (count, num_labels) if num_labels > 1 else (count,)
    is_matrix = isinstance(labels, Tensor) and labels.ndim == 2 and len(labels) == count
    if is_matrix and labels.shape[1] != num_labels:
        found = labels.shape[1]
        raise ValueError(
            f"labels has shape {tuple(labels.shape)}; with num_labels={num_labels} this batch "
            f"needs {shape}. If the classifier has {found} outputs, set model.num_labels = "
            f"model.config.num_labels = {found}."
        )
    check_labels(labels, "labels", shape, None)
    if not reads_values(labels):
        return
    if problem_type == "regression":
        right, allowed = labels.isfinite(), "a finite number"
    else:  # upstream sums -100 as a target like any other
        right = ((labels >= 0) & (labels <= 1)) | (labels == IGNORE_INDEX)
        allowed = "a number from 0 to 1"
    if not right.all():
        raise ValueError(
            f"labels holds {labels[~right][0].item():g}; a target of {problem_type} is {allowed}"
        )
