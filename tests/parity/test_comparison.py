"""The comparison itself: it must agree with what is equal, and name what is not."""

import copy
import math

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

import hf_bert_impl
from hf_bert_impl.parity import (
    ParityReport,
    ParityRow,
    compare_models,
    compare_outputs,
    reference_model,
)
from hf_bert_impl.parity.batches import parity_batches, parity_labels, random_tokens
from hf_bert_impl.parity.comparison import compared_positions, reference_class
from tests.model.cases import random_config, random_model

CASES = ("padded right", "padded left", "holes", "unpadded")
BACKENDS = ("eager", "sdpa")
LAYERS, ATTENTION_HEADS = 3, 5


def tiny(name="BertModel", **fields):
    """A random model whose sizes are all different, with weights large enough to matter."""
    sizes = dict(hidden_size=6 * ATTENTION_HEADS, num_attention_heads=ATTENTION_HEADS)
    sizes |= dict(num_hidden_layers=LAYERS, max_position_embeddings=41, type_vocab_size=2)
    return random_model(name, random_config(0, name, **sizes | fields))


def compare(ours, reference, labels=False, **options):
    """The report on batches of every kind, with labels or without."""
    name = type(ours).__name__
    choices = 2 if name == "BertForMultipleChoice" else 0
    batches = parity_batches(random_tokens(ours.config), ours.config, choices=choices)
    if labels:
        labels = {case: parity_labels(name, ours.config, batches[case]) for case in batches}
    return compare_models(ours, reference, batches, labels=labels or None, **options)


@pytest.mark.parametrize("name", ["BertModel", "BertForPreTraining", "BertForMultipleChoice"])
def test_what_is_compared_and_that_models_stay_as_they_were(name):
    ours = tiny(name).train()
    ours.set_attn_implementation("eager")
    reference = reference_model(ours)
    before, ran = copy.deepcopy(ours.state_dict()), set()
    ours.register_forward_pre_hook(lambda model, _: ran.add(model.config._attn_implementation))
    report = compare(ours, reference, labels=True, gradients=True, backends=BACKENDS)
    assert report.passed, report.summary()
    assert ran == {*BACKENDS}
    expected = {f"fp32 {backend} {case}" for backend in BACKENDS for case in CASES}
    assert {row.case for row in report.rows} == expected
    names = {row.name for row in report.rows}
    assert {"embeddings", "layer 0", f"layer 2 head {ATTENTION_HEADS - 1}"} <= names
    assert ("loss" in names) == (name != "BertModel")
    assert {f"grad {parameter}" for parameter, _ in ours.named_parameters()} <= names
    key_biases = [row for row in report.rows if row.name.endswith("attention.self.key.bias")]
    assert len(key_biases) == 2 * LAYERS * len(CASES)  # in spite of their zero gradient

    assert (ours.training, reference.training) == (True, False)
    assert {it.config._attn_implementation for it in (ours, reference)} == {"eager"}
    assert all(parameter.grad is None for parameter in ours.parameters())
    assert all(torch.equal(before[key], value) for key, value in ours.state_dict().items())


def test_bf16_finds_a_layer_that_computes_too_coarsely():
    ours = tiny()
    reference = reference_model(ours)
    options = dict(backends=BACKENDS, dtype=torch.bfloat16)
    report = compare(ours, reference, **options)
    assert report.passed, report.summary()
    assert {row.precision for row in report.rows} == {"bf16"}
    assert all(row.upstream_error is not None for row in report.rows)

    def coarse(module, inputs, output):
        # Three bits fewer than bfloat16 has.
        return (output.float() * 2**-3).to(torch.float8_e4m3fn).to(output.dtype) * 2**3

    ours.encoder.layer[1].output.dense.register_forward_hook(coarse)
    failed = {row.name for row in compare(ours, reference, **options).failures}
    assert "layer 1" in failed and not {"embeddings", "layer 0"} & failed


def test_bf16_finds_small_errors_everywhere():
    """Below the maximum error of upstream, and above its mean."""
    precise = torch.randn(3, 5, 40)
    ours, reference = (precise + 0.05).bfloat16(), precise.bfloat16()
    reference[1, 2, 3] += 0.1
    found, expected, exact = map(BaseModelOutputWithPooling, (ours, reference, precise))
    report = compare_outputs(found, expected, torch.ones(3, 5), precise=exact)
    assert [row.note[:10] for row in report.failures] == ["mean error"]
    report.rows.append(ParityRow("case", "within its tolerance", 1.0, 1.0, 1.0, 1.01, True))
    assert not report.worst.passed  # the first of the failed rows
    assert not ParityReport().passed and ParityReport().summary() == "nothing was compared"


def test_batches_have_every_kind_of_padding():
    config = random_config(0)
    batches = parity_batches(random_tokens(config, (3, 9, 5)), config)
    masks = {case: batches[case]["attention_mask"].tolist() for case in CASES}
    assert masks["padded right"] == [[1] * n + [0] * (9 - n) for n in (3, 9, 5)]
    assert masks["padded left"] == [[0] * (9 - n) + [1] * n for n in (3, 9, 5)]
    assert masks["holes"][1] == [1, 1, 1, 0, 1, 1, 1, 1, 0]
    assert masks["unpadded"] == [[1] * 5] * 2


@pytest.mark.parametrize(
    ("parameter", "spoil"),
    [
        ("classifier.bias", lambda gradient: gradient * 1.001),
        # It is zero, and must not hide behind the floor.
        ("bert.encoder.layer.1.attention.self.key.bias", lambda gradient: gradient + 1e-3),
    ],
)
def test_a_wrong_gradient_is_named(parameter, spoil):
    ours = tiny("BertForTokenClassification")
    reference = reference_model(ours)
    ours.get_parameter(parameter).register_hook(spoil)
    report = compare(ours, reference, labels=True, gradients=True)
    assert {row.name for row in report.failures} == {f"grad {parameter}"}


def test_only_attended_positions_are_compared():
    def outputs(states):
        return BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=states[:, 0])

    def failures(found, expected=None):
        report = compare_outputs(found, expected or outputs(states), mask)
        return [(row.name, row.note) for row in report.failures]

    states = torch.randn(3, 5, 7)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1], [1, 0, 0, 1, 1]])
    other = states.clone()
    other[mask == 0] += 1
    assert not failures(outputs(other))
    for wrong in (other[1, 2, 3] + 1e-4, math.nan):
        other[1, 2, 3] = wrong
        assert [name for name, _ in failures(outputs(other))] == ["last_hidden_state"]
    with pytest.raises(ValueError, match="attends to no position"):
        compare_outputs(outputs(other), outputs(states), torch.zeros(3, 5))
    alone = BaseModelOutputWithPooling(last_hidden_state=states)
    assert "this implementation lacks" in failures(alone)[0][1]
    assert "upstream lacks" in failures(outputs(states), alone)[0][1]
    narrow = BaseModelOutputWithPooling(last_hidden_state=states[..., :4])
    assert "shape" in failures(narrow, alone)[0][1]


def test_masked_out_tokens_are_compared_where_they_are_no_padding():
    ids = torch.tensor([[5, 6, 7, 0, 0], [5, 0, 7, 8, 9], [5, 6, 7, 8, 0]])
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 0, 1], [0, 0, 0, 0, 0]])
    expected = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]
    batch = {"input_ids": ids, "attention_mask": mask}
    assert compared_positions(batch, 0).int().tolist() == expected
    assert torch.equal(compared_positions(batch, None), mask.bool())


def test_reference_is_upstreams_own_class_with_equal_weights():
    class BertForSequenceClassification(hf_bert_impl.BertForSequenceClassification):
        pass

    ours = tiny("BertForSequenceClassification", num_labels=3)
    ours.__class__ = BertForSequenceClassification
    with hf_bert_impl.registered():
        reference = reference_model(ours)
    assert type(reference).__module__ == "transformers.models.bert.modeling_bert"
    assert reference.config.num_labels == 3
    assert not hasattr(reference.config, "padding_free")
    ours.classifier.weight.data.zero_()
    assert reference.classifier.weight.abs().sum() > 0
    base = hf_bert_impl.BertModel(ours.config, add_pooling_layer=False)
    assert reference_model(base).pooler is None


def test_what_upstream_cannot_compute_is_refused():
    more = tiny()
    more.extra = torch.nn.Linear(2, 3)
    for make, said in (
        (lambda: tiny(position_embedding_type="relative_key"), "'relative_key'.*'absolute' only"),
        (lambda: tiny(pruned_heads={1: [0, 2]}), "pruned heads"),
        (lambda: more, 'Unexpected key.*"extra.weight"'),
    ):
        with pytest.raises(ValueError, match=said):
            reference_model(make())
    with pytest.raises(ValueError, match="no BERT class of transformers"):
        reference_class("GPT2Model")
