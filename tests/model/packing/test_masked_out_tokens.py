"""Tokens that the mask leaves out but that are not the pad token: computed as upstream does."""

import copy

import pytest
import torch

from hf_bert_impl.model import modeling_bert, prepared
from hf_bert_impl.model import packing as packing_module
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS
from hf_bert_impl.model.packing import Inputs, Wanted, plan
from hf_bert_impl.parity import reference_model
from tests.model.cases import (
    BACKENDS,
    HEADS,
    LOSS_HEADS,
    NO_DROPOUT,
    Operators,
    assert_same,
    assert_same_gradients,
    gradients,
    masks,
    model_and_batch,
    outputs,
    random_labels,
    rows_through,
)

#: What the mask leaves out: some words and some padding, or words alone.
LAYOUTS = ("mixed", "query")


def words_left_out(layout="mixed", pad=0, seed=3):
    """(5, 13) ids from 6 to 60, with `pad` in places that are masked out, and the mask."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(6, 61, (5, 13), generator=generator)
    mask = masks()["holes" if layout == "mixed" else "right"]
    if layout == "mixed":
        drawn = torch.rand(ids.shape, generator=generator) < 0.5
        ids = ids.masked_fill((mask == 0) & drawn, pad)
        mask[:, 0] = torch.tensor([1, 0, 1, 0, 1])
    return ids, mask


def model_and_words(head="BertModel", layout="mixed", pad=0, **fields):
    """A model, its batch, and (B, S) bool: what is not padding."""
    ids, mask = words_left_out(layout, 0 if pad is None else pad)
    model, batch = model_and_batch(head, 2, mask, **fields | {"pad_token_id": pad})
    if head == "BertForMultipleChoice":
        ids = ids[:, None].repeat(1, batch["input_ids"].shape[1], 1)
    batch["input_ids"] = ids
    real = (batch["attention_mask"] != 0) | (ids != pad)
    return model, batch, real.flatten(0, -2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("head", HEADS)
def test_every_head_is_upstreams_there(head, backend, is_prepared, layout):
    model, batch, real = model_and_words(head, layout, attn_implementation=backend)
    expected = outputs(reference_model(model), batch, output_hidden_states=True)
    if is_prepared:
        model.prepare_for_inference()
    assert_same(outputs(model, batch, output_hidden_states=True), expected, real)
    found = outputs(model, batch)
    assert_same(found, {name: expected[name] for name in found}, real)
    if head == "BertModel":
        assert found.last_hidden_state[real].abs().sum(-1).all()
        assert not found.last_hidden_state[~real].any()
    if head == "BertForMaskedLM" and layout == "mixed":
        assert not found.logits[~real].any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("head", HEADS[1:])
def test_losses_and_gradients_are_upstreams(head, backend, layout):
    fields = dict(attn_implementation=backend, sparse_prediction=False, **NO_DROPOUT)
    model, batch, real = model_and_words(head, layout, **fields)
    batch |= random_labels(head, model.config, batch)
    found = []
    for one in (reference_model(model), model):
        output = one.train()(**batch)
        loss = output.loss
        logits = output.get("prediction_logits", output.get("logits"))
        if logits is not None and logits.shape[:2] == real.shape:
            loss = loss + logits[real].pow(2).mean()  # what the loss itself does not read
        found.append((loss, gradients(one, loss)))
    (expected_loss, expected), (loss, ours) = found
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=1e-6)
    assert_same_gradients(ours, expected, tolerance=5e-5)


@pytest.mark.parametrize("pad", [0, 7, None])
@pytest.mark.parametrize("is_prepared", [False, True])
def test_the_pad_token_is_the_configs(pad, is_prepared):
    model, batch, real = model_and_words(pad=pad)
    expected = outputs(reference_model(model), batch)
    if is_prepared:
        model.prepare_for_inference()
    found = outputs(model, batch)
    assert_same(found, expected, real)
    assert bool(real.all()) == (pad is None)
    assert not found.last_hidden_state[~real].any()


@pytest.mark.parametrize("head", ["BertModel", "BertForMaskedLM"])
def test_embeddings_are_computed_as_the_ids_are(head):
    """The pad token is told by its row of the table, so that padding is left out as well."""
    model, batch, real = model_and_words(head)
    table = model.get_input_embeddings()
    expected = outputs(model, batch)
    rows = rows_through(model.base_model.encoder.layer[0].intermediate)
    ids = batch.pop("input_ids")
    batch["inputs_embeds"] = table(ids)
    found = outputs(model, batch)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert rows.pop() < real.numel()
    # Another number there, or no such token: then all is computed, as upstream does.
    reference = reference_model(model)
    batch["inputs_embeds"] = torch.where(real[..., None], batch["inputs_embeds"], 0.5)
    assert_same(outputs(model, batch), outputs(reference, batch), torch.ones_like(real))
    batch["inputs_embeds"] = table(ids)
    model.config.pad_token_id = None
    assert_same(outputs(model, batch), outputs(reference, batch), torch.ones_like(real))


def test_derivatives_of_embeddings():
    """Under a transform of torch.func values cannot be looked at."""
    model, batch, real = model_and_words()
    batch["inputs_embeds"] = model.embeddings.word_embeddings(batch.pop("input_ids")).detach()
    given = batch.pop("inputs_embeds")

    def total(embeddings):
        return model(inputs_embeds=embeddings, **batch).last_hidden_state[real].sum()

    given.requires_grad_()
    (expected,) = torch.autograd.grad(total(given), given)
    found = torch.func.grad(total)(given.detach())
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_vmap_over_token_ids(backend, head):
    """Mapped tensors have no values to look at; masks may be mapped, or not, or added."""
    model, batch = model_and_batch(head, 1, attn_implementation=backend)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    reference = reference_model(model)

    def call(ids, mask):
        return model(ids[None], attention_mask=mask[None])[0][0]

    for one_mask in (mask, mask[1].expand_as(mask).contiguous()):
        found = torch.vmap(call)(ids, one_mask)
        expected = outputs(reference, {"input_ids": ids, "attention_mask": one_mask})[0]
        assert_vmap(found, expected)
    found = torch.vmap(call, in_dims=(0, None))(ids, mask[1])
    assert_vmap(found, expected)
    if head != "BertForMultipleChoice":
        added = (1.0 - mask[:, None, None]) * torch.finfo(torch.float32).min
        found = torch.vmap(call)(ids, added)
        assert_vmap(found, outputs(reference, {"input_ids": ids, "attention_mask": added})[0])
        places = torch.arange(ids.shape[1]).expand_as(ids)
        found = torch.vmap(lambda i, p: model(i[None], position_ids=p[None])[0][0])(ids, places)
        assert_vmap(found, outputs(reference, {"input_ids": ids})[0])


def assert_vmap(found, expected):
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("head", LOSS_HEADS)
def test_gradients_of_each_sample(head, training):
    model, batch = model_and_batch(head, 1, labels=True, **NO_DROPOUT)
    model.train(training)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, sample):
        inputs = {name: value[None] for name, value in sample.items()}
        return torch.func.functional_call(model, parameters, (), inputs).loss

    each = torch.func.grad(loss)
    found = torch.vmap(each, in_dims=(None, 0), randomness="different")(parameters, batch)
    for row in (0, 3):
        sample = {name: value[row : row + 1] for name, value in batch.items()}
        expected = gradients(model, model(**sample).loss)
        assert_same_gradients({name: g[row] for name, g in found.items()}, expected)


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_attend_to_nothing(backend, is_prepared):
    """Upstream's eager backend looks at all of such a row alike."""
    model, batch, _ = model_and_words(attn_implementation=backend)
    batch["attention_mask"][1] = 0
    real = (batch["attention_mask"] != 0) | (batch["input_ids"] != 0)
    expected = outputs(reference_model(model), batch)
    if is_prepared:
        model.prepare_for_inference()
    assert_same(outputs(model, batch), expected, real)


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_probabilities(backend):
    model, batch, real = model_and_words(attn_implementation=backend)
    found = outputs(model, batch, output_attentions=True)
    model.config.padding_free = False
    expected = outputs(model, batch, output_attentions=True)
    for ours, theirs in zip(found.attentions, expected.attentions, strict=True):
        ours, theirs = (x.transpose(1, 2) for x in (ours, theirs))  # (B, S, H, S)
        assert torch.allclose(ours[real], theirs[real], atol=1e-6)
        assert not ours[:, 1:][~real[:, 1:]].any()


@pytest.mark.parametrize(
    "fields",
    [
        {"position_embedding_type": "relative_key"},
        {"position_embedding_type": "relative_key_query", "attn_implementation": "eager"},
        {"position_embedding_type": "sinusoidal"},
        CODERTIMO_FIELDS,
    ],
    ids=["relative_key", "relative_key_query", "sinusoidal", "codertimo"],
)
@pytest.mark.parametrize("head", ["BertModel", "BertForMaskedLM"])
def test_what_upstream_lacks_is_as_the_padded_computation(head, fields):
    model, batch, real = model_and_words(head, **fields)
    padded = copy.deepcopy(model)
    padded.config.padding_free = False
    head_mask = torch.rand(model.config.num_attention_heads)
    for options in ({}, {"head_mask": head_mask}):
        assert_same(outputs(model, batch, **options), outputs(padded, batch, **options), real)
    model.prepare_for_inference()
    assert_same(outputs(model, batch), outputs(padded, batch), real)


def test_a_hook_on_the_model_changes_nothing():
    model, batch, real = model_and_words("BertForMaskedLM")
    expected = outputs(model, batch)
    model.bert.register_forward_hook(lambda module, args, output: None)
    found = outputs(model, batch)
    assert_same(found, expected, real)
    assert not found.logits[~real].any()


@pytest.mark.parametrize("head", ["BertForSequenceClassification", "BertForNextSentencePrediction"])
def test_heads_of_the_pooled_vector_do_not_compute_them(head):
    model, batch, _ = model_and_words(head, "query")
    rows = rows_through(model.bert.encoder.layer[0].intermediate)
    outputs(model, batch)
    assert rows == [int(batch["attention_mask"].sum())]


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_prepared_layers_compute_them(layout, monkeypatch):
    model, batch, _ = model_and_words(layout=layout)
    calls, call = [], prepared.PreparedEncoder.__call__

    def counted(self, states, packing, keep):
        calls.append(len(states))
        return call(self, states, packing, keep)

    monkeypatch.setattr(prepared.PreparedEncoder, "__call__", counted)
    outputs(model.prepare_for_inference(), batch)
    assert len(calls) == 1


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batch_invariant_states_have_the_same_bits_alone(layout, is_prepared):
    fields = dict(batch_invariant=True, hidden_act="gelu", hidden_size=32, num_attention_heads=2)
    model, batch, real = model_and_words(layout=layout, **fields)
    if prepared.why_not(model.encoder) is not None:
        pytest.skip("batch invariance does not run here")
    if is_prepared:
        model.prepare_for_inference()
    together = outputs(model, batch).last_hidden_state
    for row in range(len(real)):
        alone = outputs(model, {name: x[row : row + 1] for name, x in batch.items()})
        assert torch.equal(alone.last_hidden_state[0], together[row])


def test_answers_beside_padding_are_batch_invariant():
    """The loss of an answer reads padding, which is computed as well."""
    fields = dict(batch_invariant=True, hidden_act="gelu")
    model, batch = model_and_batch("BertForQuestionAnswering", 2, labels=True, **fields)
    if prepared.why_not(model.bert.encoder) is not None:
        pytest.skip("batch invariance does not run here")
    expected = outputs(reference_model(model), batch)
    found = outputs(model, batch)
    assert_same(found, expected, batch)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-5, atol=1e-5)


def test_padding_is_told_by_one_operator(monkeypatch):
    mask = masks()["right"]
    counts = []
    for ids in (None, torch.randint(5, 61, mask.shape) * mask):
        others = (
            None if ids is None else packing_module.not_padding(Inputs(ids, *[None] * 4), 0, None)
        )
        wanted = Wanted(first_token=True, not_padding=others)
        with Operators() as operators:
            packing, _ = plan((5, 13), mask.device, mask, wanted=wanted)
        counts.append(len(operators.seen))
        assert packing.tokens == int(mask.sum())
        assert packing.visible is None
    assert counts[1] - counts[0] == 1
    # Where the mask leaves nothing out, nobody asks.
    model, batch = model_and_batch("BertModel", 1, "none")
    monkeypatch.delattr(modeling_bert, "not_padding")
    outputs(model, batch)
    outputs(model, batch | {"attention_mask": torch.ones(5, 13)})
    with pytest.raises(NameError):
        outputs(model, batch | {"attention_mask": mask})
