"""Check texts, and make batches of token ids."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hf_bert_impl.errors import InputError

Ids = list[int]


def check_text(index: int, text: object) -> None:
    """Raises TypeError if an entry of `texts` is no str, ValueError if it is not valid Unicode."""
    if not isinstance(text, str):
        raise TypeError(f"texts[{index}] is {type(text).__name__}. Give each text as a str.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"texts[{index}] has half a surrogate pair ({text[error.start]!r}). Replace it: "
            "text.encode('utf-8', 'replace').decode()."
        ) from error


def ends_of(sizes: Iterable[int]) -> Tensor:
    """The borders of texts with these sizes in a packed row, on the CPU."""
    return torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32, device="cpu")


def padded_inputs(
    rows: Sequence[Mapping[str, Ids]], tokenizer: Any, device: torch.device
) -> dict[str, Tensor]:
    """Pads tokenized inputs on the right.

    Args:
        rows: `input_ids`, and perhaps `token_type_ids`, of each input.
        tokenizer: Their tokenizer, for its padding token.
        device: The device of the tensors.

    Returns:
        (rows, longest) of each feature, and the `attention_mask`.
    """
    fill = {"input_ids": tokenizer.pad_token_id or 0}
    columns = {name: [torch.tensor(row[name]) for row in rows] for name in rows[0]}
    columns["attention_mask"] = [torch.ones_like(ids) for ids in columns["input_ids"]]
    return {
        name: pad_sequence(column, batch_first=True, padding_value=fill.get(name, 0)).to(device)
        for name, column in columns.items()
    }
