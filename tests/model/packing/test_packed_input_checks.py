"""Packed input that cannot be computed ends in one line that says what to give, before any work."""

import pytest
import torch
from transformers import DynamicCache

from hf_bert_impl.model.layers import BertEmbeddings
from tests.model.cases import HEADS, outputs
from tests.model.packing.rows import (
    GIVEN,
    TWO_ROWS,
    WAYS,
    model_and_rows,
    ones,
    packed,
    totals,
)


@pytest.fixture
def nothing_computed(monkeypatch):
    """The embeddings are the first that is computed."""
    monkeypatch.setattr(BertEmbeddings, "forward", lambda *a, **k: pytest.fail("computed first"))


def refuses(said, model, **batch):
    with pytest.raises(ValueError, match=said) as caught:
        model(**batch)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("with_ones", [True, False])
def test_two_packed_rows(head, with_ones, nothing_computed):
    model, _ = model_and_rows(head, 5)
    batch = {"input_ids": torch.randint(1, 61, (2, 7)), "position_ids": TWO_ROWS}
    if with_ones:
        batch["attention_mask"] = torch.ones(2, 7)
    if head == "BertForMultipleChoice":
        batch = {name: value[None] for name, value in batch.items()}
    refuses(r"start again at 0 .* batch of 2; .*\(batch, sequence, seq", model, **batch)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
def test_two_packed_rows_compiled(dynamic):
    model, _ = model_and_rows(seed=5)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=dynamic)
    batch = {"input_ids": torch.randint(1, 61, (2, 7))}
    outputs(compiled, batch, position_ids=TWO_ROWS[1].expand(2, 7))
    holes = torch.ones(2, 7)
    holes[0, :3] = 0
    outputs(compiled, batch, position_ids=TWO_ROWS, attention_mask=holes)
    with pytest.raises(RuntimeError, match=r"start again at 0 .* batch of several"):
        outputs(compiled, batch, position_ids=TWO_ROWS)


@pytest.mark.parametrize(
    ("wrong", "way"),
    [
        ([0, 5, 21], "as it comes"),
        ([0, 5, 5, 22], "as it comes"),
        ([1, 22], "as it comes"),
        ([0], "as it comes"),
        ([0, 30, 22], "as it comes"),
        ([0.0, 22.0], "as it comes"),
        ([[0, 5, 22]], "as it comes"),
        ([0, 5, 21], "compiled"),
        ([0, 5, 5, 22], "compiled whole"),
        ([[0, 22]], "compiled whole"),
    ],
)
def test_totals_that_do_not_fit(wrong, way):
    model, rows = model_and_rows()
    torch._dynamo.reset()
    error = ValueError if way == "as it comes" else (ValueError, RuntimeError)
    with pytest.raises(error, match=r"cu_seq_lens_q.*(does not fit|ValueError)"):
        WAYS[way](model)(**packed(rows), cu_seq_lens_q=torch.tensor(wrong))


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"attention_mask": ones().index_fill(1, torch.tensor(3), 0)}, "has zeros.*out"),
        ({"attention_mask": torch.ones(1, 22, 22)}, "has 3 dim.*leave the mask out"),
        ({"attention_mask": torch.zeros(1, 1, 22, 22)}, "has 4 dim.*leave the mask out"),
        (
            {"input_ids": torch.ones(2, 11).long(), "token_type_ids": None},
            r"fit.*\(2, 11\).*one row",
        ),
        ({"cu_seq_lens_q": None, "cu_seq_lens_k": totals()}, "cu_seq_lens_k is given without"),
        ({"input_ids": torch.ones(22).long()}, r"input_ids has shape \(22,\)"),
    ],
)
def test_what_does_not_go_with_totals(given, said, is_decoder, nothing_computed):
    model, rows = model_and_rows(is_decoder=is_decoder)
    refuses(said, model, **packed(rows) | {"cu_seq_lens_q": totals()} | given)


@pytest.mark.parametrize("given", ["positions", "totals"])
def test_no_cache_holds_packed_input(given):
    model, rows = model_and_rows("BertLMHeadModel")
    past = DynamicCache(config=model.config)
    said = r"a cache, which holds one sequence a row"
    refuses(said, model, **packed(rows), **GIVEN[given](), past_key_values=past)


@pytest.mark.parametrize(
    "given",
    [
        {"position_ids": torch.tensor([[[0, 1, 0, 1]]])},
        {"cu_seq_lens_q": torch.tensor([0, 2, 4])},
    ],
)
def test_multiple_choice_takes_none(given):
    model, _ = model_and_rows("BertForMultipleChoice")
    said = "multiple choice takes no packed input"
    refuses(said, model, input_ids=torch.ones(1, 1, 4).long(), **given)


def test_labels_are_one_a_sequence():
    model, rows = model_and_rows("BertForSequenceClassification", num_labels=3)
    batch = packed(rows) | GIVEN["positions"]()
    refuses(r"this batch needs \(5,\)", model, **batch, labels=torch.tensor([1]))
    assert model(**batch, labels=torch.tensor([0, 1, 2, 0, 1])).logits.shape == (5, 3)
