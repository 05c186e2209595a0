"""The modules inside a stock model: what computes its linear layers, and what needs padding."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.activations import GELUActivation
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hf_bert_impl.encoders.rows import RowsConfig
from hf_bert_impl.model.linear import EXACT_GELU, Product, product_of, type_name
from hf_bert_impl.model.route import Inside, takes_rows

#: The modules whose states may be packed rows: transformers' own, this
#: package's, and losses, which heads hold.
HOMES = ("transformers.models.", "hf_bert_impl.", "torch.nn.modules.loss")
#: PEFT's wrapper of a head's module, which calls it.
WRAPPER = "peft.utils.other.ModulesToSaveWrapper"


# --- layers -------------------------------------------------------------------------------------


class PackedLinear(nn.Linear):
    """A linear layer of a stock model that computes by packed weights, if its model's call may."""

    #: See `linear.is_linear`.
    computes_linear = True

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) to (..., N)."""
        product = product_of(self, input)
        return super().forward(input) if product is None else product(input)


class FollowingGelu(GELUActivation):
    """The exact GELU, which the linear layer before it may have computed in the same call."""

    #: The name of that layer, in the same module.
    after: str

    def forward(self, input: Tensor) -> Tensor:
        """Any shape, the same shape."""
        if not torch.compiler.is_compiling() and getattr(_activated, "output", None) is input:
            _activated.output = None
            return input
        return super().forward(input)


#: Classes of layers, and the classes that replace them.
CLASSES = {nn.Linear: PackedLinear, GELUActivation: FollowingGelu}
#: The last `output` of an `Activated`, until its activation gets it.
_activated = threading.local()


class Activated:
    """The product of a linear layer, with the GELU after it."""

    def __init__(self, product: Any) -> None:
        self.product, self.dtype = product, product.dtype

    def __call__(self, states: Tensor) -> Tensor:
        """(..., in) to gelu(states · Wᵀ + b), (..., N)."""
        output: Tensor = self.product(states, None, EXACT_GELU)
        _activated.output = output
        return output


class Share:
    """A layer's part of the product of layers side by side, which the first of them computes.

    Args:
        product: Of all.
        widths: Their numbers of outputs.
        number: Of the layer.
        waiting: The last `outputs` of their `states`, until the last layer gets its part.
    """

    def __init__(self, product: Any, widths: list[int], number: int, waiting: Any) -> None:
        self.product, self.dtype = product, product.dtype
        self.widths, self.number, self.waiting = widths, number, waiting

    def __call__(self, states: Tensor) -> Tensor:
        """(..., in) to (..., N)."""
        waiting, number = self.waiting, self.number
        if number and getattr(waiting, "states", None) is states:
            outputs = waiting.outputs
        else:
            outputs = self.product(states).split(self.widths, dim=-1)
            waiting.states, waiting.outputs = states, outputs
        if number == len(self.widths) - 1:
            waiting.states = waiting.outputs = None
        output: Tensor = outputs[number]
        return output


def shares(product: Product, layers: Sequence[Any]) -> dict[nn.Module, Share]:
    """The shares of layers in a product of them all."""
    widths, waiting = [layer.out_features for layer in layers], threading.local()
    return {layer: Share(product, widths, i, waiting) for i, layer in enumerate(layers)}


def activated(products: Mapping[nn.Module, Any], modules: Iterable[nn.Module]) -> dict[Any, Any]:
    """The products of layers with a `FollowingGelu` after them, in modules."""
    found = {}
    for module in modules:
        for child in module._modules.values():
            if type(child) is FollowingGelu and child.act is nn.functional.gelu:
                layer: Any = module._modules.get(child.after)
                if layer in products and type(products[layer]) is not Share:
                    found[layer] = Activated(products[layer])
    return found


# --- modules ------------------------------------------------------------------------------------


class StockInside(Inside):
    """The modules of a model, except for the bare model in it, and what prevents packed rows.

    Args:
        model: A stock model.
        bare: It, or the model without a head in it.
    """

    def __init__(self, model: Any, bare: Any) -> None:
        super().__init__()
        self.model, self.bare = model, bare
        #: Stands for the model, but has no `forward`.
        self.root = nn.Module()
        self.children: list[Any] = []
        self.configs: list[Any] = []
        self.wrapped: list[tuple[dict[str, Any], Any]] = []
        #: The position of padding where positions count tokens, as fairseq does.
        self.counts_from: int | None = None
        #: The products of the last call, by layer, and the ones that layers compute by.
        self.last: tuple[Any, Any] = (None, None)

    def why_stock(self) -> str | None:
        """The reason why packed rows are not possible, or None."""
        slots = self.model._modules
        if self.model is not self.bare:
            slots = {name: part for name, part in slots.items() if part is not self.bare}
        children = list(slots.values())
        if len(children) != len(self.children) or not all(map(is_, children, self.children)):
            self.children, self.root = children, nn.Module()
            vars(self.root)["_modules"] = slots
        if any(state.get("config") is not config for state, config in self.wrapped):
            self.listed = {}
        reason = self.why_padded(self.root)
        if reason is not None:
            return reason
        is_training = self.model.training
        if is_training and any(state.get("gradient_checkpointing") for state in self.states):
            return "gradient checkpointing"
        for config in self.configs:
            if config._attn_implementation not in ("eager", "sdpa", None):
                return f"the attention {config._attn_implementation}"
        functions = AttentionInterface._global_mapping
        if functions.get("sdpa") is not sdpa_attention_forward or "eager" in functions:
            return "an attention function that replaces transformers' own"
        return None

    def layers(self) -> Mapping[nn.Module, Any]:
        """What the linear layers compute by in this call; asked after `why_stock`."""
        found = self.products(self.root)
        last, layers = self.last
        if found is not last:
            layers = dict(found)
            for holder, product in found.items():
                packed = vars(holder).get("packed")
                if packed is not None and packed.names and product is packed.product:
                    layers |= shares(product, packed.layers)
            layers |= activated(layers, self.listed)
            self.last = found, layers
        return layers

    def _list(self, root: nn.Module) -> None:
        self.wrap()
        super()._list(root)

    def wrap(self) -> None:
        """Gives the modules `PackedLinear`, and configs that name the attention of packed rows."""
        inner = {*self.bare.modules()}
        for part in self.model.modules():
            if type(part) is nn.Linear and (self.model is self.bare or part not in inner):
                part.__class__ = PackedLinear
        if self.model is not self.bare:
            return
        parts = [part for part in self.bare.modules() if not isinstance(part, PreTrainedModel)]
        states = [vars(part) for part in parts]
        states = [state for state in states if isinstance(state.get("config"), PreTrainedConfig)]
        for state in states:
            if type(state["config"]) is not RowsConfig:
                state["config"] = RowsConfig(state["config"])
        self.wrapped = [(state, state["config"]) for state in states]
        configs = [self.bare.config, *(config.config for _, config in self.wrapped)]
        self.configs = list({id(config): config for config in configs}.values())
        self.counts_from = counts_from(self.bare)

    def unwrap(self) -> None:
        """Undoes `wrap`, and `FollowingGelu`."""
        for part in self.model.modules():
            config = vars(part).get("config")
            if type(config) is RowsConfig:
                part.config = config.config
            for kind, ours in CLASSES.items():
                if type(part) is ours:
                    part.__class__ = kind
                    vars(part).pop("after", None)

    def takes_rows(self, kind: type) -> bool:
        """Whether modules of this class support packed rows: stock's own do, as the probe shows."""
        is_stock = kind.__module__.startswith((*HOMES, type(self.bare).__module__))
        return is_stock or takes_rows(kind) or type_name(kind) == WRAPPER

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.bare)


def counts_from(bare: Any) -> int | None:
    """The position of padding where positions count tokens, as fairseq does; None for columns."""
    for path, module in bare.named_modules():
        if path.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module.padding_idx
    return None


def is_transformed() -> bool:
    """Whether `torch.func` or a mode such as fake tensors runs this call."""
    stack: Any = torch._C._functorch.peek_interpreter_stack()
    return stack is not None or torch._C._len_torch_dispatch_stack() > 0
