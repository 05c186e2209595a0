"""The layers among modules of other libraries: adapters, quantised layers, wrappers."""

import copy

import pytest
import torch
from torch import nn

from tests.model.cases import (
    ENCODER_HEADS,
    HEADS,
    assert_same,
    masks,
    model_and_batch,
    outputs,
    random_batch,
)


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
    for padding in masks():
        model, batch = model_and_batch(head, 1, padding)
        wrapped = copy.deepcopy(model)
        wrap_all(wrapped, kinds)
        expected = outputs(model, batch)
        assert_same(outputs(wrapped, batch), expected, batch)
        wrapped.prepare_for_inference()
        assert_same(outputs(wrapped, batch), expected, batch)


@pytest.mark.parametrize("head", ENCODER_HEADS)
def test_dynamic_quantization(head):
    """torch's own; a quantised layer has a method where others have a weight."""
    model, _ = model_and_batch(head, 2)
    with pytest.warns(DeprecationWarning):
        quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear})
    for name, mask in masks().items():
        batch = random_batch(head, model.config, mask)
        expected, found = outputs(model, batch)[-1], outputs(quantised, batch)[-1]
        if mask is not None and found.shape[:2] == mask.shape:  # which computes padding, too
            expected, found = expected[mask != 0], found[mask != 0]
        error = (found - expected).abs().mean() / expected.abs().mean()
        assert 0 < error < 0.1, name
