"""Every head of every architecture equals transformers' own, and computes packed rows."""

import inspect
import random

import pytest
import torch

import hf_bert_impl
from hf_bert_impl.encoders.lengths import longest_sequence
from hf_bert_impl.parity import attended_positions
from tests.encoders.cases import (
    ALL,
    CLASSES,
    PREFIXES,
    assert_as_stock,
    assert_close,
    count_stock_calls,
    layers_of,
    pair,
    random_batch,
    random_labels,
)
from tests.model.cases import assert_same_gradients, gradients
from tests.model.packing.rows import packed, totals


@pytest.mark.parametrize("name", CLASSES)
def test_outputs_losses_and_gradients(name, monkeypatch):
    seed = random.Random(name).randrange(1000)
    model, stock = pair(name, seed, backend=("eager", "sdpa")[seed % 2])
    for number, kind in enumerate(["right", "left", "holes", "both", "none"]):
        batch = random_batch(stock, kind, seed)
        with monkeypatch.context() as patch:
            calls = count_stock_calls(patch)
            states = {} if "Multiple" in name else {"output_hidden_states": number % 2 == 0}
            assert_as_stock(model, stock, batch | states)
            # A head that reads padding far from all tokens: stock's own attention decides.
            assert not calls or name.startswith("ModernBertFor")
        if name.endswith("Model"):
            continue
        for one in (model, stock):
            one.train(number % 3 > 0)
        labels = random_labels(stock, batch)
        found, expected = model(**batch, **labels), stock(**batch, **labels)
        assert_close(found, expected, attended_positions(batch))
        found, expected = gradients(model, found.loss), gradients(stock, expected.loss)
        assert_same_gradients(found, expected, 1e-4)
        hf_bert_impl.optimize(model, "float32")  # after training
        stock.eval()


#: By window, lengths around one and two of them, of several texts each. Long texts are computed by
#: blocks of queries, and several of one length together.
WINDOWS = [
    *((4, (length, length // 2 + 1, length)) for length in (1, 3, 4, 5, 9, 500)),
    *((window, (821, 821, 661, 704, 7, 800)) for window in (4, 130)),
]


@pytest.mark.parametrize(("window", "lengths"), WINDOWS)
@pytest.mark.parametrize("kind", ["right", "left", "holes", "none"])
def test_windows(window, lengths, kind):
    """A token attends to half a window on either side."""
    if "ModernBert" not in ALL:
        pytest.skip("this transformers has no ModernBERT")
    fields = {"local_attention": window, "max_position_embeddings": 900}
    model, stock = pair("ModernBertModel", 5, backend="sdpa", **fields)
    mask = (torch.arange(lengths[0]) < torch.tensor(lengths)[:, None]).long()
    if kind == "holes":
        mask[-1, 1::3] = 0
    mask = {"left": mask.flip(1), "none": torch.ones_like(mask)}.get(kind, mask)
    batch = {"input_ids": torch.randint(5, 60, mask.shape), "attention_mask": mask}
    assert_as_stock(model, stock, batch)
    found, expected = (
        gradients(one, one(**batch).last_hidden_state[mask != 0].square().sum())
        for one in (model, stock)
    )
    assert_same_gradients(found, expected)


@pytest.mark.parametrize("prefix", ALL)
def test_arguments(prefix, monkeypatch):
    model, stock = pair(f"{prefix}Model", 3)
    batch = random_batch(stock, "right")
    tokens, ids = attended_positions(batch), batch["input_ids"]
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
        types = torch.randint(0, stock.config.type_vocab_size, ids.shape)
        cases.append({"token_type_ids": types})
    for case in cases:
        assert_as_stock(model, stock, batch | case)
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
        ("ElectraForPreTraining", {"embedding_size": 64}),
        ("DistilBertModel", {"n_layers": 0}),
        ("DistilBertModel", {"pad_token_id": 60}),
        ("MPNetModel", {"relative_attention_num_buckets": 33, "pad_token_id": 0}),
    ],
)
def test_odd_configs(name, fields, monkeypatch):
    model, stock = pair(name, 9, **fields)
    calls = count_stock_calls(monkeypatch)
    for kind in ("right", "holes"):
        batch = random_batch(stock, kind, length=12)
        assert_as_stock(model, stock, batch)
    assert not calls


PACKED_HEADS = ("MPNet", "Electra", "ModernBert")


@pytest.mark.parametrize(
    "name",
    [
        *(f"{prefix}Model" for prefix in ALL),
        *(n for n in CLASSES if n.startswith(PACKED_HEADS) and "For" in n and "Multiple" not in n),
    ],
)
def test_packed_input(name):
    """Packed texts have the states, the scores and the loss of one row per text."""
    model, stock = pair(name, 5)
    batch = random_batch(stock, "right")
    tokens = attended_positions(batch)
    if "Question" not in name and "For" in name:
        labels = batch["labels"] = random_labels(stock, batch)["labels"]
        if labels.ndim == 2:
            labels[~tokens] = -100
    row = packed(batch, tokens) | {"cu_seq_lens_q": totals(tokens.sum(1).tolist())}
    for is_hooked in (False, True):
        if is_hooked:
            layers_of(model)[0].register_forward_hook(lambda *_: None)
        with torch.no_grad():
            found, expected = model(**row), stock(**batch)
        for key, theirs in expected.items():
            ours = found[key]
            if theirs.shape[:2] == tokens.shape:
                ours, theirs = ours[0], theirs[tokens]
            torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_limits(prefix):
    """As many tokens as there are positions, and one more."""
    model, stock = pair(f"{prefix}Model", 8, max_position_embeddings=26, pad_token_id=1)
    longest = longest_sequence(stock.config)
    ids = torch.full((2, longest), 5)
    assert_as_stock(model, stock, {"input_ids": ids})
    if longest < 26:  # such positions count tokens, so a row with padding may be longer
        ids = torch.nn.functional.pad(ids, (0, 8), value=1)
        assert_as_stock(model, stock, {"input_ids": ids, "attention_mask": (ids != 1).long()})
    for one in (model, stock):
        with pytest.raises((IndexError, RuntimeError)):
            one(torch.full((1, longest + 1), 5))
