"""Check texts, and pack token ids into one row."""

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

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


def packed_inputs(
    rows: Sequence[Ids], types: Sequence[Ids] | None, device: torch.device
) -> dict[str, Tensor]:
    """Concatenates sequences into one row without padding, like DataCollatorWithFlattening.

    Args:
        rows: The token ids of each sequence.
        types: Their segment ids, or None.
        device: The device of the tensors.

    Returns:
        `input_ids` (1, T), `cu_seq_lens_q` (sequences + 1,) on the CPU, and `token_type_ids`
        (1, T) if `types` are given.
    """
    inputs = {
        "input_ids": torch.tensor([list(itertools.chain(*rows))], device=device),
        "cu_seq_lens_q": ends_of(map(len, rows)),
    }
    if types is not None:
        inputs["token_type_ids"] = torch.tensor([list(itertools.chain(*types))], device=device)
    return inputs
