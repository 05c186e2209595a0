"""Modules that other libraries put in the place of ours: adapters, quantised layers, wrappers."""

import copy

import pytest
import torch
from torch import nn

from tests.model.cases import HEADS, masks, random_batch, random_config, random_model


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
    config = random_config(1, head)
    model = random_model(head, config)
    wrapped = copy.deepcopy(model)
    wrap_all(wrapped, kinds)
    for name, mask in masks().items():
        batch = random_batch(head, config, mask)
        with torch.no_grad():
            expected = model(**batch)
            for step in ("plain", "prepared"):
                if step == "prepared":
                    wrapped.prepare_for_inference()
                found = wrapped(**batch)
                for key in expected:
                    if isinstance(expected[key], torch.Tensor):
                        assert torch.allclose(found[key], expected[key], atol=1e-4), (name, key)


@pytest.mark.parametrize("head", [head for head in HEADS if head != "BertLMHeadModel"])
def test_dynamic_quantization(head):
    """torch's own; a quantised layer has a method where others have a weight."""
    config = random_config(2, head)
    model = random_model(head, config)
    with pytest.warns(DeprecationWarning):
        quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear})
    for name, mask in masks().items():
        batch = random_batch(head, config, mask)
        with torch.no_grad():
            expected, found = model(**batch)[-1], quantised(**batch)[-1]
        error = (found - expected).abs().mean() / expected.abs().mean()
        assert 0 < error < 0.1, name
