"""Changes of a model between two calls, applied to ours and to the reference."""

import copy
import tempfile
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hf_bert_impl.model.preparing import prepared_kernels
from tests.model.cases import pickled


class Site:
    """A model, the place in it that changes, and numbers that are the same for both models."""

    def __init__(self, model: Any, path: str, seed: int, is_reference: bool) -> None:
        self.model, self.seed, self.is_reference = model, seed, is_reference
        self.training = model.training
        #: A linear layer or an embedding, at the place `path`.
        self.module = model.get_submodule(path)
        self.layers = model.base_model.encoder.layer
        numbers = [int(part) for part in path.split(".") if part.isdigit()]
        self.layer = self.layers[numbers[0] if numbers else 0]
        self.attention = self.layer.attention.self

    def noisy(self, tensor: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return tensor + 0.3 * torch.randn(tensor.shape, generator=generator).to(tensor.dtype)


class Doubled(nn.Linear):
    def forward(self, states: Tensor) -> Tensor:
        return 2 * super().forward(states)


class Doubling(nn.Module):
    def forward(self, states: Tensor) -> Tensor:
        return 2 * states


def optimizer_step(site: Site) -> None:
    for parameter in site.model.parameters():
        parameter.grad = site.noisy(torch.zeros_like(parameter))
    torch.optim.SGD(site.model.parameters(), lr=0.5).step()
    site.model.zero_grad()


def write_a_part(site: Site) -> None:
    """Which a prepared model does not detect."""
    site.module.weight.data[1:3].fill_(0.4)
    is_prepared = not site.is_reference and prepared_kernels(site.model) is not None
    if is_prepared:
        site.model.prepare_for_inference()


def swap_data(site: Site) -> None:
    key, query = site.attention.key.weight, site.attention.query.weight
    key.data, query.data = query.data, key.data


def swap_modules(site: Site) -> None:
    site.attention.key, site.attention.query = site.attention.query, site.attention.key


def new_linear(site: Site) -> None:
    site.layer.output.dense = copy.deepcopy(site.layer.output.dense)
    site.layer.output.dense.weight.copy_(site.noisy(site.layer.output.dense.weight))


def of_another_class(module: Any, forward: Callable[..., Any]) -> None:
    module.__class__ = type("Other", (type(module),), {"forward": forward})


def doubled_output(self: Any, inner: Tensor, states: Tensor) -> Tensor:
    return 2 * self.LayerNorm(self.dense(inner) + states)


def twice(self: nn.Module, *inputs: Tensor) -> Tensor:
    return 2 * type(self).forward(self, *inputs)


def prune(site: Site) -> None:
    if site.is_reference:
        scale_heads(site.layers[0], torch.tensor([0.0] + [1.0] * 9))
    else:
        site.model.prune_heads({0: [0]})


def scale_heads(layer: Any, factors: Tensor) -> None:
    """Multiplies the output of each head of a layer by its factor; (H,) factors or more."""
    dense, size = layer.attention.output.dense, layer.attention.self.attention_head_size
    columns = factors.repeat_interleave(size)[: dense.in_features]
    dense.register_forward_pre_hook(lambda module, inputs: inputs[0] * columns.to(inputs[0].dtype))


def saved_and_loaded(model: Any) -> Any:
    """The model as its class reads it from a folder."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        backend = model.config._attn_implementation
        options = {"dtype": model.dtype, "attn_implementation": backend}
        loaded = type(model).from_pretrained(folder, **options)
    return loaded.train(model.training)


#: Changes of weights; the modules stay.
WEIGHTS = {
    "add_": lambda s: s.module.weight.copy_(s.noisy(s.module.weight)),
    "add_ to a bias": lambda s: s.layer.output.dense.bias.add_(0.5),
    "add_ to a LayerNorm": lambda s: s.layer.output.LayerNorm.weight.add_(0.5),
    "new Parameter": lambda s: setattr(s.module, "weight", nn.Parameter(s.noisy(s.module.weight))),
    "new data": lambda s: setattr(s.module.weight, "data", s.noisy(s.module.weight)),
    "part of data": write_a_part,
    "one number": lambda s: s.module.weight.view(-1)[s.module.weight.numel() // 3].add_(5),
    "multiplied data": lambda s: s.module.weight.data.mul_(1.5),
    "data pruned by a mask": lambda s: s.module.weight.data.mul_(
        torch.arange(s.module.weight.shape[1]) % 3 == 0  # the first number stays
    ),
    "data of a bias": lambda s: s.layer.output.dense.bias.data.mul_(1.5),
    "data swapped": swap_data,
}
#: Changes of weights that need all attention heads, so none may be pruned.
WHOLE_WEIGHTS = {
    "optimizer step": optimizer_step,
    "load_state_dict": lambda s: s.model.load_state_dict(
        {name: s.noisy(value) for name, value in s.model.state_dict().items()}
    ),
    "data transposed": lambda s: setattr(
        s.attention.query.weight, "data", s.attention.query.weight.data.t()
    ),
}
#: Other modules in place of the stock ones.
MODULES = {
    "modules swapped": swap_modules,
    "new Linear": new_linear,
    "Linear of another class": lambda s: setattr(s.attention.value, "__class__", Doubled),
    "layer of another class": lambda s: of_another_class(s.layer.output, doubled_output),
    "new activation": lambda s: setattr(s.layer.intermediate, "intermediate_act_fn", nn.Tanh()),
    "new dropout": lambda s: setattr(s.layer.attention.output, "dropout", Doubling()),
    "hook": lambda s: s.layer.intermediate.dense.register_forward_hook(lambda m, i, o: 2 * o),
    "hook before": lambda s: s.layer.output.dense.register_forward_pre_hook(
        lambda module, inputs: (2 * inputs[0],)
    ),
    "forward of its own": lambda s: setattr(
        s.layer.output, "forward", types.MethodType(twice, s.layer.output)
    ),
}
#: Changes of the layers' number or order.
DEPTH = {
    "append": lambda s: s.layers.append(copy.deepcopy(s.layers[0])),
    "delete": lambda s: s.layers.__delitem__(-1),
    "reverse": lambda s: [s.layers.__setitem__(i, x) for i, x in enumerate(list(s.layers)[::-1])],
}
#: These change names or sizes of parameters, so each is the last change of a trial.
LAST = {
    "prune": prune,
    "parametrization": lambda s: parametrize.register_parametrization(
        s.attention.key, "weight", Doubling()
    ),
}
#: These make a new model, which may lack hooks and swapped modules, so each is a trial's only one.
FRESH = {
    # Upstream's hooks that collect states cannot be pickled.
    "pickle": lambda s: s.model if s.is_reference else pickled(s.model),
    "save and load": lambda s: saved_and_loaded(s.model),
}
DTYPE = {"double": lambda s: s.model.to(torch.float64)}
NOTHING = {
    "deepcopy": lambda s: copy.deepcopy(s.model),
    "train and back": lambda s: s.model.train(not s.model.training).train(s.training),
    "prepare again": lambda s: (
        s.is_reference or s.model.training or s.model.prepare_for_inference()
    ),
    "padding_free": lambda s: (
        s.is_reference or s.model.config.update({"padding_free": not s.model.config.padding_free})
    ),
}
CHANGES = WEIGHTS | WHOLE_WEIGHTS | MODULES | DEPTH | LAST | FRESH | DTYPE | NOTHING


def apply(name: str, site: Site, changes: Mapping[str, Any] = CHANGES) -> Any:
    """Makes the change; returns the model, or the new model that the change made."""
    made = changes[name](site)
    return made if isinstance(made, nn.Module) and type(made) is type(site.model) else site.model
