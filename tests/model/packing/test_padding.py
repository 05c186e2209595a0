"""Packing: which tokens are computed, in which order, and back."""

import pytest
import torch

from hf_bert_impl.model import attention
from hf_bert_impl.model.packing import Wanted, plan
from hf_bert_impl.parity import compare_models, reference_model
from tests.model.cases import (
    BACKENDS,
    HEADS,
    NO_DROPOUT,
    masks,
    model_and_batch,
    outputs,
    random_labels,
)


@pytest.mark.parametrize("name", ["right", "left", "holes"])
def test_groups_are_rows_of_one_length_with_their_keys_first(name):
    attended = masks()[name].bool()
    wanted = Wanted(first_token=True)
    packing, _ = plan(tuple(attended.shape), attended.device, attended, wanted=wanted)
    seen, start = [], 0
    for rows, queries, keys in packing.groups:
        for _ in range(rows):
            index = packing.token_index[start : start + queries]
            row = index // attended.shape[1]
            assert row.unique().numel() == 1
            is_key = attended.flatten()[index]
            assert int(is_key.sum()) == keys
            assert is_key[:keys].all()
            seen.append(int(row[0]))
            start += queries
    assert start == packing.token_index.numel()
    assert sorted(seen) == list(range(attended.shape[0]))
    assert len({(q, k) for _, q, k in packing.groups}) == len(packing.groups)


def test_nothing_to_gain_without_padding():
    everything = torch.ones(3, 4, dtype=torch.bool)
    shape, device = (3, 4), torch.device("cpu")
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    assert plan(shape, device) == (None, None)
    assert plan(shape, device, everything) == (None, None)
    assert plan(shape, device, everything, wanted=Wanted(everything)) == (None, None)
    # All is computed, but not all is attended.
    packing, needed = plan(shape, device, mask, wanted=Wanted(everything))
    assert packing is None
    assert needed is mask
    # Sequences that come sorted lie where they are computed.
    packing, _ = plan((1, 13), device, lengths=[2, 4, 7])
    assert packing.token_index is None


def test_no_mask_is_built_that_no_layer_reads(monkeypatch):
    """Neither for packed layers nor for layers that attend within packed tokens."""
    built = []

    def recorded(*args, **kwargs):
        built.append(args)
        return backend_mask(*args, **kwargs)

    backend_mask = attention.backend_mask
    monkeypatch.setattr(attention, "backend_mask", recorded)
    model, batch = model_and_batch()
    outputs(model, batch)
    assert not built
    outputs(model, batch, output_attentions=True)
    assert len(built) == 1
    # A hook may move the layer's input to where packed tokens are laid out.
    model.encoder.layer[0].register_forward_hook(lambda *args: None)
    outputs(model, batch)
    assert len(built) == 2


def test_hidden_states_under_padding_are_zero():
    for name in ("right", "left", "holes"):
        model, batch = model_and_batch("BertModel", 1, name)
        mask = batch["attention_mask"]
        output = outputs(model, batch, output_hidden_states=True, output_attentions=True)
        for states in (output.last_hidden_state, *output.hidden_states):
            assert not states[mask == 0].any()
            assert states[mask == 1].abs().sum(-1).all()
        for probabilities in output.attentions:
            # (B, S, H, S): a query under padding, but for the pooler's position 0, has no row.
            rows = probabilities.transpose(1, 2)
            assert not rows[:, 1:][mask[:, 1:] == 0].any()
            assert torch.allclose(rows[mask == 1].sum(-1), torch.ones(()), atol=1e-5)


def test_a_document_does_not_touch_another():
    model, batch = model_and_batch("BertModel", 2)
    before = outputs(model, batch).last_hidden_state
    others = (batch["input_ids"][2] + 1) % model.config.vocab_size
    batch["input_ids"][2] = others * batch["attention_mask"][2]
    after = outputs(model, batch).last_hidden_state
    rows = torch.tensor([0, 1, 3, 4])
    assert torch.equal(before[rows], after[rows])
    assert not torch.equal(before[2], after[2])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("head", ["BertForSequenceClassification", "BertForTokenClassification"])
def test_rows_without_attended_position_train(head, backend, padding_free):
    fields = dict(padding_free=padding_free, attn_implementation=backend)
    one_row = masks()["right"]
    one_row[3] = 0
    for mask in (one_row, one_row * 0):
        model, batch = model_and_batch(head, 4, mask, labels=True, **fields)
        batch["labels"].clamp_(min=0)
        output = model.train()(**batch, output_hidden_states=True)
        output.loss.backward()
        assert output.logits.isfinite().all()
        assert all(states.isfinite().all() for states in output.hidden_states)
        found = [p.grad for p in model.parameters() if p.grad is not None]
        assert found
        assert all(gradient.isfinite().all() for gradient in found)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("head", HEADS)
def test_a_row_without_attended_position_is_upstreams(head, padding_free, backend):
    """Upstream's eager backend looks at all of such a row alike, its sdpa at nothing."""
    mask = masks()["right"]
    mask[3] = 0
    fields = dict(padding_free=padding_free, attn_implementation=backend, **NO_DROPOUT)
    model, batch = model_and_batch(head, 4, mask, **fields)
    labels = random_labels(head, model.config, batch)
    report = compare_models(
        model,
        reference_model(model),
        {"empty row": batch},
        labels={"empty row": labels},
        gradients=bool(labels),
        tolerance=5e-5,
    )
    assert report.passed, report.summary()


def test_gradients_reach_the_hidden_states_that_are_returned():
    model, batch = model_and_batch("BertModel", 3, "left")
    output = model(**batch, output_hidden_states=True)
    for states in output.hidden_states:
        states.retain_grad()
    (output.last_hidden_state.sum() + output.pooler_output.pow(2).sum()).backward()
    assert all(states.grad is not None and states.grad.any() for states in output.hidden_states)
    assert output.hidden_states[-1] is output.last_hidden_state
