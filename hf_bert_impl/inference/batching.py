"""Texts and token ids on their way to a model: checked, and packed into one row."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from hf_bert_impl.errors import InputError

Ids = list[int]


def check_text(index: int, text: object) -> None:
    """Raises TypeError if an entry of `texts` is no str, and ValueError if it cannot be encoded."""
    if not isinstance(text, str):
        raise TypeError(f"texts[{index}] is {type(text).__name__}; give each text as a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"texts[{index}] has half a surrogate pair ({text[error.start]!r}). Replace it: "
            "text.encode('utf-8', 'replace').decode()."
        ) from error


def packed_inputs(
    rows: Sequence[Ids], types: Sequence[Ids] | None, device: torch.device
) -> dict[str, Tensor]:
    """Sequences side by side in one row, as DataCollatorWithFlattening makes it: no padding.

    Args:
        rows: The token ids of each.
        types: Their segments; None for none.
        device: Where the tensors are to be.

    Returns:
        `input_ids` (1, T), `cu_seq_lens_q` (sequences + 1,) on the CPU, and `token_type_ids`
        (1, T) where there are segments.
    """
    ends = list(itertools.accumulate(map(len, rows), initial=0))
    inputs = {
        "input_ids": torch.tensor([list(itertools.chain(*rows))], device=device),
        "cu_seq_lens_q": torch.tensor(ends, dtype=torch.int32, device="cpu"),
    }
    if types is not None:
        inputs["token_type_ids"] = torch.tensor([list(itertools.chain(*types))], device=device)
    return inputs
