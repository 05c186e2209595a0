"""BERTs of one token type, or with more than 512 positions, compared with transformers."""

import pytest
import torch

from tests.model.cases import assert_same_as_upstream, random_config, random_model


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({"type_vocab_size": 1}, 13),
        ({"max_position_embeddings": 1030}, 1030),
        ({"type_vocab_size": 1, "max_position_embeddings": 700}, 600),
    ],
)
def test_same_as_transformers(fields, length, prepared):
    config = random_config(5, **fields, hidden_size=20, num_attention_heads=2)
    model = random_model("BertModel", config, std=0.1)
    if prepared:
        model.prepare_for_inference()
    ids = torch.randint(3, config.vocab_size, (2, length))
    mask = (torch.arange(length) < torch.tensor([length, length // 2])[:, None]).long()
    batch = {"input_ids": ids * mask, "attention_mask": mask}
    for types in ({}, {"token_type_ids": torch.zeros_like(ids)}):
        assert_same_as_upstream(model, batch | types, with_gradients=not prepared)
