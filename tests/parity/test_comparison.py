"""The comparison itself: it must agree with what is equal, and name what is not."""

import copy
import io
import json
import math

import pytest
import torch
from rich.console import Console
from transformers.modeling_outputs import BaseModelOutputWithPooling

import hf_bert_impl
from hf_bert_impl.parity import (
    ParityReport,
    ParityRow,
    compare_models,
    compare_outputs,
    reference_model,
)
from hf_bert_impl.parity.batches import (
    TEXTS,
    parity_batches,
    parity_labels,
    random_tokens,
    text_tokens,
)
from hf_bert_impl.parity.comparison import compared_positions, load_reference, reference_class
from tests.model.cases import random_config, random_model

CASES = ("padded right", "padded left", "holes", "unpadded")
LAYERS, ATTENTION_HEADS, HEAD_SIZE = 3, 5, 6


def tiny(name: str = "BertModel", **fields):
    """A random model whose sizes are all different, with weights large enough to matter."""
    sizes = dict(hidden_size=ATTENTION_HEADS * HEAD_SIZE, num_attention_heads=ATTENTION_HEADS)
    sizes |= dict(num_hidden_layers=LAYERS, max_position_embeddings=41, type_vocab_size=2)
    return random_model(name, random_config(0, name, **sizes | fields))


def batches_for(model, name: str = "BertModel"):
    choices = 2 if name == "BertForMultipleChoice" else 0
    return parity_batches(random_tokens(model.config), model.config, choices=choices)


def labels_for(model, batches):
    name = type(model).__name__
    labels = {case: parity_labels(name, model.config, batch) for case, batch in batches.items()}
    return {case: found for case, found in labels.items() if found}


def disturb(model, layer: int, head: int) -> None:
    """Change the queries of one head."""
    rows = slice(head * HEAD_SIZE, (head + 1) * HEAD_SIZE)
    with torch.no_grad():
        model.base_model.encoder.layer[layer].attention.self.query.weight[rows] *= 1.01


@pytest.mark.parametrize("name", ["BertModel", "BertForPreTraining", "BertForMultipleChoice"])
def test_what_is_compared(name):
    ours = tiny(name)
    batches = batches_for(ours, name)
    options = dict(backends=("eager", "sdpa"), labels=labels_for(ours, batches), gradients=True)
    report = compare_models(ours, reference_model(ours), batches, **options)
    assert report.passed, report.summary()
    assert {row.case for row in report.rows} == {
        f"fp32 {backend} {case}" for backend in ("eager", "sdpa") for case in CASES
    }
    names = {row.name for row in report.rows}
    assert {"embeddings", "layer 0", f"layer 2 head {ATTENTION_HEADS - 1}"} <= names
    assert ("loss" in names) == (name != "BertModel")
    assert {f"grad {parameter}" for parameter, _ in ours.named_parameters()} <= names
    key_biases = [row for row in report.rows if row.name.endswith("attention.self.key.bias")]
    assert len(key_biases) == 2 * LAYERS * len(CASES)  # in spite of their zero gradient


def test_bf16_finds_a_layer_that_computes_too_coarsely():
    ours = tiny()
    reference = reference_model(ours)
    options = dict(backends=("eager", "sdpa"), dtype=torch.bfloat16)
    report = compare_models(ours, reference, batches_for(ours), **options)
    assert report.passed, report.summary()
    assert {row.precision for row in report.rows} == {"bf16"}
    assert all(row.upstream_error is not None for row in report.rows)

    def coarse(module, inputs, output):
        # Three bits fewer than bfloat16 has.
        return (output.float() * 2**-3).to(torch.float8_e4m3fn).to(output.dtype) * 2**3

    ours.encoder.layer[1].output.dense.register_forward_hook(coarse)
    report = compare_models(ours, reference, batches_for(ours), **options)
    failed = {row.name for row in report.failures}
    assert "layer 1" in failed and not {"embeddings", "layer 0"} & failed


@pytest.mark.parametrize(("layer", "head"), [(0, 4), (2, 0)])
def test_a_changed_head_is_named(layer, head):
    ours = tiny()
    reference = reference_model(ours)
    disturb(ours, layer, head)
    report = compare_models(ours, reference, batches_for(ours), backends=("eager", "sdpa"))
    for case in {row.case for row in report.rows}:
        failures = [row.name for row in report.failures if row.case == case]
        # The head itself comes first, then the layer; no other head of the layer is touched.
        assert failures[:2] == [f"layer {layer} head {head}", f"layer {layer}"]
    assert not report.passed and not report.worst.passed


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
    batches = batches_for(ours)
    labels = labels_for(ours, batches)
    report = compare_models(ours, reference, batches, gradients=True, labels=labels)
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
    for wrong in (other[1, 2, 3] + 1e-3, math.nan):
        other[1, 2, 3] = wrong
        assert [name for name, _ in failures(outputs(other))] == ["last_hidden_state"]
    with pytest.raises(ValueError, match="no position is attended"):
        compare_outputs(outputs(other), outputs(states), torch.zeros(3, 5))
    alone = BaseModelOutputWithPooling(last_hidden_state=states)
    assert "this implementation does not give" in failures(alone)[0][1]
    assert "upstream does not give" in failures(outputs(states), alone)[0][1]
    narrow = BaseModelOutputWithPooling(last_hidden_state=states[..., :4])
    assert "shape" in failures(narrow, alone)[0][1]


def test_masked_out_tokens_are_compared_where_they_are_no_padding():
    ids = torch.tensor([[5, 6, 7, 0, 0], [5, 0, 7, 8, 9], [5, 6, 7, 8, 0]])
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 0, 1], [0, 0, 0, 0, 0]])
    expected = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]
    batch = {"input_ids": ids, "attention_mask": mask}
    assert compared_positions(batch, 0).int().tolist() == expected
    assert torch.equal(compared_positions(batch, None), mask.bool())


def test_models_are_left_as_they_were():
    ours = tiny().train()
    ours.set_attn_implementation("eager")
    reference = reference_model(ours)
    before = copy.deepcopy(ours.state_dict())
    compare_models(ours, reference, batches_for(ours), backends=("sdpa",), gradients=True)
    assert ours.training
    assert not reference.training
    assert ours.config._attn_implementation == "eager"
    assert reference.config._attn_implementation == "eager"
    assert all(parameter.grad is None for parameter in ours.parameters())
    assert all(torch.equal(before[key], value) for key, value in ours.state_dict().items())


def test_dropout_stands_where_upstream_has_it():
    ours = tiny("BertForMaskedLM", padding_free=False, hidden_dropout_prob=0.2)
    reference = reference_model(ours)
    batches = batches_for(ours)
    options = {"labels": labels_for(ours, batches), "gradients": True, "backends": ("eager",)}
    report = compare_models(ours, reference, batches, seed=1, **options)
    assert report.passed, report.summary()
    ours.bert.embeddings.dropout.p = 0.0
    report = compare_models(ours, reference, batches, seed=1, **options)
    assert {row.name for row in report.failures} >= {"embeddings", "loss"}


def test_reference_is_upstreams_own_class_with_equal_weights():
    class BertForSequenceClassification(hf_bert_impl.BertForSequenceClassification):
        pass

    ours = tiny("BertForSequenceClassification", num_labels=3)
    ours.__class__ = BertForSequenceClassification
    hf_bert_impl.register()
    try:
        reference = reference_model(ours)
    finally:
        hf_bert_impl.unregister()
    assert type(reference).__module__ == "transformers.models.bert.modeling_bert"
    assert reference.config.num_labels == 3
    assert not hasattr(reference.config, "padding_free")
    ours.classifier.weight.data.zero_()
    assert reference.classifier.weight.abs().sum() > 0
    assert (
        reference_model(hf_bert_impl.BertModel(ours.config, add_pooling_layer=False)).pooler is None
    )


def test_what_upstream_cannot_compute_is_refused():
    for fields, said in (
        ({"position_embedding_type": "relative_key"}, "'relative_key'.*'absolute' only"),
        ({"pruned_heads": {1: [0, 2]}}, "pruned heads"),
    ):
        with pytest.raises(ValueError, match=said):
            reference_model(tiny(**fields))
    ours = tiny()
    ours.extra = torch.nn.Linear(2, 3)
    with pytest.raises(ValueError, match=r"unexpected \['extra.bias', 'extra.weight'\]"):
        reference_model(ours)
    with pytest.raises(ValueError, match="no reference"):
        reference_class("GPT2Model")


def test_report_survives_json():
    assert not ParityReport().passed  # an empty one proves nothing
    assert ParityReport().summary() == "nothing was compared"
    ours = tiny()
    reference = reference_model(ours)
    disturb(ours, 1, 3)
    report = compare_models(ours, reference, batches_for(ours))
    report.rows.append(ParityRow.failure("case", "name", "no such output"))
    text = report.to_json()
    data = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert data["passed"] is False and data["failed"] == len(report.failures)
    assert (data["worst"]["name"], data["worst"]["max_abs"]) == ("name", None)
    assert [row["name"] for row in data["rows"]] == [row.name for row in report.rows]


def test_tables_fit_and_name_the_fault():
    ours = tiny("BertForMaskedLM")
    reference = reference_model(ours)
    disturb(ours, 1, 3)
    report = compare_models(ours, reference, batches_for(ours), gradients=True)
    report.title = "[MASK] is no markup"
    console = Console(width=80, record=True, file=io.StringIO())
    report.render(console, heads=True)
    text = console.export_text()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "[MASK] is no markup" in text
    assert "fails first at layer 1 head 3" in text
    assert "FAILED in" in text
    assert "…" not in text


def test_batches_are_of_every_kind():
    config = tiny().config
    batches = parity_batches(random_tokens(config), config)
    assert tuple(batches) == CASES
    right, left, holes, unpadded = (batch["attention_mask"] for batch in batches.values())
    assert right[:, 0].all() and not right[:, -1].all()
    assert left[:, -1].all() and not left[:, 0].all()
    assert holes[:, 0].all() and (right - holes).sum() > 3
    assert unpadded.all() and unpadded.shape[0] > 1
    for batch in batches.values():
        assert batch["input_ids"].max() < config.vocab_size
        assert batch["token_type_ids"].max() == 1
    questions = parity_batches(random_tokens(config), config, choices=2)
    assert questions["padded right"]["input_ids"].shape == (2, 2, 37)
    with pytest.raises(ValueError, match="multiple of 3"):
        parity_batches(random_tokens(config), config, choices=3)


def test_real_weights_equal_upstream(minilm_path):
    ours = hf_bert_impl.BertModel.from_pretrained(minilm_path, dtype=torch.float32).eval()
    reference, info = load_reference("BertModel", str(minilm_path), dtype=torch.float32)
    assert not info["missing_keys"]
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(minilm_path)
    batches = parity_batches(text_tokens(tokenizer, TEXTS, 128), ours.config)
    report = compare_models(ours, reference, batches, backends=("eager", "sdpa"))
    assert report.passed, report.summary()
    final = [row for row in report.rows if row.name in ("last_hidden_state", "pooler_output")]
    assert max(row.max_abs for row in final) < 1e-5
