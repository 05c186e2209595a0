"""The loops of sentence-transformers, in batches of as many tokens as pay.

Its `encode` and `predict` take 32 texts at a time. So few short ones leave the processor idle.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from hf_bert_impl.inference.text_encoder import TOKEN_BUDGET

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

    sizes = [model._input_length(entry) for entry in inputs]
    longest = CHARACTERS_PER_TOKEN * (getattr(model, "max_seq_length", None) or TOKEN_BUDGET)
    rows: list[Any] = [None] * len(inputs)
    result: Any = rows
    with tqdm(total=len(inputs), desc="Texts", disable=not show_progress_bar) as bar:
        for places in _batches([min(size, longest) for size in sizes]):
            found = compute(
                [inputs[place] for place in places],
                batch_size=len(places),
                show_progress_bar=False,
            )
            for place, row in zip(places, found, strict=True):
                rows[place] = row
            bar.update(len(places))
    if isinstance(found, torch.Tensor):
        result = torch.stack(rows)
    return result


def _batches(sizes: Sequence[int]) -> list[list[int]]:
    """The places of texts, longest first, in batches of about `TOKEN_BUDGET` tokens.

    Args:
        sizes: Of each text, in characters.
    """
    batches: list[list[int]] = []
    room = 0
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        # What a text needs beyond its characters: [CLS] and [SEP].
        size = sizes[place] + 2 * CHARACTERS_PER_TOKEN
        if room < size or not batches:
            batches.append([])
            room = TOKEN_BUDGET * CHARACTERS_PER_TOKEN
        batches[-1].append(place)
        room -= size
    return batches
