"""The positions that a masked-LM head scores: its product with the vocabulary takes over a quarter
of the operations of BERT-base's encoder.

Notation: B batch, S sequence, D hidden size, V vocabulary, T scored tokens.
"""

from torch import Tensor

from .masks import key_mask
from .padding import scatter

#: Where more than this share of all positions is wanted, all are computed: laying the wanted into a
#: padded tensor takes longer than it saves.
MANY_SCORED = 0.7


def scored_positions(states: Tensor, mask: Tensor | None, required: Tensor | None) -> Tensor | None:
    """(B, S) bool: what the mask attends to or is required; None for all.

    Args:
        states: (B, S, D).
        mask: The caller's; one between queries and keys leaves nothing out.
        required: (B, S) bool: what a loss reads, padding or not.
    """
    mask = key_mask(mask, states.shape[0])
    if mask is None or mask.shape != states.shape[:2]:
        return None
    scored = mask.to(states.device) != 0
    if required is not None:
        scored = scored | required.to(states.device)
    return None if bool(scored.all()) else scored


def gather(states: Tensor, scored: Tensor | None) -> Tensor:
    """(B, S, D) to the states to score, (T, D); or all of them, where that is the quicker."""
    if scored is None or scored.sum() > MANY_SCORED * scored.numel():
        return states
    return states[scored]


def spread(logits: Tensor, scored: Tensor | None) -> Tensor:
    """(T, V) or (B, S, V) to (B, S, V), zero where nothing is scored."""
    if scored is None:
        return logits
    scored = scored.to(logits.device)
    if logits.ndim == 3:
        # In place where nothing is recorded: they are the largest tensor of the pass. With
        # gradients a decoder that someone put in may have kept its output for them.
        fill = logits.masked_fill if logits.requires_grad else logits.masked_fill_
        return fill(~scored[..., None], 0)
    return scatter(logits, scored.flatten().nonzero().flatten(), (scored.shape[0], scored.shape[1]))
