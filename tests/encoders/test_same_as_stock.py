"""Every head of every architecture equals transformers' own, and computes packed rows."""

import copy
import inspect
import random

import pytest
import torch

import hf_bert_impl
from hf_bert_impl.encoders.lengths import longest_sequence
from tests.encoders.cases import (
    ALL,
    CLASSES,
    HEADS,
    PREFIXES,
    assert_close,
    attended,
    count_stock_calls,
    layers_of,
    random_batch,
    random_labels,
    random_stock,
)


@pytest.mark.parametrize("name", CLASSES)
def test_outputs_losses_and_gradients(name, monkeypatch):
    seed = random.Random(name).randrange(1000)
    stock = random_stock(name, seed, backend=("eager", "sdpa")[seed % 2])
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "float32")
    for number, kind in enumerate(["right", "left", "holes", "both", "none"]):
        batch = random_batch(stock, kind, seed)
        with monkeypatch.context() as patch, torch.no_grad():
            calls = count_stock_calls(patch)
            states = {} if "Multiple" in name else {"output_hidden_states": number % 2 == 0}
            assert_close(model(**batch, **states), stock(**batch, **states), attended(batch))
            # A head that reads padding far from all tokens: stock's own attention decides.
            assert not calls or name.startswith("ModernBertFor")
        if name.endswith("Model"):
            continue
        for one in (model, stock):
            one.train(number % 3 > 0).zero_grad()
        labels = random_labels(stock, batch, seed)
        found, expected = model(**batch, **labels), stock(**batch, **labels)
        assert_close(found, expected, attended(batch))
        for result in (found, expected):
            result.loss.backward()
        for (path, ours), theirs in zip(model.named_parameters(), stock.parameters(), strict=True):
            if theirs.grad is None:
                assert ours.grad is None or not ours.grad.any(), path
            else:
                torch.testing.assert_close(ours.grad, theirs.grad, atol=2e-5, rtol=1e-4, msg=path)
        for one in (model, stock):
            one.eval()
        hf_bert_impl.optimize(model, "float32")  # after training


@pytest.mark.parametrize("length", [1, 3, 4, 5, 9, 500])
@pytest.mark.parametrize("kind", ["right", "left", "holes", "none"])
def test_windows(length, kind):
    """A token attends to two tokens on either side; lengths are around one and two windows."""
    if "ModernBert" not in ALL:
        pytest.skip("this transformers has no ModernBERT")
    stock = random_stock("ModernBertModel", 5, backend="sdpa", local_attention=4)
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "float32")
    mask = torch.ones(3, length, dtype=torch.long)
    mask[1, length // 2 + 1 :] = 0
    mask[2, 1::3] = 0 if kind == "holes" else 1
    mask = {"left": mask.flip(1), "none": torch.ones_like(mask)}.get(kind, mask)
    batch = {"input_ids": torch.randint(5, 60, (3, length)), "attention_mask": mask}
    with torch.no_grad():
        assert_close(model(**batch), stock(**batch), mask != 0)


@pytest.mark.parametrize("window", [4, 130])
@pytest.mark.parametrize("kind", ["right", "left", "holes", "none"])
def test_windows_of_long_texts(window, kind):
    """Long sequences are computed by blocks of queries, and several of one length together."""
    if "ModernBert" not in ALL:
        pytest.skip("this transformers has no ModernBERT")
    fields = {"local_attention": window, "max_position_embeddings": 900}
    stock = random_stock("ModernBertModel", 5, backend="sdpa", **fields)
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "float32")
    mask = torch.ones(6, 821, dtype=torch.long)
    for row, length in enumerate((821, 821, 661, 704, 7, 800)):
        mask[row, length:] = 0
    mask[5, 1::90] = 0 if kind == "holes" else 1
    mask = {"left": mask.flip(1), "none": torch.ones_like(mask)}.get(kind, mask)
    batch = {"input_ids": torch.randint(5, 60, mask.shape), "attention_mask": mask}
    outputs = [one(**batch).last_hidden_state for one in (model, stock)]
    torch.testing.assert_close(*(each[mask != 0] for each in outputs), atol=2e-5, rtol=0)
    for each in outputs:
        each[mask != 0].square().sum().backward()
    for (path, ours), theirs in zip(model.named_parameters(), stock.parameters(), strict=True):
        scale = theirs.grad.abs().max()
        assert (ours.grad - theirs.grad).abs().max() <= 2e-5 * scale, path


@pytest.mark.parametrize("prefix", ALL)
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
    if "token_type_ids" in inspect.signature(stock.forward).parameters:
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
        ("DistilBertModel", {"pad_token_id": 60}),
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
    for one in (model, stock):
        with pytest.raises((IndexError, RuntimeError)):
            one(torch.full((1, longest + 1), 5))


@pytest.mark.parametrize("prefix", ALL)
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


@pytest.mark.parametrize("head", HEADS[1:])
@pytest.mark.parametrize("prefix", ["MPNet", "Electra", "ModernBert"])
def test_packed_heads(prefix, head):
    """Packed texts have the scores and the loss of one row per text."""
    name = prefix + head
    if name not in CLASSES or "Multiple" in name:
        pytest.skip("there is none")
    stock = random_stock(name, 5)
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "float32")
    batch = random_batch(stock, "right")
    tokens = attended(batch)
    packed = {"input_ids": batch["input_ids"][tokens][None]}
    packed["cu_seq_lens_q"] = torch.tensor([0, *tokens.sum(1).tolist()]).cumsum(0).int()
    if "Question" not in name:
        labels = packed["labels"] = random_labels(stock, batch)["labels"]
        if labels.ndim == 2:
            packed["labels"], labels = labels[tokens][None], labels.masked_fill(~tokens, -100)
        batch["labels"] = labels
    for change in (lambda: None, lambda: hook_a_layer(model)):
        change()
        with torch.no_grad():
            found, expected = model(**packed), stock(**batch)
        for key, theirs in expected.items():
            ours = found[key]
            if theirs.shape[:2] == tokens.shape:
                ours, theirs = ours[0], theirs[tokens]
            torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


def hook_a_layer(model):
    layers_of(model)[0].register_forward_hook(lambda *_: None)
