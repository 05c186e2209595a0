"""Sequences end to end in one row, beyond what `test_conformance.py` compares with transformers."""

import pytest
import torch
from transformers import DataCollatorWithFlattening, DynamicCache

from hf_bert_impl.model.attention import CACHE
from hf_bert_impl.parity import reference_model
from tests.model.cases import HEADS, assert_same, assert_same_as_upstream, outputs, tensors
from tests.model.packing.rows import (
    GIVEN,
    LENGTHS,
    TOTAL,
    model_and_rows,
    ones,
    packed,
    positions,
    totals,
)

#: Positions of two rows, the first of which holds two sequences.
TWO_ROWS = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6]])


def assert_equal(found, expected):
    """Compares packed outputs; the cache of a decoder is not compared."""
    found, expected = tensors(found), tensors(expected)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=2e-5, rtol=1e-5)


def test_the_collator_of_transformers():
    model, rows = model_and_rows("BertForTokenClassification", 2)
    rows = [{"input_ids": row["input_ids"]} for row in rows]
    expected = outputs(model, packed(rows), position_ids=positions())
    lists = [{"input_ids": row["input_ids"].tolist()} for row in rows]
    for options in ({}, {"return_flash_attn_kwargs": True}):
        batch = DataCollatorWithFlattening(return_tensors="pt", **options)(lists)
        batch.pop("labels")
        assert_equal(outputs(model, batch), expected)


@pytest.mark.parametrize("head", ["BertForPreTraining", "BertForSequenceClassification"])
def test_masks_of_ones_are_as_none(head):
    """Whatever their type; a mask of keys may have four dimensions."""
    model, rows = model_and_rows(head, 5)
    batch = packed(rows) | {"position_ids": positions()}
    expected = outputs(model, batch)
    for mask in (ones().bool(), ones().float(), ones()[None, None], ones()[None, None].bool()):
        assert_equal(outputs(model, batch, attention_mask=mask), expected)


def test_a_changed_document_leaves_the_others_bit_by_bit():
    model, rows = model_and_rows()
    batch = packed(rows) | GIVEN["positions"]()
    before = outputs(model, batch).last_hidden_state[0]
    batch["input_ids"][0, 7] = (batch["input_ids"][0, 7] + 1) % model.config.vocab_size
    after = outputs(model, batch).last_hidden_state[0]
    assert torch.equal(before[:6], after[:6]) and torch.equal(before[14:], after[14:])
    assert not torch.equal(before[6:14], after[6:14])


def test_a_decoder_reads_an_encoder():
    model, rows = model_and_rows("BertLMHeadModel", add_cross_attention=True)
    generator = torch.Generator().manual_seed(2)
    states = torch.randn(1, 9, model.config.hidden_size, generator=generator)
    real = torch.arange(8) < torch.tensor(LENGTHS)[:, None]
    batch = {
        name: torch.zeros(real.shape, dtype=torch.long).masked_scatter(real, values)
        for name, values in packed(rows).items()
    }
    batch |= {"attention_mask": real.long(), "encoder_hidden_states": states.expand(5, 9, -1)}
    for given in ("positions", "totals"):
        one_row = packed(rows) | GIVEN[given]() | {"encoder_hidden_states": states}
        assert_same_as_upstream(model, batch, given=one_row)


def test_on_meta():
    """Shapes are those of the computed outputs, where they can be known."""
    model, rows = model_and_rows()
    batch = packed(rows)
    expected = model(**batch, cu_seq_lens_q=totals())
    model.to("meta")
    batch = {name: value.to("meta") for name, value in batch.items()}
    found = model(**batch, cu_seq_lens_q=totals().to("meta"))
    assert all(found[key].shape == expected[key].shape for key in expected)
    found = model(**batch, position_ids=positions().to("meta"))
    assert found.last_hidden_state.shape == expected.last_hidden_state.shape


@pytest.mark.parametrize(
    "given",
    [
        {"position_ids": torch.zeros(1, TOTAL, dtype=torch.long)},
        {"position_ids": positions() + 1},
        {"position_ids": positions().roll(-2, 1)},
        {"position_ids": positions().flip(1)},
        {
            "position_ids": positions(),
            "attention_mask": ones().index_fill(1, torch.tensor([3, 17]), 0),
        },
        {"position_ids": positions(), "attention_mask": ones()[..., None].expand(1, TOTAL, TOTAL)},
        {"input_ids": torch.arange(14).view(2, 7), "position_ids": TWO_ROWS, "token_type_ids": None}
        | {"attention_mask": torch.ones(2, 7, 7)},
        {"input_ids": torch.arange(14).view(2, 7), "position_ids": TWO_ROWS, "token_type_ids": None}
        | {"attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])},
    ],
    ids=["zeros", "from 1", "begins at 2", "backwards", "holes", "of queries", "two", "two, left"],
)
@pytest.mark.parametrize("head", ["BertModel", "BertForPreTraining"])
def test_what_is_no_packed_input_is_upstreams(head, given):
    """All positions 0, other orders, or a mask that decides: every token sees every other."""
    model, rows = model_and_rows(head, 5, is_decoder=False)
    batch = packed(rows) | given
    padded = dict(batch)
    if given.get("attention_mask", ones()).ndim == 3:
        del padded["attention_mask"]
    assert_same(outputs(model, batch), outputs(reference_model(model), padded), padded)


# Programs.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "is_compiled", "is_decoder"),
    [("positions", False, True), ("totals", True, False), ("totals", True, True)],
)
def test_flex_attention(given, is_compiled, is_decoder):
    fields = dict(hidden_size=32, num_attention_heads=2, num_hidden_layers=1)
    model, rows = model_and_rows(**fields, is_decoder=is_decoder)
    batch = packed(rows) | GIVEN[given]()
    expected = outputs(model, batch)
    model.set_attn_implementation("flex_attention")
    torch._dynamo.reset()
    call = torch.compile(model, backend="eager") if is_compiled else model
    assert_equal(outputs(call, batch), expected)


def recorded(way, program, example):
    torch._dynamo.reset()
    if way == "traced":
        return torch.jit.trace(program, example, strict=False)
    if way == "exported":
        return torch.export.export(program, example).module()
    program = torch.compile(program, backend="eager", fullgraph=True)
    program(*example)
    return program


@pytest.mark.slow
@pytest.mark.parametrize("way", ["traced", "exported", "compiled"])
def test_programs_take_other_lengths(way):
    model, rows = model_and_rows("BertForPreTraining", 5)
    batch = packed(rows)

    class Program(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, token_type_ids, told):
            return self.model(input_ids, token_type_ids=token_type_ids, cu_seq_lens_q=told)

    with torch.no_grad():
        program = recorded(way, Program(), (*batch.values(), totals((9, 2, 4, 4, 3))))
        expected = outputs(model, batch, cu_seq_lens_q=totals())
        assert_equal(program(*batch.values(), totals()), expected)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["traced", "exported", "compiled"])
@pytest.mark.parametrize("rows", [1, 2])
def test_programs_refuse_positions_that_start_again(way, rows):
    model, _ = model_and_rows(seed=5)

    class Program(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, position_ids):
            return self.model(input_ids, position_ids=position_ids).last_hidden_state

    ids = torch.randint(1, 61, (rows, 7))
    once = torch.arange(7).expand(rows, 7)
    with torch.no_grad():
        program = recorded(way, Program(), (ids, once))
        assert torch.equal(program(ids, once), outputs(model, {"input_ids": ids})[0])
        said = "out of range" if way == "traced" else "start again at 0 in a compiled"
        with pytest.raises(RuntimeError, match=said):
            program(ids, TWO_ROWS[:1].expand(rows, 7))


@pytest.mark.slow
def test_a_compiled_decoder_with_a_cache_sees_its_past():
    """One row, positions and no mask: a step of generation, not packed input."""
    model, _ = model_and_rows("BertLMHeadModel")
    tokens = torch.tensor([[3, 4, 5, 6, 7]])
    whole = outputs(model, {"input_ids": tokens}).logits[:, 3:]
    past = outputs(model, {"input_ids": tokens[:, :3]})[CACHE]
    batch = {"input_ids": tokens[:, 3:], "position_ids": torch.tensor([[3, 4]])}
    torch._dynamo.reset()
    step = outputs(torch.compile(model, backend="eager"), batch, cache=past).logits
    assert (whole - step).abs().max() < 1e-5


# Packed input that cannot be computed ends in one line that says what to give.


def refuses(said, model, **batch):
    with pytest.raises(ValueError, match=said) as caught:
        model(**batch)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("head", HEADS)
def test_two_packed_rows(head):
    model, _ = model_and_rows(head, 5)
    batch = {"input_ids": torch.randint(1, 61, (2, 7)), "position_ids": TWO_ROWS}
    if head == "BertForMultipleChoice":
        batch = {name: value[None] for name, value in batch.items()}
    for given in ({}, {"attention_mask": torch.ones_like(batch["input_ids"])}):
        refuses(
            r"start again at 0 .* batch of 2; .*\(batch, sequence, seq", model, **batch, **given
        )


@pytest.mark.parametrize(
    "wrong",
    [[0, 5, 21], [0, 5, 5, 22], [1, 22], [0], [0, 30, 22], [0.0, 22.0], [[0, 5, 22]]],
)
def test_totals_that_do_not_fit(wrong):
    model, rows = model_and_rows()
    refuses("cu_seq_lens_q.*does not fit", model, **packed(rows), cu_seq_lens_q=torch.tensor(wrong))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"attention_mask": ones().index_fill(1, torch.tensor(3), 0)}, "has zeros.*out"),
        ({"attention_mask": torch.ones(1, 22, 22)}, "has 3 dim.*leave the mask out"),
        ({"attention_mask": torch.zeros(1, 1, 22, 22)}, "has 4 dim.*leave the mask out"),
        ({"input_ids": torch.ones(2, 11).long(), "token_type_ids": None}, r"fit.*\(2, 11\).*one"),
        ({"cu_seq_lens_q": None, "cu_seq_lens_k": totals()}, "cu_seq_lens_k is given without"),
        ({"input_ids": torch.ones(22).long()}, r"input_ids has shape \(22,\)"),
    ],
)
def test_what_does_not_go_with_totals(given, said):
    for is_decoder in (False, True):
        model, rows = model_and_rows(is_decoder=is_decoder)
        refuses(said, model, **packed(rows) | {"cu_seq_lens_q": totals()} | given)


@pytest.mark.parametrize("given", ["positions", "totals"])
def test_what_does_not_go_with_packed_input(given):
    model, rows = model_and_rows("BertLMHeadModel")
    batch = packed(rows) | GIVEN[given]()
    cache = DynamicCache(config=model.config)
    refuses("a cache, which holds one sequence a row", model, **batch, past_key_values=cache)
    model, rows = model_and_rows("BertForSequenceClassification", num_labels=3)
    batch = packed(rows) | GIVEN[given]()
    refuses(r"this batch needs \(5,\)", model, **batch, labels=torch.tensor([1]))
    model, _ = model_and_rows("BertForMultipleChoice")
    told = {"position_ids": torch.tensor([[[0, 1, 0, 1]]])}
    told = told if given == "positions" else {"cu_seq_lens_q": torch.tensor([0, 2, 4])}
    ids = torch.ones(1, 1, 4).long()
    refuses("multiple choice takes no packed input", model, input_ids=ids, **told)
