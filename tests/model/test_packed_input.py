"""Sequences end to end in one row: never attending across, one pooled vector each."""

import pytest
import torch
from transformers import DataCollatorWithFlattening

from tests.model.cases import random_config, random_labels, random_model

LENGTHS = (5, 1, 8, 5, 3)
BACKENDS = ("eager", "sdpa")


def sequences(config, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "input_ids": torch.randint(1, config.vocab_size, (n,), generator=generator),
            "token_type_ids": torch.randint(0, config.type_vocab_size, (n,), generator=generator),
        }
        for n in LENGTHS
    ]


def packed(rows):
    """One row, as DataCollatorWithFlattening lays it out, with token types."""
    return {name: torch.cat([row[name] for row in rows])[None] for name in rows[0]}


def positions():
    return torch.cat([torch.arange(n) for n in LENGTHS])[None]


def totals():
    return torch.tensor([0, *LENGTHS]).cumsum(0).int()


FORMS = {
    "positions": lambda: {"position_ids": positions()},
    "totals": lambda: {"cu_seq_lens_q": totals(), "max_length_q": 8},
    "both": lambda: {
        "position_ids": positions(),
        "cu_seq_lens_q": totals(),
        "cu_seq_lens_k": totals(),
        "max_length_q": 8,
        "max_length_k": 8,
    },
}


def alone(model, rows):
    with torch.no_grad():
        return [model(**{k: v[None] for k, v in row.items()}) for row in rows]


@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("kind", ["absolute", "relative_key_query", "sinusoidal"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_sequence_is_as_if_alone(backend, form, kind, padding_free):
    config = random_config(
        1,
        type_vocab_size=3,
        position_embedding_type=kind,
        attn_implementation=backend,
        padding_free=padding_free,
    )
    model = random_model("BertModel", config)
    rows = sequences(config)
    with torch.no_grad():
        output = model(**packed(rows), **FORMS[form](), output_hidden_states=True)
    assert output.last_hidden_state.shape == (1, 22, config.hidden_size)
    assert output.pooler_output.shape == (len(LENGTHS), config.hidden_size)
    start = 0
    for number, single in enumerate(alone(model, rows)):
        stop = start + LENGTHS[number]
        states = output.last_hidden_state[0, start:stop]
        assert (states - single.last_hidden_state[0]).abs().max() < 1e-5
        assert (output.pooler_output[number] - single.pooler_output[0]).abs().max() < 1e-5
        assert output.hidden_states[1].shape == (1, 22, config.hidden_size)
        start = stop


def test_the_collator_of_transformers():
    config = random_config(2, "BertForTokenClassification")
    model = random_model("BertForTokenClassification", config)
    rows = [{"input_ids": row["input_ids"].tolist()} for row in sequences(config)]
    for options in ({}, {"return_flash_attn_kwargs": True}):
        batch = DataCollatorWithFlattening(return_tensors="pt", **options)(
            [{**row, "labels": [1] * len(row["input_ids"])} for row in rows]
        )
        batch.pop("labels")
        with torch.no_grad():
            logits = model(**batch).logits
            single = model(torch.tensor([rows[2]["input_ids"]])).logits
        assert (logits[0, 6:14] - single[0]).abs().max() < 1e-5


def test_a_changed_document_leaves_the_others_bit_by_bit():
    config = random_config(1, type_vocab_size=3)
    model = random_model("BertModel", config)
    batch = packed(sequences(config)) | FORMS["positions"]()
    with torch.no_grad():
        before = model(**batch).last_hidden_state[0]
        batch["input_ids"][0, 7] = (batch["input_ids"][0, 7] + 1) % config.vocab_size
        after = model(**batch).last_hidden_state[0]
    assert torch.equal(before[:6], after[:6])
    assert torch.equal(before[14:], after[14:])
    assert not torch.equal(before[6:14], after[6:14])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "head",
    [
        "BertForPreTraining",
        "BertForMaskedLM",
        "BertForNextSentencePrediction",
        "BertForSequenceClassification",
        "BertForTokenClassification",
    ],
)
def test_losses_equal_those_of_the_padded_batch(head, training):
    config = random_config(
        3,
        head,
        type_vocab_size=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout=0.0,
    )
    model = random_model(head, config).train(training)
    rows = sequences(config)
    flat = packed(rows)
    padded = {
        name: torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], batch_first=True)
        for name in flat
    }
    mask = torch.arange(8) < torch.tensor(LENGTHS)[:, None]
    labels = random_labels(head, config, padded)
    flat_labels = dict(labels)
    if "labels" in labels and labels["labels"].dim() == 2:
        labels["labels"] = labels["labels"].masked_fill(~mask, -100)
        flat_labels["labels"] = labels["labels"][mask][None]
    a = model(**padded, attention_mask=mask.long(), **labels)
    b = model(**flat, position_ids=positions(), **flat_labels)
    assert torch.allclose(a.loss, b.loss, rtol=1e-5)
    a.loss.backward()
    padded_gradients = {
        n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
    }
    model.zero_grad()
    b.loss.backward()
    for name, gradient in padded_gradients.items():
        other = model.get_parameter(name).grad
        assert (gradient - other).abs().max() < 2e-5 * gradient.abs().max().clamp(min=0.1), name


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_decoder_does_not_look_back_into_another_document(backend, use_cache):
    config = random_config(1, "BertLMHeadModel", attn_implementation=backend)
    model = random_model("BertLMHeadModel", config)
    rows = [{"input_ids": row["input_ids"]} for row in sequences(config)]
    with torch.no_grad():
        logits = model(**packed(rows), position_ids=positions(), use_cache=use_cache).logits
    start = 0
    for number, single in enumerate(alone(model, rows)):
        stop = start + LENGTHS[number]
        assert (logits[0, start:stop] - single.logits[0]).abs().max() < 1e-5
        start = stop


def test_compiled():
    config = random_config(1, type_vocab_size=3, num_hidden_layers=2)
    model = random_model("BertModel", config)
    batch = packed(sequences(config)) | FORMS["positions"]()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        a = model(**batch).last_hidden_state
        b = compiled(**batch).last_hidden_state
        # Positions that are no runs: one sequence.
        one = {**batch, "position_ids": positions().flip(1)}
        c, d = model(**one).last_hidden_state, compiled(**one).last_hidden_state
    assert (a - b).abs().max() < 1e-5
    assert (c - d).abs().max() < 1e-5


def test_positions_that_are_no_packed_input():
    """Random positions, a batch of several rows, or a mask: upstream's meaning holds."""
    config = random_config(1, type_vocab_size=3)
    model = random_model("BertModel", config)
    batch = packed(sequences(config))
    for given in (
        {"position_ids": torch.tensor([[0, 2, 1] * 7 + [0]])},
        {"position_ids": positions(), "attention_mask": torch.ones(1, 22)},
    ):
        assert model(**batch, **given).pooler_output.shape[0] == 1


@pytest.mark.parametrize("wrong", [[0, 5, 21], [0, 5, 5, 22], [1, 22], [0], [0, 30, 22]])
def test_totals_that_do_not_fit(wrong):
    config = random_config(1, type_vocab_size=3)
    model = random_model("BertModel", config)
    with pytest.raises(ValueError, match="cu_seq_lens_q"):
        model(**packed(sequences(config)), cu_seq_lens_q=torch.tensor(wrong))


def test_labels_are_one_a_sequence():
    config = random_config(1, "BertForSequenceClassification", num_labels=3, type_vocab_size=3)
    model = random_model("BertForSequenceClassification", config)
    batch = packed(sequences(config)) | FORMS["positions"]()
    with pytest.raises(ValueError, match=r"this batch needs \(5,\)"):
        model(**batch, labels=torch.tensor([1]))
    assert model(**batch, labels=torch.tensor([0, 1, 2, 0, 1])).logits.shape == (5, 3)


def test_a_compiled_decoder_with_a_cache_sees_its_past():
    """One row, positions and no mask: a step of generation, not packed input."""
    config = random_config(1, "BertLMHeadModel", num_hidden_layers=2)
    model = random_model("BertLMHeadModel", config)
    tokens = torch.tensor([[3, 4, 5, 6, 7]])
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        whole = model(tokens).logits[:, 3:]
        past = model(tokens[:, :3]).past_key_values
        position_ids = torch.tensor([[3, 4]])
        step = compiled(tokens[:, 3:], position_ids=position_ids, past_key_values=past).logits
    assert (whole - step).abs().max() < 1e-5
