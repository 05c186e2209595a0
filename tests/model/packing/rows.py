"""Several sequences end to end in one row, and what says so."""

from typing import Any

import torch

from tests.model.cases import random_config, random_model

LENGTHS = (5, 1, 8, 5, 3)
TOTAL = sum(LENGTHS)


def model_and_rows(head: str = "BertModel", seed: int = 1, **fields: Any) -> tuple[Any, list[dict]]:
    """A random model, and five sequences for it as (S,) tensors of ids and token types."""
    sizes = dict(type_vocab_size=3, num_hidden_layers=2, max_position_embeddings=33)
    config = random_config(seed, head, **(sizes | fields))
    generator = torch.Generator().manual_seed(0)
    rows = [
        {
            "input_ids": torch.randint(1, config.vocab_size, (n,), generator=generator),
            "token_type_ids": torch.randint(0, config.type_vocab_size, (n,), generator=generator),
        }
        for n in LENGTHS
    ]
    return random_model(head, config), rows


def packed(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """One row, as DataCollatorWithFlattening lays it out, with token types."""
    return {name: torch.cat([row[name] for row in rows])[None] for name in rows[0]}


def positions(lengths: tuple[int, ...] | list[int] = LENGTHS) -> torch.Tensor:
    return torch.cat([torch.arange(n) for n in lengths])[None]


def totals(lengths: tuple[int, ...] | list[int] = LENGTHS) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def ones() -> torch.Tensor:
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
