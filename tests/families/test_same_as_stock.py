"""Every model of every family equals transformers' own, and computes packed rows."""

import copy
import random

import pytest
import torch

import hf_bert_impl
from hf_bert_impl.families.table import longest_sequence
from tests.families.cases import (
    CLASSES,
    PREFIXES,
    assert_close,
    attended,
    count_stock_calls,
    random_batch,
    random_labels,
    random_stock,
)


@pytest.mark.parametrize("kind", ["right", "left", "holes", "both", "none"])
@pytest.mark.parametrize("name", CLASSES)
def test_prepared(name, kind, monkeypatch):
    seed = random.Random(name + kind).randrange(1000)
    stock = random_stock(name, seed, backend=("eager", "sdpa")[seed % 2])
    batch = random_batch(stock, kind, seed)
    if seed % 3 == 0 and "Multiple" not in name:
        batch["output_hidden_states"] = True
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "float32")
    calls = count_stock_calls(monkeypatch)
    with torch.no_grad():
        assert_close(model(**batch), stock(**batch), attended(batch))
    assert not calls


@pytest.mark.parametrize("kind", ["right", "left", "holes", "none"])
@pytest.mark.parametrize("name", [name for name in CLASSES if not name.endswith("Model")])
def test_loss_and_gradients(name, kind):
    seed = random.Random(kind + name).randrange(1000)
    stock = random_stock(name, seed, backend=("eager", "sdpa")[seed % 2])
    batch = random_batch(stock, kind, seed)
    batch |= random_labels(stock, batch, seed)
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "float32")
    for one in (model, stock):
        one.train(seed % 3 > 0)
    found, expected = model(**batch), stock(**batch)
    assert_close(found, expected, attended(batch))
    for result in (found, expected):
        result.loss.backward()
    for (path, ours), theirs in zip(model.named_parameters(), stock.parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None or not ours.grad.any(), path
        else:
            torch.testing.assert_close(ours.grad, theirs.grad, atol=2e-5, rtol=1e-4, msg=path)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_arguments(prefix, monkeypatch):
    stock = random_stock(f"{prefix}Model", 3)
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "float32")
    batch = random_batch(stock, "right")
    tokens, ids = attended(batch), batch["input_ids"]
    generator = torch.Generator().manual_seed(4)
    positions = torch.randint(3, stock.config.max_position_embeddings, ids.shape)
    cases = [
        {"position_ids": positions},
        {"position_ids": positions[:1]},
        {"input_ids": None, "inputs_embeds": stock.get_input_embeddings()(ids).detach()},
        {"attention_mask": None},
        {"input_ids": ids[:1], "attention_mask": None},
        {"return_dict": True, "output_hidden_states": True},
    ]
    if prefix not in ("DistilBert", "MPNet"):
        types = torch.randint(0, stock.config.type_vocab_size, ids.shape, generator=generator)
        cases.append({"token_type_ids": types})
    for case in cases:
        with torch.no_grad():
            given = batch | case
            read = tokens if given["attention_mask"] is not None else given["input_ids"] >= 0
            assert_close(model(**given), stock(**given), read)
    with torch.no_grad():
        given = (ids, batch["attention_mask"])
        found, expected = model(*given, return_dict=False), stock(*given, return_dict=False)
    assert type(found) is tuple and len(found) == len(expected)
    torch.testing.assert_close(found[0][tokens], expected[0][tokens], atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("XLMRobertaModel", {"pad_token_id": 0, "type_vocab_size": 1}),
        ("RobertaForMaskedLM", {"pad_token_id": 3, "vocab_size": 97}),
        ("ElectraModel", {"hidden_size": 30, "num_attention_heads": 3, "embedding_size": 30}),
        ("ElectraForPreTraining", {"hidden_size": 30, "num_attention_heads": 3}),
        ("DistilBertModel", {"n_layers": 0}),
        ("DistilBertModel", {"pad_token_id": 60, "chunk_size_feed_forward": 4}),
        ("MPNetModel", {"relative_attention_num_buckets": 33, "pad_token_id": 0}),
    ],
)
def test_odd_configs(name, fields, monkeypatch):
    stock = random_stock(name, 9, **({"embedding_size": 64} if "Electra" in name else {}) | fields)
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "float32")
    calls = count_stock_calls(monkeypatch)
    for kind in ("right", "holes"):
        batch = random_batch(stock, kind, length=12)
        with torch.no_grad():
            assert_close(model(**batch), stock(**batch), attended(batch))
    assert not calls


@pytest.mark.parametrize("prefix", PREFIXES)
def test_limits(prefix):
    """As many tokens as there are positions, and one more; a row of one token."""
    stock = random_stock(f"{prefix}Model", 8, max_position_embeddings=26, pad_token_id=1)
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "float32")
    longest = longest_sequence(stock.config)
    for length in (1, longest):
        batch = {"input_ids": torch.arange(3, 3 + 2 * length).view(2, length)}
        with torch.no_grad():
            assert_close(model(**batch), stock(**batch), attended(batch))
    with pytest.raises(ValueError, match=rf"has {longest + 1} tokens.*takes at most {longest} "):
        model(torch.full((1, longest + 1), 5))
    with pytest.raises((IndexError, RuntimeError)):
        stock(torch.full((1, longest + 1), 5))


@pytest.mark.parametrize("prefix", PREFIXES)
def test_packed_input_is_as_its_texts_alone(prefix):
    stock = random_stock(f"{prefix}Model", 5)
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "float32")
    lengths = [7, 2, 7, 11]
    texts = [torch.randint(3, stock.config.vocab_size, (1, length)) for length in lengths]
    totals = torch.tensor([0, *lengths]).cumsum(0)
    with torch.no_grad():
        found = model(torch.cat(texts, dim=1), cu_seq_lens_q=totals.int())
        for number, (text, states) in enumerate(
            zip(texts, found.last_hidden_state[0].split(lengths), strict=True)
        ):
            alone = stock(text)
            torch.testing.assert_close(states, alone.last_hidden_state[0], atol=2e-5, rtol=0)
            if "pooler_output" in alone:
                pooled = found.pooler_output[number]
                torch.testing.assert_close(pooled, alone.pooler_output[0], atol=2e-5, rtol=0)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_packed_labels(prefix):
    """Packed input has the same loss as one row per text."""
    stock = random_stock(f"{prefix}ForMaskedLM", 5)
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "float32").train()
    batch = random_batch(stock, "right")
    batch |= random_labels(stock, batch)
    tokens = attended(batch)
    packed = {name: batch[name][tokens][None] for name in ("input_ids", "labels")}
    totals = torch.tensor([0, *tokens.sum(1).tolist()]).cumsum(0).int()
    found, expected = model(**packed, cu_seq_lens_q=totals), stock(**batch)
    torch.testing.assert_close(found.loss, expected.loss, atol=2e-5, rtol=0)
    torch.testing.assert_close(found.logits[0], expected.logits[tokens], atol=2e-5, rtol=0)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_packed_classes(prefix):
    """Packed input has one row of scores per text."""
    stock = random_stock(f"{prefix}ForSequenceClassification", 6)
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "float32")
    batch = random_batch(stock, "right")
    tokens = attended(batch)
    totals = torch.tensor([0, *tokens.sum(1).tolist()]).cumsum(0).int()
    with torch.no_grad():
        found = model(batch["input_ids"][tokens][None], cu_seq_lens_q=totals)
        torch.testing.assert_close(found.logits, stock(**batch).logits, atol=2e-5, rtol=0)
