"""What is changed in a model, or watches it, along every route: as in transformers' model.

`tests/fuzz` draws the same changes for random models.
"""

import copy
import functools
import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils._pytree import tree_leaves

import hf_bert_impl
from hf_bert_impl.model import layers
from hf_bert_impl.model.preparing import prepared_kernels
from hf_bert_impl.parity import reference_model
from tests.fuzz.changes import CHANGES, WEIGHTS, Site, apply, of_another_class
from tests.model.cases import (
    HEADS,
    assert_same,
    assert_same_as_upstream,
    model_and_batch,
    outputs,
    random_batch,
)

ROUTES = ("plain", "oneDNN", "prepared", "eager")
PLACES = (
    "bert.encoder.layer.1.output.dense",
    "bert.encoder.layer.0.attention.self.value",
    "cls.predictions.transform.dense",
)


class DropPath(nn.Module):
    """Drops whole texts, as it is usually written."""

    def forward(self, states):
        keep = torch.arange(len(states)) % 2 == 0
        return states * keep[:, None, None]


def wrap_all(module, kinds):
    """Hides attributes: a wrapper has no weight, no num_embeddings."""
    for name, child in list(module.named_children()):
        if isinstance(child, kinds):
            setattr(module, name, nn.Sequential(child))
        else:
            wrap_all(child, kinds)


def mean_attention(self, hidden_states, attention_mask=None, **kwargs):
    """Attention between neighbours in the batch's axis 1."""
    assert hidden_states.ndim == 3
    return hidden_states.mean(dim=1, keepdim=True) + hidden_states, None


def dropping_all(dropout):
    dropout.train().p = 1.0


def first_token_subtracted(inner, states):
    return states - states[:, :1]


def of_transformers(path, site):
    """A module of transformers in ours."""
    if not site.is_reference:
        theirs = reference_model(site.model).bert.get_submodule(path)
        site.model.bert.set_submodule(path, theirs)


PATHS = (
    *("embeddings", "encoder", "pooler", "encoder.layer.0", "encoder.layer.1.attention"),
    *("encoder.layer.0.attention.self", "encoder.layer.1.attention.output"),
    *("encoder.layer.0.intermediate", "encoder.layer.1.output"),
)
#: Changes of both models, in addition to those of the random trials. Some modules read padding.
BOTH = {
    "attention of one's own": lambda s: of_another_class(s.attention, mean_attention),
    "dropout of one's own": lambda s: setattr(s.layer.output, "dropout", DropPath()),
    "forward across tokens": lambda s: setattr(s.layer.output, "forward", first_token_subtracted),
    "no bias": lambda s: s.module.register_parameter("bias", None),
    "weight norm": lambda s: parametrizations.weight_norm(s.module),
    "pruned weights": lambda s: prune.l1_unstructured(s.module, "weight", amount=0.5),
    "more tokens": lambda s: s.model.resize_token_embeddings(s.model.config.vocab_size + 3),
    "another decoder": lambda s: s.model.set_output_embeddings(nn.Linear(30, 7)),
    "tied embeddings": lambda s: s.model.get_input_embeddings().weight.mul_(1.5),
    "mode of a part": lambda s: s.model.cls.train(),
    # Monte Carlo dropout is random; this one drops everything.
    "a dropout in train mode": lambda s: dropping_all(s.layer.attention.output.dropout),
    "the first dropout in train mode": lambda s: dropping_all(s.model.bert.embeddings.dropout),
    "a copy in another precision": lambda s: copy.deepcopy(s.model).double(),
    "memory of several processes": lambda s: s.model.share_memory(),
    "wrapped linear layers": lambda s: wrap_all(s.model, nn.Linear),
    "wrapped embeddings": lambda s: wrap_all(s.model, nn.Embedding),
    "wrapped LayerNorms": lambda s: wrap_all(s.model, nn.LayerNorm),
    **{f"transformers' {path}": functools.partial(of_transformers, path) for path in PATHS},
}


@torch.no_grad()
def changed(change, site):
    torch.manual_seed(5)  # new weights are the same in both models
    return apply(change, site, CHANGES | BOTH)


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


@pytest.mark.parametrize(
    ("change", "place"),
    [
        *((change, PLACES[0]) for change in (*CHANGES, *BOTH)),
        *itertools.product(WEIGHTS, PLACES[1:]),
    ],
)
def test_a_change(change, place, ready):
    model, reference, batches = pair()
    ready(model, reference)
    outputs(model, batches[0])
    model = changed(change, Site(model, place, seed=1, is_reference=False))
    reference = changed(change, Site(reference, place, seed=1, is_reference=True))
    for batch in batches:
        assert_same_as_upstream(model, batch, 1e-4, reference=reference)
    model.eval().prepare_for_inference()
    assert_same_as_upstream(model, batches[0], 1e-4, reference=reference.eval())


@pytest.mark.parametrize("path", ["embeddings", "encoder.layer.1.intermediate"])
def test_a_compiled_module(path, ready):
    """It is called, though modules call each other's `forward` where nothing is around them."""
    model, reference, batches = pair()
    ready(model, reference)
    called = []
    outputs(model, batches[0])
    model.get_submodule(f"bert.{path}").compile(
        backend=lambda graph, _: called.append(path) or graph.forward
    )
    assert_same_as_upstream(model, batches[0], reference=reference)
    assert called


# --- hooks and modules inside ---------------------------------------------------------------------


def leaves_padding_out(model, batch):
    """Whether padding is not computed: its states are zeros."""
    return not outputs(model, batch)[0][batch["attention_mask"] == 0].any()


def described(value):
    return tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__


def watch(model):
    """Records every call of every module below the model: its arguments, and what comes out."""
    given, found = {}, {}
    for name, module in model.named_modules():
        if name and not isinstance(module, nn.ModuleList):
            given[name], found[name] = [], []

            def hook(module, args, kwargs, output, name=name):
                by_name = {argument: described(value) for argument, value in kwargs.items()}
                given[name].append(([*map(described, args)], by_name))
                leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
                found[name].append([leaf.clone() for leaf in leaves if leaf.is_floating_point()])

            module.register_forward_hook(hook, with_kwargs=True)
    return given, found


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize(("backend", "padding"), [("sdpa", "holes"), ("eager", "none")])
@pytest.mark.parametrize("head", HEADS)
def test_forward_hooks(head, backend, padding, prepared):
    model, batch = model_and_batch(head, 2, padding, attn_implementation=backend)
    reference = reference_model(model)
    reference.set_attn_implementation(backend)
    if prepared:
        model.prepare_for_inference()
    (given, found), (given_there, expected) = watch(model), watch(reference)
    outputs(model, batch)
    outputs(reference, batch)
    assert given == given_there
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=2e-5)


HOOKS = {
    "forward": lambda m, do: m.register_forward_hook(do),
    "forward pre": lambda m, do: m.register_forward_pre_hook(do),
    "full backward": lambda m, do: m.register_full_backward_hook(do),
    "backward pre": lambda m, do: m.register_full_backward_pre_hook(do),
    "all forward": lambda m, do: nn.modules.module.register_module_forward_hook(do),
    "all backward": lambda m, do: nn.modules.module.register_module_full_backward_hook(do),
}


@pytest.mark.parametrize("place", ["", "embeddings.word_embeddings"])
@pytest.mark.parametrize("kind", HOOKS)
def test_one_hook_is_enough(kind, place):
    """After its removal, padding is skipped again."""
    model, batch = model_and_batch("BertModel", 2, num_hidden_layers=3)
    assert leaves_padding_out(model, batch)
    handle = HOOKS[kind](model.get_submodule(place), lambda *_: None)
    try:
        everywhere = torch.ones_like(batch["attention_mask"]).bool()
        assert_same(outputs(model, batch), outputs(reference_model(model), batch), everywhere)
    finally:
        handle.remove()
    assert leaves_padding_out(model, batch)


def test_a_subclass_that_declares_it():
    class Mine(layers.BertIntermediate):
        def forward(self, states):
            return super().forward(states)

    model, batch = model_and_batch("BertModel", 2)
    model.encoder.layer[0].intermediate.__class__ = Mine
    assert not leaves_padding_out(model, batch)
    Mine.takes_packed = (Mine.forward,)
    assert leaves_padding_out(model, batch)
    model.encoder.layer[0].__class__ = type("Other", (layers.BertLayer,), {})  # replaces no method
    assert leaves_padding_out(model, batch)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@torch.no_grad()
def test_inner_modules_called_by_a_wrapper(backend):
    """With all that transformers gives its own."""
    model, batch = model_and_batch("BertForPreTraining", 2, "holes", attn_implementation=backend)
    reference = reference_model(model)
    reference.set_attn_implementation(backend)
    calls = []
    for name, module in [*reference.named_modules()][2:]:  # those below `bert`, and heads
        module.register_forward_hook(
            lambda _, *call, name=name: calls.append((name, *call)), with_kwargs=True
        )
    reference(**batch)
    states = torch.randn(5, 3, model.config.hidden_size)
    for inputs in ((None, None, None, states), (batch["input_ids"][:, :3], None, None, None, 4)):
        reference.bert.embeddings(*inputs)
    for name, inputs, options, expected in calls:
        found = model.get_submodule(name)(*inputs, **options)
        torch.testing.assert_close(tree_leaves(found), tree_leaves(expected), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("owner", [nn.Module, layers.BertIntermediate])
def test_a_call_that_is_patched(owner, monkeypatch):
    """Profilers patch the calls of all modules."""
    model, batch = model_and_batch("BertModel", 2, "right", num_hidden_layers=2)
    expected, called, call = outputs(model, batch), [], owner.__call__
    monkeypatch.setattr(
        owner, "__call__", lambda self, *a, **k: called.append(type(self)) or call(self, *a, **k)
    )
    found = outputs(model, batch)
    assert layers.BertIntermediate in called
    assert_same(found, expected, batch["attention_mask"].bool())


@pytest.mark.usefixtures("needs_kernels")
def test_memory_that_is_gone():
    """`share_memory` returns that of so large a weight to the system."""
    sizes = dict(hidden_size=768, intermediate_size=11_500, num_hidden_layers=1)
    config = hf_bert_impl.BertConfig(vocab_size=9, max_position_embeddings=7, **sizes)
    model = hf_bert_impl.BertModel(config).eval()
    batch = {"input_ids": torch.tensor([[1, 3, 5]])}
    reference = reference_model(model)
    model.prepare_for_inference()
    outputs(model, batch)
    model.share_memory()
    assert_same_as_upstream(model, batch, 1e-4, reference=reference)
