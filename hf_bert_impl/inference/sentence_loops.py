"""The loops of sentence-transformers, in batches of as many tokens as pay.

Its `encode` and `predict` take 32 texts at a time. So few short ones leave the processor idle.
Tokens are estimated from characters: the library tokenizes within the method that computes, and
counting before it would tokenize every text twice.
"""

from functools import partial
from typing import Any

import torch
from torch import nn

from hf_bert_impl.data.token_budget import cut_batches
from hf_bert_impl.inference.encoding import TOKEN_BUDGET

#: The batch size of sentence-transformers where the caller names none.
DEFAULT_BATCH_SIZE = 32
#: Of European languages. Where a token has fewer, a batch has more tokens than `TOKEN_BUDGET`.
CHARACTERS_PER_TOKEN = 4
#: The method that computes all texts of a call, in sentence-transformers 6.
_METHOD = "_inference"


def use_token_batches(model: nn.Module) -> None:
    """Makes a model of sentence-transformers compute as many tokens at once as `TextEncoder`.

    That is for calls that leave `batch_size` at 32; another one is kept to. Without the method that
    it needs (before sentence-transformers 6) nothing changes.
    """
    if hasattr(type(model), _METHOD):
        vars(model)[_METHOD] = partial(_in_token_batches, model)


def use_own_batches(model: nn.Module) -> None:
    """Undoes `use_token_batches`."""
    vars(model).pop(_METHOD, None)


def _in_token_batches(
    model: Any, inputs: list[Any], *, batch_size: int, show_progress_bar: bool, **options: Any
) -> Any:
    """What the model's own method gives, in the order of `inputs`."""
    compute = partial(getattr(type(model), _METHOD), model, **options)
    if batch_size != DEFAULT_BATCH_SIZE or len(inputs) <= DEFAULT_BATCH_SIZE:
        return compute(inputs, batch_size=batch_size, show_progress_bar=show_progress_bar)
    from tqdm.autonotebook import tqdm  # as sentence-transformers does

    longest = CHARACTERS_PER_TOKEN * (getattr(model, "max_seq_length", None) or TOKEN_BUDGET)
    # What a text needs beyond its characters: [CLS] and [SEP].
    sizes = [
        min(model._input_length(entry), longest) + 2 * CHARACTERS_PER_TOKEN for entry in inputs
    ]
    longest_first = sorted(range(len(sizes)), key=lambda place: -sizes[place])
    budget = TOKEN_BUDGET * CHARACTERS_PER_TOKEN
    rows: list[Any] = [None] * len(inputs)
    with tqdm(total=len(inputs), desc="Texts", disable=not show_progress_bar) as bar:
        for places in cut_batches(longest_first, sizes.__getitem__, token_budget=budget):
            found = compute(
                [inputs[place] for place in places],
                batch_size=len(places),
                show_progress_bar=False,
            )
            for place, row in zip(places, found, strict=True):
                rows[place] = row
            bar.update(len(places))
    return torch.stack(rows) if isinstance(found, torch.Tensor) else rows
