"""Sequences end to end in one row, beyond what `test_conformance.py` compares with transformers."""

import pytest
import torch
from transformers import DataCollatorWithFlattening, DynamicCache

from hf_bert_impl.parity import reference_model
from tests.model.cases import HEADS, assert_same, outputs, tensors
from tests.model.packing.rows import (
    GIVEN,
    LENGTHS,
    REAL,
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
    torch.testing.assert_close(tensors(found), tensors(expected), atol=2e-5, rtol=1e-5)


def test_the_collator_of_transformers():
    model, rows = model_and_rows("BertForTokenClassification", 2)
    ids = packed(rows)["input_ids"]
    expected = outputs(model, {"input_ids": ids}, position_ids=positions())
    lists = [{"input_ids": row.tolist()} for row in ids[0].split(LENGTHS)]
    for options in ({}, {"return_flash_attn_kwargs": True}):
        batch = DataCollatorWithFlattening(return_tensors="pt", **options)(lists)
        batch.pop("labels")
        assert_equal(outputs(model, batch), expected)


@pytest.mark.parametrize("given", ["positions", "totals"])
def test_a_decoder_reads_an_encoder(given):
    model, rows = model_and_rows("BertLMHeadModel", add_cross_attention=True)
    states = torch.randn(1, 9, model.config.hidden_size, generator=torch.Generator().manual_seed(2))
    rows["position_ids"] = torch.arange(REAL.shape[1]).expand(REAL.shape)
    across = {"encoder_hidden_states": states.expand(5, 9, -1)}
    expected = outputs(reference_model(model), rows | across).logits[REAL]
    found = outputs(model, packed(rows) | GIVEN[given]() | {"encoder_hidden_states": states})
    torch.testing.assert_close(found.logits[0], expected, atol=2e-5, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("is_decoder", [False, True])
def test_flex_attention(is_decoder):
    fields = dict(hidden_size=32, num_attention_heads=2, num_hidden_layers=1)
    model, rows = model_and_rows(**fields, is_decoder=is_decoder)
    batch = packed(rows) | GIVEN["totals"]()
    expected = outputs(model, batch)
    model.set_attn_implementation("flex_attention")
    torch._dynamo.reset()
    assert_equal(outputs(torch.compile(model, backend="eager"), batch), expected)


@pytest.mark.parametrize(
    "given",
    [
        {"position_ids": torch.zeros(1, TOTAL, dtype=torch.long)},
        {"position_ids": positions().roll(-2, 1)},
        {
            "position_ids": positions(),
            "attention_mask": ones().index_fill(1, torch.tensor([3, 17]), 0),
        },
        {"input_ids": torch.arange(14).view(2, 7), "position_ids": TWO_ROWS, "token_type_ids": None}
        | {"attention_mask": torch.ones(2, 7, 7)},
        {"input_ids": torch.arange(14).view(2, 7), "position_ids": TWO_ROWS, "token_type_ids": None}
        | {"attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])},
    ],
    ids=["zeros", "begins at 2", "holes", "two", "two, left"],
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


class Program(torch.nn.Module):
    """The call with these inputs, recorded in this way."""

    def __init__(self, way, model, **example):
        super().__init__()
        self.model, self.names = model, list(example)
        torch._dynamo.reset()
        values = tuple(example.values())
        if way == "traced":
            self.call = torch.jit.trace(self, values, strict=False)
        elif way == "exported":
            self.call = torch.export.export(self, values).module()
        else:
            self.call = torch.compile(self, backend="eager", fullgraph=True)
            self.call(*values)

    def forward(self, *values):
        return self.model(**dict(zip(self.names, values, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["traced", "exported", "compiled"])
@torch.no_grad
def test_programs(way):
    """They take other lengths, and refuse positions that start again."""
    model, rows = model_and_rows("BertForPreTraining", 5)
    batch = packed(rows)
    program = Program(way, model, **batch, cu_seq_lens_q=totals((9, 2, 4, 4, 3)))
    found = program.call(*batch.values(), totals())
    assert_equal(found, outputs(model, batch, cu_seq_lens_q=totals()))
    for count in (1, 2):
        ids, once = torch.randint(1, 61, (count, 7)), torch.arange(7).expand(count, 7)
        program = Program(way, model, input_ids=ids, position_ids=once)
        said = "out of range" if way == "traced" else "start again at 0 in a compiled"
        with pytest.raises(RuntimeError, match=said):
            program.call(ids, TWO_ROWS[:1].expand(count, 7))


WITHOUT_TOTALS = {"cu_seq_lens_q": None}
TWO_OF_ONES = {"input_ids": torch.ones(2, 7).long(), "token_type_ids": None}
TWO = WITHOUT_TOTALS | TWO_OF_ONES | {"position_ids": TWO_ROWS}
START_AGAIN = r"start again at 0 .* batch of 2; .*\(batch, sequence, seq"
CLASSIFIER = "BertForSequenceClassification"
ONE_LABEL = {"labels": torch.tensor([1])}


@pytest.mark.parametrize(
    ("head", "given", "said"),
    [
        *(
            ("BertModel", {"cu_seq_lens_q": torch.tensor(wrong)}, "cu_seq_lens_q.*does not fit")
            for wrong in ([0, 5, 21], [0, 5, 5, 22], [1, 22], [0], [0, 30, 22], [0.0, 22.0])
        ),
        ("BertModel", {"attention_mask": 1 - ones()}, "has zeros.*out"),
        ("BertModel", {"attention_mask": torch.ones(1, 22, 22)}, "has 3 dim.*leave the mask out"),
        ("BertModel", {"attention_mask": torch.ones(1, 1, 22, 22)}, "has 4 dim.*leave the mask"),
        ("BertModel", TWO_OF_ONES, r"fit.*\(2, 7\).*one"),
        ("BertModel", WITHOUT_TOTALS | {"cu_seq_lens_k": totals()}, "_k is given without"),
        ("BertModel", {"input_ids": torch.ones(22).long()}, r"input_ids has shape \(22,\)"),
        *((head, TWO, START_AGAIN) for head in HEADS if head != "BertForMultipleChoice"),
        ("BertForMaskedLM", TWO | {"attention_mask": torch.ones(2, 7)}, START_AGAIN),
        (CLASSIFIER, ONE_LABEL, r"this batch needs \(5,\)"),
        (CLASSIFIER, WITHOUT_TOTALS | {"position_ids": positions()} | ONE_LABEL, r"needs \(5,\)"),
        (
            "BertForQuestionAnswering",
            {"start_positions": torch.tensor([1]), "end_positions": torch.tensor([1])},
            "takes no packed input .* one row for each text",
        ),
        (
            "BertForMultipleChoice",
            {"input_ids": torch.ones(1, 1, 22).long(), "token_type_ids": None},
            "multiple choice takes no packed input",
        ),
        (
            "BertLMHeadModel",
            {"past_key_values": DynamicCache()},
            "a cache, .* one sequence per row",
        ),
    ],
)
def test_refused_in_one_line(head, given, said):
    model, rows = model_and_rows(head, 2, num_labels=2)
    with pytest.raises(ValueError, match=said) as caught:
        model(**packed(rows) | {"cu_seq_lens_q": totals()} | given)
    assert "\n" not in str(caught.value)
