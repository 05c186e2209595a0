"""Which calls of a linear layer oneDNN may serve: those that nobody watches or transforms."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import prune
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.hooks import RemovableHandle

from hf_bert_impl.model import cpu_kernels
from tests.model.cases import Operators, assert_same, model_and_batch, outputs, random_model
from tests.model.cpu_kernels.test_plain_linear import counted, linear_layers

pytestmark = pytest.mark.usefixtures("by_onednn")


def hook(model, seen):
    model.encoder.layer[0].output.dense.register_forward_hook(lambda *_: seen.append(1))


def pre_hook(model, seen):
    model.encoder.layer[0].attention.self.query.register_forward_pre_hook(lambda *_: seen.append(1))


def own_forward(model, seen):
    layer = model.encoder.layer[0].intermediate.dense
    original = layer.forward
    layer.forward = lambda states: seen.append(1) or original(states)


def adapter(model, seen):
    class Adapted(nn.Linear):
        def forward(self, states):
            seen.append(1)
            return super().forward(states)

    old = model.encoder.layer[0].attention.output.dense
    new = Adapted(old.in_features, old.out_features)
    new.load_state_dict(old.state_dict())
    model.encoder.layer[0].attention.output.dense = new.eval()


@pytest.mark.parametrize("watch", [hook, pre_hook, own_forward, adapter])
def test_a_watched_layer_is_called(watch):
    model, batch = model_and_batch("BertModel", 5)
    expected = outputs(model, batch)
    seen: list[int] = []
    watch(model, seen)
    with counted() as products:
        found = outputs(model, batch)
    assert seen == [1]
    assert_same(found, expected, batch)
    # The others run as before.
    assert len(products) == linear_layers(model) - (watch is not adapter)


def test_a_hook_of_all_modules_sees_every_layer():
    model, batch = model_and_batch("BertModel", 5)
    seen: list[nn.Module] = []
    handle: RemovableHandle = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: seen.append(module)
    )
    try:
        outputs(model, batch)
    finally:
        handle.remove()
    assert {m for m in seen if type(m) is nn.Linear} == {
        m for m in model.modules() if type(m) is nn.Linear
    }


def test_patches_of_torch_are_used(monkeypatch):
    """As counters of operations do it."""
    seen = []
    plain = nn.functional.linear

    def recorded(states, weight, bias=None):
        seen.append(weight)
        return plain(states, weight, bias)

    monkeypatch.setattr(nn.functional, "linear", recorded)
    model, batch = model_and_batch("BertModel", 5)
    outputs(model, batch)
    assert len(seen) == linear_layers(model)


def test_operations_are_counted():
    model, batch = model_and_batch("BertModel", 5)
    with FlopCounterMode(display=False) as counter:
        outputs(model, batch)
    tokens = int(batch["attention_mask"].sum())
    weights = sum(m.weight.numel() for m in model.encoder.modules() if type(m) is nn.Linear)
    assert counter.get_total_flops() >= 2 * tokens * weights


class Functions(TorchFunctionMode):
    """Records the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("mode", "name"), [(Functions, "linear"), (Operators, "addmm")])
def test_modes_see_what_they_know(mode, name):
    model, batch = model_and_batch("BertModel", 5)
    with mode() as record:
        outputs(model, batch)
    assert record.seen.count(name) == linear_layers(model)


@pytest.fixture
def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(13, 7).eval().requires_grad_(False)


def test_what_is_taken(layer):
    """The start of the cases below, each of which changes one thing."""
    assert cpu_kernels.takes_onednn(layer, torch.randn(5, 13))
    with torch.inference_mode():
        assert cpu_kernels.takes_onednn(layer, torch.randn(5, 13))
    layer.requires_grad_(True)
    with torch.no_grad():
        assert cpu_kernels.takes_onednn(layer, torch.randn(5, 13))


def test_what_is_not_taken(layer, monkeypatch):
    states = torch.randn(5, 13)
    takes = cpu_kernels.takes_onednn
    assert takes(layer, states.clone().requires_grad_())
    assert not takes(layer, states.double())
    assert not takes(copy.deepcopy(layer).bfloat16(), states.bfloat16())
    assert not takes(copy.deepcopy(layer).double(), states)
    assert not takes(layer, states.to("meta"))
    assert not takes(nn.Linear(13, 7, device="meta").eval(), states)
    assert not takes(nn.Linear(13, 7, bias=False).eval().requires_grad_(False), states)
    assert takes(copy.deepcopy(layer).train(), states)
    assert not takes(nn.Identity().eval(), states)
    assert not takes(layer, nn.Parameter(states, requires_grad=False))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not takes(layer, states)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not takes(layer, states)
    parametrized = copy.deepcopy(layer)
    nn.utils.parametrizations.weight_norm(parametrized)
    assert not takes(parametrized, states)
    pruned = copy.deepcopy(layer)
    prune.l1_unstructured(pruned, "weight", amount=0.5)
    assert not takes(pruned, states)
    compiled = copy.deepcopy(layer)
    compiled.compile()
    assert not takes(compiled, states)
    for watch in ("register_full_backward_hook", "register_full_backward_pre_hook"):
        watched = copy.deepcopy(layer)
        getattr(watched, watch)(lambda *_: None)
        assert not takes(watched, states)
    with torch.no_grad():
        assert takes(layer, states)
        monkeypatch.setattr(cpu_kernels, "MANY_WEIGHTS", 92)  # it has 91
        monkeypatch.setattr(cpu_kernels, "MANY_PRODUCTS", 456)  # with 5 rows 455
        assert not takes(layer, states)
        assert takes(layer, torch.randn(6, 13))
        monkeypatch.setattr(cpu_kernels, "most_rows_by_onednn", lambda: 0)
        assert not takes(layer, torch.randn(6, 13))


class Scaled(nn.Parameter):
    """Stands for quantised and distributed parameters."""


PARAMETERS = {
    "a tensor as weight": {"weight": torch.randn(7, 13)},
    "a tensor as bias": {"bias": torch.randn(7)},
    "a subclass": {"weight": Scaled(torch.randn(7, 13), requires_grad=False)},
    "transposed": {"weight": nn.Parameter(torch.randn(13, 7).t(), requires_grad=False)},
    "a vector": {"weight": nn.Parameter(torch.randn(13), requires_grad=False)},
    "a short bias": {"bias": nn.Parameter(torch.randn(1), requires_grad=False)},
    "a strided bias": {"bias": nn.Parameter(torch.randn(14)[::2], requires_grad=False)},
    "a weight elsewhere": {
        "weight": nn.Parameter(torch.randn(7, 13, device="meta"), requires_grad=False)
    },
    "a bias elsewhere": {"bias": nn.Parameter(torch.randn(7, device="meta"), requires_grad=False)},
    "a bias in double": {"bias": nn.Parameter(torch.randn(7).double(), requires_grad=False)},
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_other_parameters_are_not_taken(layer, name):
    layer._parameters.update(PARAMETERS[name])
    assert not cpu_kernels.takes_onednn(layer, torch.randn(5, 13))


def test_transforms_of_torch(layer):
    """vmap, tangents and replaced parameters: as the layer alone gives them."""

    def call(states):
        return cpu_kernels.linear(layer, states)

    states, tangent = torch.randn(3, 5, 13), torch.randn(3, 5, 13)
    with torch.no_grad():
        assert torch.equal(torch.func.vmap(call)(states), torch.func.vmap(layer)(states))
        found, expected = (torch.func.jvp(f, (states,), (tangent,)) for f in (call, layer))
        assert torch.equal(found[1], expected[1])
        with forward_ad.dual_level():
            dual = cpu_kernels.linear(layer, forward_ad.make_dual(states, tangent))
            assert torch.equal(forward_ad.unpack_dual(dual).tangent, expected[1])

    model, batch = model_and_batch("BertModel", 5)
    other = random_model("BertModel", model.config, seed=3)
    with torch.no_grad():
        swapped = torch.func.functional_call(model, dict(other.named_parameters()), (), batch)
    assert torch.equal(swapped[0], outputs(other, batch)[0])


class Call(nn.Module):
    """A module whose forward is `linear`."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, states):
        return cpu_kernels.linear(self.layer, states)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "error::torch.jit.TracerWarning")
def test_traced_and_compiled_and_exported(layer):
    states = torch.randn(5, 13)
    call = Call(layer).eval()
    with torch.no_grad():
        expected = layer(states)
        traced = torch.jit.trace(call, states)
        assert "linear_pointwise" not in str(traced.inlined_graph)
        exported = torch.export.export(call, (states,))
        assert "linear_pointwise" not in str(exported.graph)
        compiled = torch.compile(call, backend="eager", fullgraph=True)
        for form in (traced, exported.module(), compiled):
            assert torch.equal(form(states), expected)
        graph = torch.fx.symbolic_trace(call)
        assert torch.equal(graph(states), expected)
