"""Several sequences end to end in one row, and what says so."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tests.model.cases import model_and_batch

LENGTHS = (5, 1, 8, 5, 3)
TOTAL = sum(LENGTHS)
#: (B, S) bool: their tokens in a padded batch.
REAL = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


def model_and_rows(head: str = "BertModel", seed: int = 1, **fields: Any) -> tuple[Any, dict]:
    """A random model, and a padded batch of five sequences for it."""
    sizes = dict(type_vocab_size=3, num_hidden_layers=2, max_position_embeddings=33)
    return model_and_batch(head, seed, REAL.long(), **(sizes | fields))


def packed(batch: Mapping[str, Tensor], real: Tensor = REAL) -> dict[str, Tensor]:
    """The tokens of a padded batch end to end in one row, without its mask and positions."""
    return {
        name: value[real][None] if value.shape[:2] == real.shape else value
        for name, value in batch.items()
        if name not in ("attention_mask", "position_ids")
    }


def positions(lengths: tuple[int, ...] | list[int] = LENGTHS) -> Tensor:
    return torch.cat([torch.arange(n) for n in lengths])[None]


def totals(lengths: tuple[int, ...] | list[int] = LENGTHS) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def ones() -> Tensor:
    return torch.ones(1, TOTAL, dtype=torch.long)


#: Ways to say where the sequences are.
GIVEN = {
    "positions": lambda: {"position_ids": positions()},
    "positions, ones": lambda: {"position_ids": positions(), "attention_mask": ones()},
    "totals": lambda: {"cu_seq_lens_q": totals(), "max_length_q": 8},
    "totals, ones": lambda: {"cu_seq_lens_q": totals(), "attention_mask": ones()},
    # Totals say where a sequence ends, positions only what is added to a token.
    "totals, through": lambda: {"cu_seq_lens_q": totals(), "position_ids": positions((TOTAL,))},
    "all": lambda: {
        "position_ids": positions(),
        **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), totals()),
        **dict.fromkeys(("max_length_q", "max_length_k"), 8),
    },
}
