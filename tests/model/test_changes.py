"""What is changed in a model after a call, along every route: as transformers' model, so changed.

`tests/fuzz` draws the same changes for random models.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from hf_bert_impl.model.preparing import prepared_kernels
from hf_bert_impl.parity import reference_model
from tests.fuzz.changes import CHANGES, Site, apply
from tests.model.cases import assert_same_as_upstream, model_and_batch, outputs, random_batch

ROUTES = ("plain", "oneDNN", "prepared", "eager")
PLACE = "bert.encoder.layer.1.output.dense"


class DropPath(nn.Module):
    """Drops whole texts, as it is usually written."""

    def forward(self, states):
        keep = torch.arange(len(states)) % 2 == 0
        return states * keep[:, None, None]


def mean_attention(self, hidden_states, attention_mask=None, **kwargs):
    """Attention between neighbours in the batch's axis 1."""
    assert hidden_states.ndim == 3
    return hidden_states.mean(dim=1, keepdim=True) + hidden_states, None


def of_another_class(module, forward):
    module.__class__ = type("Other", (type(module),), {"forward": forward})


def without_bias(site):
    site.module._parameters["bias"] = None


def first_token_subtracted(inner, states):
    return states - states[:, :1]


#: Changes of both models, in addition to those of the random trials. Some modules read padding.
BOTH = {
    "attention of one's own": lambda s: of_another_class(s.attention, mean_attention),
    "dropout of one's own": lambda s: setattr(s.layer.output, "dropout", DropPath()),
    "forward across tokens": lambda s: setattr(s.layer.output, "forward", first_token_subtracted),
    "no bias": without_bias,
    "weight norm": lambda s: parametrizations.weight_norm(s.module),
    "pruned weights": lambda s: prune.l1_unstructured(s.module, "weight", amount=0.5),
    "more tokens": lambda s: s.model.resize_token_embeddings(s.model.config.vocab_size + 3),
    "another decoder": lambda s: s.model.set_output_embeddings(nn.Linear(30, 7)),
    "tied embeddings": lambda s: s.model.get_input_embeddings().weight.mul_(1.5),
    "mode of a part": lambda s: s.model.cls.train(),
}


def changed(change, site):
    torch.manual_seed(5)  # new weights are the same in both models
    if change not in BOTH:
        return apply(change, site)
    BOTH[change](site)
    return site.model


def pair():
    """A model with its reference, a batch with holes, and one without padding."""
    sizes = dict(num_attention_heads=3, hidden_size=30, num_hidden_layers=3)
    model, batch = model_and_batch(
        "BertForPreTraining", 7, "holes", tie_word_embeddings=True, **sizes
    )
    whole = random_batch("BertForPreTraining", model.config, None)
    return model, reference_model(model), [batch, whole]


@pytest.fixture(params=ROUTES)
def ready(request):
    """Makes a model take a route."""
    if request.param in ("oneDNN", "prepared"):
        request.getfixturevalue({"oneDNN": "by_onednn", "prepared": "needs_kernels"}[request.param])

    def make(model, *others):
        if request.param == "prepared":
            model.prepare_for_inference()
            assert prepared_kernels(model) is not None
        for each in (model, *others):
            each.set_attn_implementation("eager" if request.param == "eager" else "sdpa")

    return make


@pytest.mark.parametrize("change", [*CHANGES, *BOTH])
def test_a_change(change, ready):
    model, reference, batches = pair()
    ready(model, reference)
    outputs(model, batches[0])
    with torch.no_grad():
        model = changed(change, Site(model, PLACE, seed=1, is_reference=False))
        reference = changed(change, Site(reference, PLACE, seed=1, is_reference=True))
    for batch in batches:
        assert_same_as_upstream(model, batch, 1e-4, reference=reference)
    model.eval().prepare_for_inference()
    assert_same_as_upstream(model, batches[0], 1e-4, reference=reference)


PATHS = [
    *("embeddings", "encoder", "pooler", "encoder.layer.0", "encoder.layer.1.attention"),
    *("encoder.layer.0.attention.self", "encoder.layer.1.attention.output"),
    *("encoder.layer.0.intermediate", "encoder.layer.1.output"),
]


@pytest.mark.parametrize("path", PATHS)
def test_modules_of_transformers_in_ours(path, ready):
    """Padding is then computed too."""
    model, reference, batches = pair()
    ready(model, reference)
    outputs(model, batches[0])
    parent, _, name = f"bert.{path}".rpartition(".")
    theirs = copy.deepcopy(reference.get_submodule(f"bert.{path}"))
    setattr(model.get_submodule(parent), name, theirs)
    for batch in batches:
        everywhere = torch.ones_like(batch["input_ids"]).bool()
        ours, theirs = model.base_model, reference.base_model
        assert_same_as_upstream(ours, batch, reference=theirs, real=everywhere)


def compiled(module, called):
    def backend(graph, _):
        called.append(module)
        return graph.forward

    module.compile(backend=backend)


def replaced(module, called):
    forward = module.forward
    module.forward = lambda *given, **named: called.append(module) or forward(*given, **named)


@pytest.mark.parametrize("path", ["embeddings", "encoder.layer.1.intermediate"])
@pytest.mark.parametrize("comes", [compiled, replaced])
def test_what_comes_around_a_module(comes, path, ready):
    """It is called, though modules call each other's `forward` where nothing is around them."""
    model, reference, batches = pair()
    ready(model, reference)
    called = []
    outputs(model, batches[0])
    comes(model.get_submodule(f"bert.{path}"), called)
    assert_same_as_upstream(model, batches[0], reference=reference)
    assert called
