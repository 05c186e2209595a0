"""The codertimo variant: compared with its software's formulas in float64.

`tests/conversion/test_convert.py` compares the outputs of the software itself.
"""

import math

import pytest
import torch
from torch.nn import functional

from hf_bert_impl import BertForNextSentencePrediction, BertModel
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS
from tests.model.cases import (
    assert_same,
    largest,
    outputs,
    random_config,
    random_labels,
    random_model,
)


def codertimo(**fields):
    """A random model, a batch as the original's data set makes it, and what is not padding."""
    values = dict(hidden_size=15, num_attention_heads=5, intermediate_size=52)
    values |= dict(num_hidden_layers=3, max_position_embeddings=23)
    config = random_config(3, "BertForPreTraining", **(CODERTIMO_FIELDS | values | fields))
    generator = torch.Generator().manual_seed(0)
    real = torch.arange(11) < torch.tensor((11, 4, 7, 1, 7))[:, None]
    ids = torch.randint(1, config.vocab_size, real.shape, generator=generator) * real
    segments = (1 + (torch.arange(11) > 2).long()) * real  # padding is 0 in both
    model = random_model("BertForPreTraining", config)
    return model, {"input_ids": ids, "token_type_ids": segments}, real


# What follows is the original's arithmetic, from its formulas. `p` are the dropout probabilities.


def original_positions(length, width):
    column = torch.arange(width, dtype=torch.float64)
    angle = torch.arange(length)[:, None] * torch.exp(-(column // 2 * 2) * math.log(1e4) / width)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())


def original_loss(w, config, batch, labels, p=0.0, p_attention=0.0):
    def drop(x, rate=p):
        return functional.dropout(x, rate, training=rate > 0)

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        normed = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)
        return w[f"{name}.weight"] * normed + w[f"{name}.bias"]

    def embed(ids, name):
        return functional.embedding(ids, w[f"bert.embeddings.{name}.weight"], padding_idx=0)

    def by_head(x, name):
        return linear(x, name).unflatten(-1, (config.num_attention_heads, -1)).transpose(1, 2)

    ids = batch["input_ids"]
    x = embed(ids, "word_embeddings") + original_positions(ids.shape[1], config.hidden_size)
    x = drop(x + embed(batch["token_type_ids"], "token_type_embeddings"))
    for number in range(config.num_hidden_layers):
        block = f"bert.encoder.layer.{number}"
        normed = norm(x, f"{block}.attention.output.LayerNorm")
        query, key, value = (
            by_head(normed, f"{block}.attention.self.{name}") for name in ("query", "key", "value")
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        scores = scores.masked_fill((ids > 0)[:, None, None, :] == 0, -1e9)
        attended = drop(scores.softmax(-1), p_attention) @ value
        attended = attended.transpose(1, 2).flatten(2)
        x = x + drop(linear(attended, f"{block}.attention.output.dense"))
        inner = linear(norm(x, f"{block}.output.LayerNorm"), f"{block}.intermediate.dense")
        inner = functional.gelu(inner, approximate="tanh")
        x = drop(x + drop(linear(drop(inner), f"{block}.output.dense")))
    nsp = linear(x[:, 0], "cls.seq_relationship")
    mlm = linear(x, "cls.predictions.decoder").transpose(1, 2)
    losses = (nsp, labels["next_sentence_label"]), (mlm, labels["labels"])
    return sum(functional.cross_entropy(*each) for each in losses)


@pytest.mark.parametrize(
    ("backend", "padding_free", "dropout"),
    [
        ("eager", True, {}),
        ("sdpa", True, {}),
        ("sdpa", False, {}),
        # Same seed, same random numbers in the same order: dropout is where the original has it.
        ("eager", False, dict(p=0.13, p_attention=0.17)),
    ],
)
def test_gradients_are_the_originals(backend, padding_free, dropout):
    model, batch, real = codertimo(attn_implementation=backend, padding_free=padding_free)
    # In float64, the position table too, which is kept rounded to the model's dtype.
    model.double().bert.embeddings.position_embeddings.reset_table()
    labels = random_labels("BertForPreTraining", model.config, batch)
    labels["labels"][~real] = -100
    state = model.state_dict()
    assert not any("position" in name for name in state)
    weights = {name: state[name].detach().clone().requires_grad_() for name in state}
    torch.manual_seed(5)
    theirs = original_loss(weights, model.config, batch, labels, **dropout)
    theirs.backward()
    torch.manual_seed(5)
    ours = model.train(bool(dropout))(**batch, **labels).loss
    ours.backward()
    assert largest(ours - theirs) < 1e-10
    for name, parameter in model.named_parameters():
        assert largest(parameter.grad - weights[name].grad) < 1e-9, name
    assert not model.bert.embeddings.word_embeddings.weight.grad[0].any()


def test_new_weights_are_initialised(tmp_path):
    """A checkpoint of the encoder alone, as the original's trainer saves it, takes heads."""
    codertimo()[0].bert.save_pretrained(tmp_path)
    model, info = BertForNextSentencePrediction.from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"] == {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}
    assert not info["unexpected_keys"]
    fresh = BertModel(model.config)
    assert bool((fresh.encoder.layer[0].output.LayerNorm.weight == 1).all())
    assert not fresh.embeddings.token_type_embeddings.weight[0].any()


def test_padding_is_told_by_the_ids():
    model, batch, real = codertimo()
    wanted = dict(output_hidden_states=True, output_attentions=True)
    expected = outputs(model, batch, **wanted)
    of_queries = real[:, None, None, :].expand(-1, -1, real.shape[1], -1)
    for mask in (real.long(), of_queries):
        assert_same(outputs(model, batch, attention_mask=mask, **wanted), expected, real)
    ones = torch.ones_like(batch["input_ids"])  # a mask that is given is used
    seen = outputs(model, batch, attention_mask=ones).prediction_logits
    assert largest((seen - expected.prediction_logits)[1:][real[1:]]) > 1e-3
