"""Random plain models and batches compared with the BERT of lesson 4, from a seed."""

import random
from dataclasses import fields

import pytest
import torch

import bert
from tests.fuzz.test_differential import SEED, TRIALS
from tests.model.cases import (
    assert_same_gradients,
    gradients,
    masks,
    random_batch,
    random_config,
    random_labels,
    random_model,
)

HEAD = "BertForPreTraining"


@pytest.mark.parametrize("seed", range(SEED, SEED + TRIALS))
def test_trial(seed):
    rng = random.Random(seed)
    padding = rng.choice(["right", "left", "both", "holes"])
    config = random_config(
        seed,
        HEAD,
        hidden_act="gelu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        tie_word_embeddings=True,
        type_vocab_size=2,
        padding_free=rng.random() < 0.8,
        attn_implementation=rng.choice(["eager", "sdpa"]),
    )
    ours = random_model(HEAD, config, seed)
    lesson = bert.BertForPreTraining(
        bert.Config(**{field.name: getattr(config, field.name) for field in fields(bert.Config)})
    )
    bert.load(lesson, ours.state_dict())
    mask = masks(seed=seed)[padding]
    batch = random_batch(HEAD, config, mask, seed)
    del batch["position_ids"]
    real = mask == 1

    expected = lesson(*(batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")))
    with torch.inference_mode():
        if rng.random() < 0.5:
            ours.prepare_for_inference()
        found = ours(**batch)
    for one, other in (
        (found.prediction_logits[real], expected[0][real]),
        (found.seq_relationship_logits, expected[1]),
    ):
        assert (one - other).abs().max() <= 1e-4 * other.abs().max(), config

    batch |= random_labels(HEAD, config, batch)
    batch["labels"][~real] = -100
    batch["labels"][:, 3] = 1
    found, expected = ours.train()(**batch).loss, lesson.loss(batch)
    assert (found - expected).abs() <= 1e-4 * expected.abs().clamp(min=1), config
    assert_same_gradients(gradients(ours, found), gradients(lesson, expected), 2.5e-4)
