"""Several sequences end to end in one row, and what says so."""

import torch

from tests.model.cases import outputs, random_config, random_model

LENGTHS = (5, 1, 8, 5, 3)
TOTAL = sum(LENGTHS)
#: Positions of two rows, the first of which holds two sequences.
TWO_ROWS = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6]])


def model_and_rows(head="BertModel", seed=1, way="as it comes", **fields):
    """A random model, and five sequences for it as (S,) tensors of ids and token types."""
    # Tracing a layer takes its time. Where every layer computes all tokens, one stands for all.
    layers = 2 if way == "as it comes" else 1
    sizes = dict(type_vocab_size=3, num_hidden_layers=layers, max_position_embeddings=33)
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


def packed(rows):
    """One row, as DataCollatorWithFlattening lays it out, with token types."""
    return {name: torch.cat([row[name] for row in rows])[None] for name in rows[0]}


def positions(lengths=LENGTHS):
    return torch.cat([torch.arange(n) for n in lengths])[None]


def totals(lengths=LENGTHS):
    return torch.tensor([0, *lengths]).cumsum(0).int()


def ones():
    return torch.ones(1, TOTAL, dtype=torch.long)


def through():
    """The positions of one sequence."""
    return torch.arange(TOTAL)[None]


#: Ways to say where the sequences are.
GIVEN = {
    "positions": lambda: {"position_ids": positions()},
    "positions, ones": lambda: {"position_ids": positions(), "attention_mask": ones()},
    "totals": lambda: {"cu_seq_lens_q": totals(), "max_length_q": 8},
    "totals, ones": lambda: {"cu_seq_lens_q": totals(), "attention_mask": ones()},
    # Totals say where a sequence ends, positions only what is added to a token.
    "totals, positions through": lambda: {"cu_seq_lens_q": totals(), "position_ids": through()},
    "all": lambda: {
        "position_ids": positions(),
        **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), totals()),
        **dict.fromkeys(("max_length_q", "max_length_k"), 8),
    },
}
#: Ways to run a model.
WAYS = {
    "as it comes": lambda model: model,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "compiled whole": lambda model: torch.compile(model, backend="eager", fullgraph=True),
}


def alone(model, rows, given="positions", **options):
    """The outputs of each sequence by itself."""
    places = through() if "through" in given else positions()
    return [
        outputs(model, {k: v[None] for k, v in row.items()}, position_ids=place, **options)
        for row, place in zip(rows, places.split(LENGTHS, 1), strict=True)
    ]


def assert_as_alone(found, expected, tolerance=2e-5):
    """Compares the outputs of one row with those of its sequences, each computed alone."""
    for key, first in expected[0].items():
        parts = [single[key] for single in expected]
        if isinstance(first, torch.Tensor):
            compared = [(found[key], parts)]
        elif isinstance(first, tuple):
            compared = zip(found[key], zip(*parts, strict=True), strict=True)
        else:
            continue  # a cache
        for value, pieces in compared:
            by_token = value.ndim == 3 or key in ("start_logits", "end_logits")
            whole = torch.cat(list(pieces), 1 if by_token else 0)
            assert value.shape == whole.shape, key
            assert (value - whole).abs().max() < tolerance, key
