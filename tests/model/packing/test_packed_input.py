"""Sequences end to end in one row: never attending across, one pooled vector each."""

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DataCollatorWithFlattening

from hf_bert_impl import BertModel
from hf_bert_impl.model.attention import CACHE
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS
from hf_bert_impl.parity import reference_model
from tests.model.cases import (
    BACKENDS,
    HEADS,
    NO_DROPOUT,
    assert_same,
    assert_same_gradients,
    gradients,
    outputs,
    random_labels,
)
from tests.model.packing.rows import (
    GIVEN,
    LENGTHS,
    TOTAL,
    TWO_ROWS,
    WAYS,
    alone,
    assert_as_alone,
    model_and_rows,
    ones,
    packed,
    positions,
    through,
    totals,
)

ONE_ROW_HEADS = [head for head in HEADS if head != "BertForMultipleChoice"]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


# Compiling takes its time: the head whose outputs are of both kinds. By positions the two ways give
# other programs: five pieces where breaks are allowed, else one.
COMPILED = [
    pytest.param("BertForPreTraining", way, marks=pytest.mark.slow)
    for way in ("compiled", "compiled whole")
]


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("head", "way"), [(head, "as it comes") for head in ONE_ROW_HEADS] + COMPILED
)
def test_every_head_as_upstream_computes_each_sequence_alone(head, way, backend, given):
    model, rows = model_and_rows(head, 5, way, attn_implementation=backend)
    found = outputs(WAYS[way](model), packed(rows), **GIVEN[given]())
    assert_as_alone(found, alone(reference_model(model), rows, given))


@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float32])
@pytest.mark.parametrize(
    ("head", "way"),
    # In a decoder a mask of four dimensions replaces causality.
    [(head, "as it comes") for head in ONE_ROW_HEADS if head != "BertLMHeadModel"] + COMPILED,
)
def test_masks_of_ones_are_as_none(head, way, dtype):
    """Whatever their type; a mask of keys may have four dimensions."""
    model, rows = model_and_rows(head, 5, way)
    batch, way = packed(rows) | {"position_ids": positions()}, WAYS[way]
    expected = outputs(model, batch)
    kinds = [ones().to(dtype)]
    if not dtype.is_floating_point:  # those are added to the scores
        kinds.append(ones()[None, None].to(dtype))
    labels = random_labels(head, model.config, batch)
    count = len(LENGTHS)
    labels = {k: v if v.ndim > 1 else v.repeat(count)[:count] for k, v in labels.items()}
    if head == "BertForQuestionAnswering":
        labels = {}
    for mask in kinds:
        found = outputs(way(model), batch, attention_mask=mask)
        for name, value in expected.items():
            assert torch.allclose(found[name], value, atol=2e-5), name
        if labels and way is WAYS["as it comes"]:
            loss = outputs(model, batch | labels, attention_mask=mask).loss
            assert torch.allclose(loss, outputs(model, batch | labels).loss)


KINDS = {
    "padded": dict(padding_free=False),
    "relative": dict(position_embedding_type="relative_key_query"),
    "relative, padded": dict(position_embedding_type="relative_key_query", padding_free=False),
    "sinusoidal": dict(position_embedding_type="sinusoidal"),
    "sinusoidal, padded": dict(position_embedding_type="sinusoidal", padding_free=False),
    "decoder": dict(is_decoder=True),
    "no pooler": dict(is_decoder=True),
    "codertimo": dict(head="BertForPreTraining", **CODERTIMO_FIELDS),
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("kind", "way"),
    [(kind, "as it comes") for kind in KINDS]
    + [pytest.param("decoder", "compiled whole", marks=pytest.mark.slow)],
)
def test_other_models_as_each_sequence_alone(kind, way, backend, given):
    model, rows = model_and_rows(way=way, attn_implementation=backend, **KINDS[kind])
    if kind == "no pooler":
        model = BertModel(model.config, add_pooling_layer=False).eval()
    options = dict(output_hidden_states=True, use_cache=False)
    found = outputs(WAYS[way](model), packed(rows), **GIVEN[given](), **options)
    assert_as_alone(found, alone(model, rows, given, **options))


def test_the_collator_of_transformers():
    model, rows = model_and_rows("BertForTokenClassification", 2)
    rows = [{"input_ids": row["input_ids"]} for row in rows]
    lists = [{"input_ids": row["input_ids"].tolist()} for row in rows]
    for options in ({}, {"return_flash_attn_kwargs": True}):
        batch = DataCollatorWithFlattening(return_tensors="pt", **options)(lists)
        batch.pop("labels")
        assert_as_alone(outputs(model, batch), alone(model, rows))


def test_a_changed_document_leaves_the_others_bit_by_bit():
    model, rows = model_and_rows()
    batch = packed(rows) | GIVEN["positions"]()
    before = outputs(model, batch).last_hidden_state[0]
    batch["input_ids"][0, 7] = (batch["input_ids"][0, 7] + 1) % model.config.vocab_size
    after = outputs(model, batch).last_hidden_state[0]
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
    model, rows = model_and_rows(head, 3, **NO_DROPOUT)
    model.train(training)
    padded = {name: pad_sequence([row[name] for row in rows], batch_first=True) for name in rows[0]}
    mask = torch.arange(8) < torch.tensor(LENGTHS)[:, None]
    labels = random_labels(head, model.config, padded)
    flat_labels = dict(labels)
    if labels.get("labels", mask[0]).dim() == 2:
        labels["labels"] = labels["labels"].masked_fill(~mask, -100)
        flat_labels["labels"] = labels["labels"][mask][None]
    expected = model(**padded, attention_mask=mask.long(), **labels).loss
    found = model(**packed(rows), position_ids=positions(), **flat_labels).loss
    assert torch.allclose(found, expected, rtol=1e-5)
    assert_same_gradients(gradients(model, found), gradients(model, expected))


@pytest.mark.parametrize("given", ["positions", "totals, ones"])
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("head", ["BertForSequenceClassification", "BertForNextSentencePrediction"])
def test_losses_of_programs(head, way, given):
    """One label a sequence, as in the call that is computed as it comes."""
    # Of its two layers the last computes what the head reads.
    model, rows = model_and_rows(head, num_labels=2)
    batch = packed(rows) | {"labels": torch.tensor([0, 1, 1, 0, 1])}
    expected = outputs(model, batch, position_ids=positions())
    found = outputs(WAYS[way](model), batch, **GIVEN[given]())
    assert found.logits.shape == (5, 2)
    assert torch.allclose(found.loss, expected.loss, rtol=1e-5)


def test_a_decoder_reads_an_encoder():
    model, rows = model_and_rows("BertLMHeadModel", add_cross_attention=True)
    shape = (1, 9, model.config.hidden_size)
    states = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    expected = alone(model, rows, encoder_hidden_states=states)
    for given in ("positions", "totals"):
        found = outputs(model, packed(rows), **GIVEN[given](), encoder_hidden_states=states)
        assert_as_alone(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "way", "is_decoder"),
    [
        ("positions", "as it comes", True),
        ("positions", "compiled", False),
        ("totals", "compiled", True),
    ],
)
def test_flex_attention(given, way, is_decoder):
    fields = dict(hidden_size=32, num_attention_heads=2, num_hidden_layers=1)
    model, rows = model_and_rows(**fields, is_decoder=is_decoder)
    expected = alone(model, rows)
    model.set_attn_implementation("flex_attention")
    assert_as_alone(outputs(WAYS[way](model), packed(rows), **GIVEN[given]()), expected)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["BertForPreTraining", "BertForSequenceClassification"])
@pytest.mark.parametrize("given", ["positions", "totals"])
@pytest.mark.parametrize("way", ["traced", "exported"])
def test_recorded_programs_take_other_lengths(way, given, head):
    model, rows = model_and_rows(head, 5)
    batch = packed(rows)

    class Program(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, token_type_ids, told):
            name = "position_ids" if given == "positions" else "cu_seq_lens_q"
            out = self.model(input_ids, token_type_ids=token_type_ids, **{name: told})
            return {k: v for k, v in out.items() if k != CACHE}

    tell = positions if given == "positions" else totals
    example = (batch["input_ids"], batch["token_type_ids"], tell((9, 2, 4, 4, 3)))
    with torch.no_grad():
        if way == "traced":
            program = torch.jit.trace(Program(), example, strict=False)
        else:
            program = torch.export.export(Program(), example).module()
        found = program(batch["input_ids"], batch["token_type_ids"], tell())
    assert_as_alone(found, alone(model, rows))


@pytest.mark.slow
def test_one_program_for_rows_of_any_length():
    model, _ = model_and_rows(seed=5)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for lengths in ((5, 1, 8), (2, 7, 3, 4), (9,), (1, 1)):
        ids = torch.randint(1, model.config.vocab_size, (1, sum(lengths)))
        for given in ({"cu_seq_lens_q": totals(lengths)}, {"position_ids": positions(lengths)}):
            batch = {"input_ids": ids, **given}
            assert_as_alone(outputs(compiled, batch), [outputs(model, batch)])


@pytest.mark.slow
def test_compiled_with_positions_of_one_sequence():
    model, rows = model_and_rows()
    batch = packed(rows)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for place in (through(), positions().flip(1), torch.zeros(1, TOTAL, dtype=torch.long)):
        expected = outputs(model, batch, position_ids=place)
        assert expected.pooler_output.shape == (1, model.config.hidden_size)
        assert_as_alone(outputs(compiled, batch, position_ids=place), [expected])


@pytest.mark.slow
def test_a_compiled_decoder_with_a_cache_sees_its_past():
    """One row, positions and no mask: a step of generation, not packed input."""
    model, _ = model_and_rows("BertLMHeadModel")
    tokens = torch.tensor([[3, 4, 5, 6, 7]])
    whole = outputs(model, {"input_ids": tokens}).logits[:, 3:]
    past = outputs(model, {"input_ids": tokens[:, :3]})[CACHE]
    batch = {"input_ids": tokens[:, 3:], "position_ids": torch.tensor([[3, 4]])}
    step = outputs(torch.compile(model, backend="eager"), batch, cache=past).logits
    assert (whole - step).abs().max() < 1e-5


def test_on_meta():
    """Shapes are those of the computed outputs, where they can be known."""
    model, rows = model_and_rows()
    batch = packed(rows)
    expected = model(**batch, cu_seq_lens_q=totals())
    model.to("meta")
    batch = {name: value.to("meta") for name, value in batch.items()}
    found = model(**batch, cu_seq_lens_q=totals().to("meta"))
    for key in expected:
        assert found[key].shape == expected[key].shape
    found = model(**batch, position_ids=positions().to("meta"))
    assert found.last_hidden_state.shape == expected.last_hidden_state.shape


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("given", ["positions", "totals"])
def test_the_default_device_is_not_asked(given, is_decoder):
    """A caller may make other things on another device meanwhile, or nothing at all."""
    model, rows = model_and_rows(is_decoder=is_decoder)
    batch = packed(rows) | GIVEN[given]()
    expected = model(**batch, output_attentions=True)
    with torch.device("meta"):
        found = model(**batch, output_attentions=True)
    assert torch.equal(found.last_hidden_state, expected.last_hidden_state)
    assert torch.equal(found.pooler_output, expected.pooler_output)


def holes():
    return ones().index_fill(1, torch.tensor([3, 17]), 0)


@pytest.mark.parametrize(
    "given",
    [
        {"position_ids": torch.zeros(1, TOTAL, dtype=torch.long)},
        {"position_ids": positions() + 1},
        {"position_ids": positions().roll(-2, 1)},
        {"position_ids": positions().flip(1)},
        {"position_ids": positions(), "attention_mask": holes()},
        {"position_ids": positions(), "attention_mask": ones()[..., None].expand(1, TOTAL, TOTAL)},
    ],
    ids=["zeros", "from 1", "begins at 2", "backwards", "holes", "mask of queries"],
)
@pytest.mark.parametrize("head", ONE_ROW_HEADS)
def test_what_is_no_packed_input_is_upstreams(head, given):
    """All positions 0, other orders, or a mask that decides: every token sees every other."""
    model, rows = model_and_rows(head, 5, is_decoder=False)
    found = outputs(model, packed(rows), **given)
    batch = packed(rows) | given
    if batch.get("attention_mask", ones()).ndim == 3:
        del batch["attention_mask"]
    assert_same(found, outputs(reference_model(model), batch), batch)


def test_masks_make_positions_of_two_rows_mere_positions():
    """As tokenizers that pad on the left give them."""
    model, _ = model_and_rows(seed=5)
    reference = reference_model(model)
    ids = torch.randint(1, 61, (2, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    places = torch.tensor([[0, 0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6]])
    batch = {"input_ids": ids, "attention_mask": mask, "position_ids": places}
    assert_same(outputs(model, batch), outputs(reference, batch), batch)
    batch = {"input_ids": ids, "position_ids": TWO_ROWS}
    found = outputs(model, batch, attention_mask=torch.ones(2, 7, 7))
    assert_same(found, outputs(reference, batch), batch)
