"""SPLADE vectors: one weight per word of the vocabulary, without storing the scores of all tokens.

A text's vector is max log(1 + relu(score)) over its tokens (Formal et al. 2021,
https://arxiv.org/abs/2109.10086), or the sum over them (https://arxiv.org/abs/2107.05720). The
scores of a batch are (tokens, V), hundreds of times larger than the states. So they are computed
for a few tokens at a time and reduced at once. log1p and relu are monotonic, so the maximum can be
taken before them.

Notation: B batch, S sequence, R texts, N tokens of all texts, V vocabulary, D hidden size.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hf_bert_impl.encoders.forward import MaskedLM, is_masked_lm
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.finite import check_numbers
from hf_bert_impl.model.inputs import Inputs
from hf_bert_impl.model.layers import LARGEST_BLOCK
from hf_bert_impl.model.layout import Encoded
from hf_bert_impl.model.modeling_bert import BertForMaskedLM

POOLING_STRATEGIES = ("max", "sum")
#: How many log1p follow relu (two in https://arxiv.org/abs/2504.14839).
LOGARITHMS = {"relu": 1, "log1p_relu": 2}


class Piece(NamedTuple):
    """Neighbouring tokens of one text."""

    text: int
    tokens: int


def splade_vectors(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    pooling_strategy: str = "max",
    activation_function: str = "relu",
    **options: Any,
) -> Tensor:
    """The SPLADE vector of each text.

    At most `LARGEST_BLOCK` bytes of scores are stored; the backward pass computes them again. With
    `BertConfig.batch_invariant`, a text's vector has the same bits in any batch.

    Args:
        model: A `BertForMaskedLM`, or another family's masked LM after `optimize`.
        input_ids: (B, S) token ids; or (1, N) packed texts, as in `BertModel.forward`.
        attention_mask: (B, S), zero for padding; None for none.
        token_type_ids: (B, S) segments.
        position_ids: (B, S) positions.
        pooling_strategy: "max" or "sum" over the tokens of a text.
        activation_function: "relu" for log1p(relu(score)), or "log1p_relu" for log1p of that.
        **options: Further arguments of `BertModel.forward`, such as `cu_seq_lens_q`.

    Returns:
        (B, V), or (R, V) for packed input, float32. A text without attended tokens gets zeros.

    Raises:
        InputError: The model has no suitable masked-LM head, the mask is not (B, S), or the pooling
            or activation is unknown.
        ValueError: The input does not fit the model.
    """
    if not takes_splade(model):
        kind = type(model)
        raise InputError(
            f"The model is a {kind.__module__}.{kind.__qualname__}. Load it with "
            "hf_bert_impl.BertForMaskedLM.from_pretrained, or call hf_bert_impl.optimize first."
        )
    check_choice("pooling_strategy", pooling_strategy, POOLING_STRATEGIES)
    check_choice("activation_function", activation_function, LOGARITHMS)
    if attention_mask is not None and attention_mask.ndim != 2:
        raise InputError(
            f"`attention_mask` has {attention_mask.ndim} dimensions. Use a mask (batch, sequence)."
        )
    logarithms = LOGARITHMS[activation_function]

    def logarithm(scores: Tensor) -> Tensor:
        scores = scores.relu()
        for _ in range(logarithms):
            scores = scores.log1p()
        return scores

    def largest(scores: Tensor) -> Tensor:
        return scores.amax(dim=0).float()

    def total(scores: Tensor) -> Tensor:
        return logarithm(scores.float()).sum(dim=0)

    given = (input_ids, attention_mask, token_type_ids, position_ids)
    head: Callable[[Tensor], Tensor]
    if isinstance(model, BertForMaskedLM):
        inputs = Inputs.of(model.config, *given, None, options)
        encoded = model._encode(inputs, **options)
        head = partial(model._score, model.cls)
    else:
        other = MaskedLM(model)
        names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
        encoded, inputs = other.encode(**dict(zip(names, given, strict=True)), **options)
        head = other.scores
    states, pieces = _by_text(encoded, inputs)
    vocabulary: int = model.config.vocab_size
    is_max = pooling_strategy == "max"
    itemsize = states.element_size() if is_max else torch.float32.itemsize  # sums are in float32
    limit = max(1, LARGEST_BLOCK // (vocabulary * itemsize))
    of_piece, join = (largest, torch.maximum) if is_max else (total, torch.add)
    best: list[Tensor | None] = [None] * inputs.count
    start = 0
    for group in _slices(pieces, limit):
        stop = start + sum(piece.tokens for piece in group)
        reduced = _reduce(head, states[start:stop], group, of_piece)
        for piece, one in zip(group, reduced, strict=True):
            before = best[piece.text]
            best[piece.text] = one if before is None else join(before, one)
        start = stop
    # Text by text: rounding may differ at the end of a tensor.
    vectors = [
        states.new_zeros(vocabulary, dtype=torch.float32)
        if one is None
        else (logarithm(one) if is_max else one)
        for one in best
    ]
    stacked = torch.stack(vectors)
    if not torch.is_grad_enabled():
        check_numbers(stacked, model)
    return stacked


def takes_splade(model: nn.Module) -> bool:
    """Whether `splade_vectors` takes a model."""
    return isinstance(model, BertForMaskedLM) or is_masked_lm(model)


def _by_text(encoded: Encoded, inputs: Inputs) -> tuple[Tensor, list[Piece]]:
    """The states (N, D) of attended tokens, text by text, and the pieces of the texts."""
    states, index = encoded.states, encoded.index
    if index is None:
        states = states.flatten(0, 1)
        index = torch.arange(len(states), device=states.device)
    mask, lengths = inputs.attention_mask, inputs.lengths
    if mask is not None:
        attended = mask.to(index.device).flatten()[index] != 0
        if not bool(attended.all()):
            states, index = states[attended], index[attended]
    if lengths is None:
        text = index // encoded.shape[1]
    else:
        ends = torch.tensor(list(accumulate(lengths)), device=index.device)
        text = torch.searchsorted(ends, index, right=True)
    numbers, counts = torch.unique_consecutive(text, return_counts=True)
    return states, list(map(Piece, numbers.tolist(), counts.tolist()))


def _slices(pieces: list[Piece], limit: int) -> Iterator[list[Piece]]:
    """Groups of pieces with at most `limit` tokens; longer pieces are cut, at multiples of it."""
    group: list[Piece] = []
    free = limit
    for text, tokens in pieces:
        for begin in range(0, tokens, limit):
            part = Piece(text, min(limit, tokens - begin))
            if part.tokens > free:
                yield group
                group, free = [], limit
            group.append(part)
            free -= part.tokens
    if group:
        yield group


def _reduce(
    head: Callable[[Tensor], Tensor],
    states: Tensor,
    group: list[Piece],
    of_piece: Callable[[Tensor], Tensor],
) -> list[Tensor]:
    """Reduces the scores of states (n, D) to (V,) per piece."""
    sizes = [piece.tokens for piece in group]

    def reduced(states: Tensor) -> list[Tensor]:
        return [of_piece(scores) for scores in head(states).split(sizes)]

    if not torch.is_grad_enabled():
        return reduced(states)
    return checkpoint(reduced, states, use_reentrant=False, preserve_rng_state=False)
