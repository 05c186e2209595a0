"""The codertimo variant by every way of computing, and with every head."""

import itertools

import pytest
import torch

from hf_bert_impl import BertForPreTraining
from tests.model.cases import (
    BACKENDS,
    ENCODER_HEADS,
    MASKED_LM,
    NO_DROPOUT,
    assert_same,
    assert_same_gradients,
    gradients,
    largest,
    outputs,
    random_batch,
    random_labels,
    random_model,
)
from tests.model.codertimo.test_codertimo import codertimo, codertimo_batch, codertimo_config


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_free_or_not(backend):
    model, batch, real = codertimo(attn_implementation=backend)
    wanted = dict(output_hidden_states=True, output_attentions=True)
    expected = outputs(model, batch, **wanted)
    of_queries = real[:, None, None, :].expand(-1, -1, real.shape[1], -1)
    for padding_free, mask in itertools.product((True, False), (None, real.long(), of_queries)):
        model.config.padding_free = padding_free
        found = outputs(model, batch, attention_mask=mask, **wanted)
        assert_same(found, expected, real)


def test_an_explicit_mask_is_used():
    model, batch, real = codertimo("BertModel")
    ones = torch.ones_like(batch["input_ids"])
    own = outputs(model, batch).last_hidden_state
    all_seen = outputs(model, batch, attention_mask=ones).last_hidden_state
    longest = outputs(model, {name: x[:1] for name, x in batch.items()}).last_hidden_state
    assert largest((own - all_seen)[1:][real[1:]]) > 1e-3
    assert largest(all_seen[0] - longest[0]) < 1e-5
    assert largest(own[0] - longest[0]) < 1e-5


def test_without_token_types_all_is_the_first_sentence():
    model, batch, real = codertimo("BertModel")
    ids = batch["input_ids"]
    with torch.no_grad():
        given = model(ids, token_type_ids=real.long()).last_hidden_state
        left_out = model(ids).last_hidden_state
        embeds = model.embeddings.word_embeddings(ids)
        embedded = model(inputs_embeds=embeds, attention_mask=real).last_hidden_state
    assert torch.equal(given, left_out)
    assert largest(embedded - left_out) < 1e-6


@pytest.mark.parametrize("head", MASKED_LM)
def test_sparse_prediction(head):
    model, batch, _ = codertimo(head, **NO_DROPOUT)
    batch |= random_labels(head, model.train().config, batch)
    results = []
    for sparse in (True, False):
        model.config.sparse_prediction = sparse
        output = model(**batch)
        assert output[1].ndim == (2 if sparse else 3)
        results.append((output.loss, gradients(model, output.loss)))
    assert largest(results[0][0] - results[1][0]) < 1e-5
    assert_same_gradients(results[0][1], results[1][1])


def test_compiled():
    """One trace after the other: from the second shape on, sizes are symbols."""
    model, _, _ = codertimo("BertModel")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for lengths, has_positions in (((11, 4, 7), False), ((5, 8), True), ((3, 9), True)):
        batch, real = codertimo_batch(model.config, lengths)
        if has_positions:  # one row of them might have come packed
            batch = {name: x[:1] for name, x in batch.items()}
            batch["position_ids"] = torch.arange(max(lengths))[None] + 2
            real = real[:1]
        batch["attention_mask"] = real
        assert_same(outputs(compiled, batch), outputs(model, batch), batch)


def test_bfloat16_stays_close():
    model, batch, real = codertimo("BertModel")
    precise = outputs(model, batch).last_hidden_state
    rounded = outputs(model.bfloat16(), batch).last_hidden_state
    assert rounded.dtype == torch.bfloat16
    assert largest((rounded.float() - precise)[real]) < 0.05 * largest(precise)


@pytest.mark.parametrize("head", ENCODER_HEADS)
def test_every_head_trains_saves_and_loads(tmp_path, head):
    config = codertimo_config(head=head)
    model = random_model(head, config)
    assert not any("pooler" in name or "transform." in name for name in model.state_dict())
    batch = random_batch(head, config, None)
    batch["input_ids"].clamp_(min=1)
    model.train()
    output = model(**batch, **random_labels(head, config, batch))
    loss = output.last_hidden_state.sum() if head == "BertModel" else output.loss
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.eval().save_pretrained(tmp_path)
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert_same(outputs(again, batch), outputs(model, batch), batch)


def test_resized_vocabulary(tmp_path):
    model, batch, _ = codertimo()
    size = model.config.vocab_size + 6
    keys = set(model.state_dict())
    model.resize_token_embeddings(size)
    assert set(model.state_dict()) == keys
    assert model.cls.predictions.decoder.out_features == size
    model.save_pretrained(tmp_path)
    found = outputs(BertForPreTraining.from_pretrained(tmp_path), batch)
    assert found.prediction_logits.shape[-1] == size
    assert_same(found, outputs(model, batch), batch)
