"""The layers among modules of other libraries: adapters, quantised layers, wrappers."""

import copy

import pytest
import torch
from torch import nn

from hf_bert_impl.parity import reference_model
from tests.model.cases import HEADS, assert_same_as_upstream, masks, model_and_batch, outputs


class Wrapped(nn.Module):
    """Has none of the inner module's attributes: no weight, no num_embeddings."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, states):
        return self.inner(states)


def wrap_all(module, kinds):
    for name, child in list(module.named_children()):
        if isinstance(child, kinds):
            setattr(module, name, Wrapped(child))
        else:
            wrap_all(child, kinds)


@pytest.mark.parametrize("kinds", [nn.Linear, nn.Embedding, nn.LayerNorm], ids=lambda k: k.__name__)
@pytest.mark.parametrize("head", HEADS)
def test_wrappers_without_a_weight(head, kinds):
    model, batch = model_and_batch(head, 1, "left")
    reference = reference_model(model)
    wrap_all(model, kinds)
    assert_same_as_upstream(model, batch, reference=reference)
    model.prepare_for_inference()
    assert_same_as_upstream(model, batch, reference=reference)


def test_dynamic_quantization():
    """torch's own; a quantised layer has a method where others have a weight."""
    for padding in masks():
        model, batch = model_and_batch("BertForPreTraining", 2, padding)
        with pytest.warns(DeprecationWarning):
            quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear})
        found, expected = (outputs(m, batch).seq_relationship_logits for m in (quantised, model))
        error = (found - expected).abs().mean() / expected.abs().mean()
        assert 0 < error < 0.1, padding
