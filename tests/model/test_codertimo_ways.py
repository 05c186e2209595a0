"""The codertimo variant by every way of computing, and with every head."""

import pytest
import torch
from torch.nn import functional

import hf_bert_impl
from hf_bert_impl import BertForMaskedLM, BertForPreTraining
from tests.model.cases import HEADS, random_batch, random_labels, random_model
from tests.model.test_codertimo import BACKENDS, codertimo_batch, codertimo_config, largest


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_free_or_not(backend):
    config = codertimo_config(attn_implementation=backend)
    model = random_model("BertForPreTraining", config)
    batch, real = codertimo_batch(config)
    outputs = []
    for padding_free in (True, False):
        model.config.padding_free = padding_free
        for mask in (None, real.long(), real[:, None, None, :] & real[:, None, :, None].any()):
            if mask is not None and mask.ndim == 4:
                mask = mask.expand(-1, -1, real.shape[1], -1)
            with torch.no_grad():
                outputs.append(
                    model(
                        **batch,
                        attention_mask=mask,
                        output_hidden_states=True,
                        output_attentions=True,
                    )
                )
    for other in outputs[1:]:
        for a, b in zip(outputs[0].hidden_states, other.hidden_states, strict=True):
            assert largest((a - b)[real]) < 1e-5
        for a, b in zip(outputs[0].attentions, other.attentions, strict=True):
            assert largest((a - b).transpose(1, 2)[real]) < 1e-5
        assert largest((outputs[0][0] - other[0])[real]) < 3e-5
        assert largest(outputs[0][1] - other[1]) < 1e-5


def test_an_explicit_mask_is_used():
    config = codertimo_config(head="BertModel")
    model = random_model("BertModel", config)
    batch, real = codertimo_batch(config)
    ones = torch.ones_like(batch["input_ids"])
    with torch.no_grad():
        own = model(**batch).last_hidden_state
        all_seen = model(**batch, attention_mask=ones).last_hidden_state
        longest = model(**{name: x[:1] for name, x in batch.items()}).last_hidden_state
    assert largest((own - all_seen)[1:][real[1:]]) > 1e-3
    assert largest(all_seen[0] - longest[0]) < 1e-5
    assert largest(own[0] - longest[0]) < 1e-5


def test_without_token_types_all_is_the_first_sentence():
    config = codertimo_config(head="BertModel")
    model = random_model("BertModel", config)
    batch, real = codertimo_batch(config)
    ids = batch["input_ids"]
    with torch.no_grad():
        given = model(ids, token_type_ids=real.long()).last_hidden_state
        left_out = model(ids).last_hidden_state
        embeds = model.embeddings.word_embeddings(ids)
        embedded = model(inputs_embeds=embeds, attention_mask=real).last_hidden_state
    assert torch.equal(given, left_out)
    assert largest(embedded - left_out) < 1e-6


@pytest.mark.parametrize("form", ["position_ids", "cu_seq_lens_q"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_input(backend, form):
    config = codertimo_config(attn_implementation=backend)
    model = random_model("BertForPreTraining", config)
    batch, real = codertimo_batch(config)
    lengths = real.sum(1)
    packed = {name: x[real][None] for name, x in batch.items()}
    if form == "position_ids":
        packed[form] = torch.cat([torch.arange(int(n)) for n in lengths])[None]
    else:
        packed[form] = functional.pad(lengths.cumsum(0), (1, 0)).int()
    with torch.no_grad():
        together = model(**packed, output_hidden_states=True)
        apart = model(**batch, output_hidden_states=True)
    assert largest(together.prediction_logits[0] - apart.prediction_logits[real]) < 3e-5
    assert largest(together.seq_relationship_logits - apart.seq_relationship_logits) < 1e-5
    assert largest(together.hidden_states[1][0] - apart.hidden_states[1][real]) < 1e-5


@pytest.mark.parametrize("head", [BertForPreTraining, BertForMaskedLM])
def test_sparse_prediction(head):
    config = codertimo_config(head=head.__name__, attention_probs_dropout_prob=0.0)
    config.hidden_dropout_prob = 0.0
    model = random_model(head.__name__, config).train()
    batch, _ = codertimo_batch(config)
    labels = random_labels(head.__name__, config, batch)
    results = []
    for sparse in (True, False):
        model.config.sparse_prediction = sparse
        model.zero_grad()
        output = model(**batch, **labels)
        output.loss.backward()
        results.append((output.loss.detach(), [p.grad.clone() for p in model.parameters()]))
        first = output[1]
        assert first.ndim == (2 if sparse else 3)
    assert largest(results[0][0] - results[1][0]) < 1e-5
    for a, b in zip(results[0][1], results[1][1], strict=True):
        assert largest(a - b) < 1e-5 * max(1.0, largest(b))


def test_head_mask_and_pruning():
    config = codertimo_config(seed=4, num_attention_heads=5, hidden_size=30)
    model = random_model("BertForPreTraining", config)
    batch, real = codertimo_batch(config)
    mask = torch.ones(3, 5)
    mask[1, [0, 3]] = 0
    with torch.no_grad():
        masked = model(**batch, head_mask=mask, output_attentions=True)
        model.prune_heads({1: [0, 3]})
        pruned = model(**batch)
    assert not masked.attentions[1][:, [0, 3]].any()
    assert largest((masked[0] - pruned[0])[real]) < 3e-5


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(reentrant):
    config = codertimo_config()
    model = random_model("BertForPreTraining", config).train()
    batch, _ = codertimo_batch(config)
    labels = random_labels("BertForPreTraining", config, batch)
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.zero_grad()
        torch.manual_seed(3)
        model(**batch, **labels).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        assert largest(a - b) < 1e-5 * max(1.0, largest(a))


def test_compiled():
    """One trace after the other: from the second shape on, sizes are symbols."""
    config = codertimo_config(head="BertModel")
    model = random_model("BertModel", config)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for lengths, has_positions in (((11, 4, 7), False), ((5, 8), True), ((3, 9), True)):
        batch, real = codertimo_batch(config, lengths)
        if has_positions:  # one row of them might have come packed
            batch = {name: x[:1] for name, x in batch.items()}
            batch["position_ids"] = torch.arange(max(lengths))[None] + 2
            real = real[:1]
        with torch.no_grad():
            difference = model(**batch)[0] - compiled(**batch)[0]
        assert largest(difference[real]) < 1e-5


def test_feed_forward_in_chunks():
    config = codertimo_config(head="BertModel")
    model = random_model("BertModel", config)
    batch, _ = codertimo_batch(config)
    with torch.no_grad():
        whole = model(**batch).last_hidden_state
        for layer in model.encoder.layer:
            layer.chunk_size_feed_forward = 4
        assert largest(model(**batch).last_hidden_state - whole) < 1e-5


def test_bfloat16_stays_close():
    config = codertimo_config(head="BertModel")
    model = random_model("BertModel", config)
    batch, real = codertimo_batch(config)
    with torch.no_grad():
        precise = model(**batch).last_hidden_state
        rounded = model.bfloat16()(**batch).last_hidden_state
    assert rounded.dtype == torch.bfloat16
    assert largest((rounded.float() - precise)[real]) < 0.05 * largest(precise)


def test_prepare_for_inference_computes_as_usual():
    model = random_model("BertModel", codertimo_config(head="BertModel"))
    batch, _ = codertimo_batch(model.config)
    with torch.no_grad():
        before = model(**batch).last_hidden_state
        model.prepare_for_inference()
        assert model.encoder.prepared is None
        assert torch.equal(model(**batch).last_hidden_state, before)


# Every head.

ENCODER_HEADS = [head for head in HEADS if head != "BertLMHeadModel"]


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
    again, info = getattr(hf_bert_impl, head).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        assert largest(model(**batch)[0] - again(**batch)[0]) < 1e-5


def test_resized_vocabulary(tmp_path):
    config = codertimo_config()
    model = random_model("BertForPreTraining", config)
    size = config.vocab_size + 6
    keys = set(model.state_dict())
    model.resize_token_embeddings(size)
    assert set(model.state_dict()) == keys
    assert model.cls.predictions.decoder.out_features == size
    batch, _ = codertimo_batch(config)
    model.save_pretrained(tmp_path)
    again = BertForPreTraining.from_pretrained(tmp_path)
    with torch.no_grad():
        assert model(**batch).prediction_logits.shape[-1] == size
        assert largest(model(**batch)[0] - again(**batch)[0]) < 1e-5
