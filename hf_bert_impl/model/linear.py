"""Linear layers: by packed weights where they are prepared, by oneDNN where that is faster.

`linear` computes every linear layer of the model. `PRODUCTS` has the kernels of the call that this
thread computes, by module. A call decides once which layers are in it (`route.Inside.products`):
not those that an adapter, a hook, quantisation, autocast, a compiler, a tracer, `torch.func` or a
mode changes, records or transforms. The other layers are called as usual.

`prepare_for_inference` packs weights. They are in `Packed`, the attribute `packed` of the module
that they were made from, outside its parameters.

oneDNN and ideep keep a compiled primitive for each number of rows, for ever. So rows come in few
numbers, see `rounded_up`.

Notation: T rows, N outputs of a linear layer.
"""

import math
import platform
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from itertools import chain, compress, count
from operator import attrgetter, is_, methodcaller
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as hooks_of_all
from torch.utils._device import DeviceContext
from transformers.activations import ACT2FN
from transformers.utils import logging

logger = logging.get_logger(__name__)
# The functions themselves: `torch.ops.aten` takes longer to call them.
_gelu_: Callable[..., Tensor] = torch._C._nn.gelu_  # type: ignore[attr-defined]
_silu_: Callable[[Tensor], Tensor] = torch._C._nn.silu_
_lock = threading.RLock()
#: Up to so many rows are few: reading the weights takes longer than computing.
FEW_ROWS = 64
#: So many weights do not fit in a core's cache: oneDNN is then faster for any number of rows.
MANY_WEIGHTS = 1 << 19
#: With fewer weights, so many multiplications outweigh oneDNN's call overhead.
MANY_PRODUCTS = 1 << 21
#: oneDNN's layout is chosen for so many rows; it serves any number.
TYPICAL_ROWS = 512
#: Numbers of a weight that are compared in each call: blocks, and the numbers of a block. Few long
#: blocks: a weight that was copied is not in the CPU's caches, and each block is on another page.
SAMPLED_BLOCKS, SAMPLED_NUMBERS = 2, 128
#: The module of the hooks by which transformers records states.
RECORDER = "transformers.utils.output_capturing"
#: As torch has it; a patch of the class has another one.
LAYER_NORM = nn.LayerNorm.forward


class Fused(NamedTuple):
    """An activation that oneDNN computes in the same call: its name and algorithm there."""

    name: str = "none"
    algorithm: str = ""


NOT_FUSED = Fused()
EXACT_GELU = Fused("gelu", "none")
#: By the `forward` of the module that computes it; a patch of the class has another one.
FUSED_ACTIVATIONS: dict[Any, Fused] = {
    type(ACT2FN["gelu"]).forward: EXACT_GELU,
    type(ACT2FN["gelu_new"]).forward: Fused("gelu", "tanh"),
    type(ACT2FN["gelu_pytorch_tanh"]).forward: Fused("gelu", "tanh"),
    nn.ReLU.forward: Fused("relu"),
    nn.Tanh.forward: Fused("tanh"),
    nn.SiLU.forward: Fused("swish"),
    type(ACT2FN["silu"]).forward: Fused("swish"),
}
#: Activations of torch that give a number the same bits at any place. The others have one way for
#: whole vectors of the CPU, and another for the numbers that are left over.
STEADY_ACTIVATIONS = (NOT_FUSED, EXACT_GELU, Fused("relu"), Fused("tanh"))
#: By name, for calls that record gradients; the second argument is the algorithm.
DIFFERENTIABLE: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "gelu": lambda states, algorithm: nn.functional.gelu(states, approximate=algorithm),
    "relu": lambda states, _: torch.relu(states),
    "tanh": lambda states, _: torch.tanh(states),
    "swish": lambda states, _: nn.functional.silu(states),
}
_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "swish": _silu_,
}


def fused(activation: Any) -> Fused:
    """The fused form of this activation; `NOT_FUSED` if the activation must be called."""
    forward = getattr(type(activation), "forward", None)
    found = FUSED_ACTIVATIONS.get(forward, NOT_FUSED)
    if found.name != "gelu":
        return found
    act = getattr(activation, "act", nn.functional.gelu)
    # Another function may be inside a GELU.
    return found if getattr(act, "func", act) is nn.functional.gelu else NOT_FUSED


def linear(
    layer: nn.Module, states: Tensor, activation: Any = None, residual: Tensor | None = None
) -> Tensor:
    """activation(layer(states)) + residual, (..., in) to (..., N).

    Args:
        layer: A linear layer, or whatever is in its place.
        states: Its input.
        activation: A module or a function; None for none.
        residual: (..., N), or None.

    Raises:
        ValueError: The call is batch-invariant, and there is no such kernel for the activation.
    """
    product = product_of(layer, states)
    if product is None:
        output: Tensor = layer(states)
        if activation is not None:
            output = activation(output)
        return output if residual is None else output + residual
    function = NOT_FUSED if activation is None else fused(activation)
    output = product(states, residual, function)
    if activation is None or function is not NOT_FUSED:
        return output
    if product.is_steady:
        raise no_kernel(type_name(type(activation)))
    activated: Tensor = activation(output)
    return activated


def no_kernel(activation: str) -> ValueError:
    """The error of a batch-invariant call with such an activation."""
    return ValueError(
        f"batch_invariant=True has no kernel for the activation {activation}. Set hidden_act to "
        "'gelu' or 'relu', or batch_invariant=False."
    )


def product_of(module: nn.Module, states: Tensor) -> "Product | None":
    """The product by which a module computes these states in this call; None to call it."""
    if torch.compiler.is_dynamo_compiling():  # other tracers have no products
        return None
    product = PRODUCTS.get().get(module)
    return product if product is not None and product.dtype is states.dtype else None


@cache
def rounded_up(rows: int) -> int:
    """The number of rows with which a kernel is called for so many.

    The step grows with the number, as half of its root: 4 up to 64, 8 up to 256, 16 up to 1024.
    So there are few numbers (94 up to 1024), and few rows more than necessary.
    """
    step = 1 << max((rows - 1).bit_length() - 1 >> 1, 0)
    return -(-rows // step) * step


# --- kernels ------------------------------------------------------------------------------------


class Product:
    """One linear layer, or several side by side, by one kernel."""

    #: Of the states.
    dtype: torch.dtype
    #: Whether a row has the same bits in any number of rows.
    is_steady = False
    #: Whether it has a copy of the bias, and does not read the layer's own.
    copies_bias = False

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """(..., in) to activation(states · Wᵀ + b) + residual, (..., N), a new tensor.

        A kernel computes (T, in), where `rounded_up(T)` is T, and leaves the rest to `fitted`.
        """
        raise NotImplementedError

    def fitted(self, states: Tensor, residual: Tensor | None, activation: Fused) -> Tensor:
        """The same for any other shape: as rows, filled up to a number that kernels get."""
        if states.ndim != 2:
            rows = states.reshape(-1, states.shape[-1])
            if residual is not None:
                residual = residual.reshape(len(rows), -1)
            output = self(rows, residual, activation)
            # `view` would return a tensor that autograd protects from writes.
            shape = (*states.shape[:-1], output.shape[-1])
            return torch.ops.aten._unsafe_view.default(output, shape)
        count = states.shape[0]
        fill = (0, 0, 0, rounded_up(count) - count)
        if residual is not None:
            residual = nn.functional.pad(residual, fill)
        output = self(nn.functional.pad(states, fill), residual, activation)
        return output.resize_(count, output.shape[1])  # in place: no copy


class FloatProduct(Product):
    """Floats of any type, by oneDNN from weights in its layout, or by torch as they are.

    Args:
        layers: Side by side.
        most_rows: oneDNN computes up to so many rows, torch more.
        fused_rows: oneDNN computes steady activations of up to so many rows, and all others.
    """

    def __init__(self, layers: Sequence[nn.Linear], most_rows: float, fused_rows: float) -> None:
        self.dtype = layers[0].weight.dtype
        self.most_rows, self.fused_rows = most_rows or -1, fused_rows  # no rows are torch's too
        # Looked up once, without the call around it: for few rows both can be measured.
        self.multiply = torch.ops.mkldnn._linear_pointwise.default._op
        self.multiply_and_add = torch.ops.mkldnn._linear_pointwise.binary._op
        weight, self.bias = joined(layers)
        self.copies_bias = len(layers) > 1
        self.widths = [layer.out_features for layer in layers]
        weights: Any = [layer.weight for layer in layers] if self.most_rows < math.inf else []
        self.parts = list(zip(weights, self.bias.split(self.widths), strict=False))
        if self.most_rows > 0:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `Product`."""
        rows = states.shape[0]
        if states.ndim != 2 or rounded_up(rows) != rows:
            return self.fitted(states, residual, activation)
        if rows > self.most_rows:
            return finish(self._by_torch(states), residual, activation)
        if residual is not None:
            return self.multiply_and_add(states, residual, self.weight, self.bias, "add")
        name, algorithm = activation
        if rows <= self.fused_rows or activation not in STEADY_ACTIVATIONS:
            return self.multiply(states, self.weight, self.bias, name, [], algorithm)
        output = self.multiply(states, self.weight, self.bias, "none", [], "")
        return finish(output, None, activation)

    def _by_torch(self, states: Tensor) -> Tensor:
        if len(self.parts) == 1:
            return nn.functional.linear(states, *self.parts[0])
        output = states.new_empty(len(states), sum(self.widths))
        for (weight, bias), part in zip(self.parts, output.split(self.widths, dim=1), strict=True):
            torch.addmm(bias, states, weight.t(), out=part)
        return output


class LiveProduct(Product):
    """One layer on its weight as it is, with gradients where they are recorded.

    Args:
        layer: The layer.
        most_rows: As in `FloatProduct`.
        fused_rows: As there.
        few_products: torch computes fewer multiplications than this with few weights.
    """

    def __init__(
        self, layer: nn.Linear, most_rows: float, fused_rows: float, few_products: int = 0
    ) -> None:
        self.layer, self.dtype = layer, layer.weight.dtype
        self.most_rows, self.fused_rows = most_rows, fused_rows
        self.few_products = 0 if layer.weight.numel() >= MANY_WEIGHTS else few_products

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `Product`; with gradients, the number of rows stays."""
        weight, bias = parameters_of(self.layer)
        if states.ndim != 2:
            return self.fitted(states, residual, activation)
        if not is_recorded(states, weight, bias):
            return self._plain(states, residual, activation)
        by_onednn = self._takes(states, weight)
        output = (_Product.apply if by_onednn else nn.functional.linear)(states, weight, bias)
        if activation is not NOT_FUSED:
            output = DIFFERENTIABLE[activation.name](output, activation.algorithm)
        return output if residual is None else output + residual

    def _plain(self, states: Tensor, residual: Tensor | None, activation: Fused) -> Tensor:
        """The same without gradients."""
        rows = states.shape[0]
        if rounded_up(rows) != rows:
            return self.fitted(states, residual, activation)
        weight, bias = parameters_of(self.layer)
        if not self._takes(states, weight):
            return finish(nn.functional.linear(states, weight, bias), residual, activation)
        if rows > self.fused_rows and activation in STEADY_ACTIVATIONS:
            return finish(multiply(states, weight, bias), residual, activation)
        output = multiply(states, weight, bias, *activation)
        return output if residual is None else output.add_(residual)

    def _takes(self, states: Tensor, weight: Tensor) -> bool:
        """Whether oneDNN computes so many rows."""
        is_many = weight.numel() * len(states) >= self.few_products
        return is_many and 0 < len(states) <= self.most_rows and states.shape[1] == weight.shape[1]


def parameters_of(layer: nn.Module) -> tuple[Any, Any]:
    """Weight and bias, or None."""
    return layer._parameters.get("weight"), layer._parameters.get("bias")


def is_recorded(states: Tensor, *parameters: Tensor | None) -> bool:
    """Whether autograd records a product of these."""
    return torch.is_grad_enabled() and any(
        part is not None and part.requires_grad for part in (states, *parameters)
    )


def joined(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor]:
    """The weights (N, in) and biases (N,) of layers side by side; zeros for no bias."""
    weights: list[Tensor] = [layer.weight for layer in layers]
    biases: list[Tensor] = [
        weight.new_zeros(len(weight)) if layer.bias is None else layer.bias
        for layer, weight in zip(layers, weights, strict=True)
    ]
    if len(layers) == 1:
        return weights[0], biases[0]
    return torch.cat(weights), torch.cat(biases)


def finish(output: Tensor, residual: Tensor | None, activation: Fused) -> Tensor:
    """Activation and residual, in place."""
    if activation.name == "gelu":
        _gelu_(output, approximate=activation.algorithm)
    elif activation is not NOT_FUSED:
        _IN_PLACE[activation.name](output)
    return output if residual is None else output.add_(residual)


_NO_PRODUCTS: Mapping[nn.Module, Product] = {}
#: The products of the call that this thread computes, by module; see `computed_by`.
PRODUCTS: ContextVar[Mapping[nn.Module, Product]] = ContextVar("products", default=_NO_PRODUCTS)


class computed_by:
    """Modules compute by these products inside, in this thread.

    It is a class, because a generator takes twice the time, which shows with one sentence.
    """

    def __init__(self, products: Mapping[nn.Module, Product]) -> None:
        self.products = products

    def __enter__(self) -> None:
        self.token = PRODUCTS.set(self.products)

    def __exit__(self, *error: object) -> None:
        PRODUCTS.reset(self.token)


def by_same_products(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, by the products of this call even if it is called after it."""
    products = PRODUCTS.get()

    def computed(*args: Any, **kwargs: Any) -> Any:
        with computed_by(products):
            return function(*args, **kwargs)

    return computed


# --- packed weights -----------------------------------------------------------------------------


#: The facts by which a change of a weight shows: of one that was copied, and of one that is read.
_OF_COPIES = (attrgetter("_version"), Tensor.data_ptr, Tensor.is_contiguous)
_OF_LIVE = (attrgetter("dtype"), attrgetter("device"), attrgetter("shape"))


class Source:
    """The linear layers that a product was made of, and the facts by which a change shows.

    Args:
        layers: Side by side.
        is_packed: Whether the product has a copy of their weights.
    """

    def __init__(self, layers: Sequence[nn.Module], is_packed: bool = False) -> None:
        self.slots = [layer._parameters for layer in layers]
        self.values = list(chain.from_iterable(map(dict.values, self.slots)))
        self.parameters = [value for value in self.values if value is not None]
        # Views: until the parameter moves, they hold the memory, so no other tensor can get it.
        self.samples = list(map(_sample, self.parameters)) if is_packed else []
        self.facts = _OF_COPIES if is_packed else _OF_LIVE
        self.before = _facts(self)
        self.numbers = list(map(_bytes, self.samples))

    def skip_biases(self) -> None:
        """Compares no numbers of biases, for a product that reads them where they are."""
        weights = [each.ndim > 1 for each in self.parameters]
        self.samples = list(compress(self.samples, weights))
        self.numbers = list(compress(self.numbers, weights))


def _has_same(source: "Source | Weights") -> bool:
    """Whether the layers have the same parameters."""
    found = list(chain.from_iterable(map(dict.values, source.slots)))
    return len(found) == len(source.values) and all(map(is_, found, source.values))


#: Of a NumPy view.
_bytes = methodcaller("tobytes")


def _facts(source: "Source | Weights") -> list[list[Any]]:
    """The facts of the parameters that the layers had."""
    return [list(map(fact, source.parameters)) for fact in source.facts]


def _is_unchanged(source: "Source | Weights") -> bool:
    """Whether the layers have the parameters that they had, unchanged.

    Numbers come last: a parameter that moved, as `share_memory_` does, shows in the facts, and its
    sample is a view of memory that is free.
    """
    return (
        _has_same(source)
        and _facts(source) == source.before
        and list(map(_bytes, source.samples)) == source.numbers
    )


class Weights:
    """The products of a model, with the sources of them all.

    A call asks once which of them it may use, in loops of the interpreter: a sentence takes a few
    milliseconds, and no cache holds hundreds of objects between two calls.

    Args:
        places: Of each product the module that computes by it, itself, and its source.
    """

    def __init__(self, places: Iterable[tuple[nn.Module, Product, Source]]) -> None:
        self.places = list(places)
        self.products = {holder: product for holder, product, _ in self.places}
        sources = [source for _, _, source in self.places]
        self.facts = sources[0].facts if sources else ()
        self.slots, self.values, self.parameters, self.samples, self.numbers = (
            [part for source in sources for part in getattr(source, name)]
            for name in ("slots", "values", "parameters", "samples", "numbers")
        )
        befores = [source.before for source in sources]
        self.before = [list(chain(*facts)) for facts in zip(*befores, strict=True)]

    @classmethod
    def packed_in(cls, modules: Iterable[nn.Module]) -> "Weights":
        """The packed weights of modules, whose layers are among them; packs those of a copy."""
        modules, places = dict.fromkeys(modules), []
        for module in modules:
            packed = vars(module).get("packed")
            if packed is not None and packed.fill(module) and modules.keys() >= {*packed.layers}:
                places.append((module, packed.product, packed.source))
        return cls(places)

    def fresh(self) -> Mapping[nn.Module, Product]:
        """The products whose weights are the same objects, unchanged.

        A changed packed weight is discarded, with a warning. Other parameters may be there for one
        call, as `torch.func.functional_call` has it.
        """
        if not self.places or _is_unchanged(self):
            return self.products
        found = {}
        for holder, product, source in self.places:
            if _is_unchanged(source):
                found[holder] = product
            elif source.samples and _has_same(source):
                set_packed(holder, None)
                logger.warning_once(
                    "weights have changed since prepare_for_inference, so their layers compute as "
                    "usual. Call it again."
                )
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ((),)


class Packed:
    """The weights of linear layers side by side, as a kernel reads them.

    It is the attribute `packed` of its holder. A copy or a pickle has no packed weights; it packs
    the layers of its own holder at its first call.

    Args:
        kernels: From `kernels.choose`; None if there are none on the machine of a copy.
        names: Of the holder's layers; empty if the holder is the layer.
        form: How int8 quantises the states (`int8.Form`).
    """

    def __init__(self, kernels: Any, names: tuple[str, ...] = (), form: Any = None) -> None:
        self.kernels, self.names, self.form = kernels, names, form
        self.product: Any = None
        self.layers: tuple[nn.Module, ...] = ()
        self.source: Source | None = None

    @torch.no_grad()
    def fill(self, holder: nn.Module) -> bool:
        """Packs the weights of a module's layers once; whether they are packed."""
        with _lock:  # threads may share a copy that is not filled yet
            layers: Any = tuple(holder._modules[name] for name in self.names) or (holder,)
            if self.source is None:
                is_plain = self.kernels is not None and not any(map(why_not_packed, layers))
                # A copy may have been converted since: this CPU may lack kernels for that.
                is_plain = is_plain and layers[0].weight.dtype is self.kernels.states_dtype
                # First, so that a change meanwhile shows.
                source = Source(layers if is_plain else (), is_packed=True)
                self.product = self.kernels.pack(*layers, form=self.form) if is_plain else None
                if is_plain and not self.product.copies_bias:
                    source.skip_biases()
                self.layers = layers
                self.source = source  # last: it shows that the rest is there
            return self.product is not None and layers == self.layers

    def __reduce__(self) -> tuple[Any, ...]:
        # Packed weights belong to these layers and this machine.
        return type(self), (self.kernels, self.names, self.form)


def set_packed(holder: nn.Module, packed: Packed | None) -> None:
    """Packs the weights of a module, or discards what was packed."""
    if packed is not None:
        packed.fill(holder)
    vars(holder)["packed"] = packed
    changes.append(next(_numbers))


#: The number of the last change of a `packed` attribute. A call that finds another one than before
#: looks for packed weights again.
_numbers = count()
changes: deque[int] = deque([next(_numbers)], maxlen=1)


def _sample(weight: Tensor) -> Any:
    """Some numbers of a weight, spread over all of it, as a NumPy view of their bits."""
    whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[weight.element_size()]
    flat = weight.detach().view(whole).view(-1)
    last = flat.numel() - SAMPLED_NUMBERS
    step = 2 * last // (2 * SAMPLED_BLOCKS - 1)  # no divisor of it, to meet all columns
    if step <= SAMPLED_NUMBERS:
        return flat[: SAMPLED_BLOCKS * SAMPLED_NUMBERS].numpy()
    return flat.as_strided((SAMPLED_BLOCKS, SAMPLED_NUMBERS), (step, 1)).numpy()


def why_not_packed(layer: Any) -> str | None:
    """Why a linear layer's weights cannot be packed, or None if they can."""
    if not is_linear(layer):
        advice = "; merge_and_unload() gives a plain model" * hasattr(layer, "merge")
        return f"is a {type_name(type(layer))}, not a {type_name(nn.Linear)}{advice}"
    if is_hooked(layer):
        return "has a hook"
    weight, bias = parameters_of(layer)
    if type(weight) is not nn.Parameter or type(bias) not in (nn.Parameter, type(None)):
        return "has no plain weight and bias"
    if not (_fits(weight, bias) and weight.is_cpu):
        return "has a weight and a bias that do not fit or are no whole blocks of the CPU's memory"
    if weight.is_inference() or (bias is not None and bias.is_inference()):
        return (
            "was made in torch.inference_mode(), where torch counts no changes of a weight; load "
            "the model outside of it"
        )
    return None


def is_live(layer: Any) -> bool:
    """Whether oneDNN can compute a linear layer on its weight as it is."""
    weight, bias = parameters_of(layer)
    types = {type(part) for part in (weight, bias) if part is not None}
    return (
        is_linear(layer)
        and weight is not None
        and types == {nn.Parameter}
        and _fits(weight, bias)
        and weight.is_cpu
        and not is_hooked(layer)
    )


def is_linear(layer: Any) -> bool:
    """Whether it is torch's linear layer, or of a class that says so (`computes_linear`).

    The types must be exactly these: another subclass can do anything.
    """
    return type(layer) is nn.Linear or "computes_linear" in vars(type(layer))


# --- oneDNN on live weights ----------------------------------------------------------------------


def _fits(weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a weight and its bias are whole blocks of memory that fit."""
    fits = weight.ndim == 2 and weight.is_contiguous()
    if fits and bias is not None:
        fits = (
            bias.shape == weight.shape[:1]
            and bias.dtype is weight.dtype
            and bias.is_cpu is weight.is_cpu
            and bias.is_contiguous()
        )
    return fits


def multiply(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    operation: str = "none",
    algorithm: str = "",
) -> Tensor:
    """(..., in), (N, in), (N,) to (..., N) by oneDNN; neither has to be contiguous."""
    compute = torch.ops.mkldnn._linear_pointwise.default
    output = compute(states, weight, bias, operation, [], algorithm)
    # For other shapes than (T, in) the operator returns a view of a temporary tensor.
    # autograd protects such a view from writes if `_Product` returned it, or if it was made
    # under `no_grad`. So it is made a new tensor, as in torch's `linear`.
    return (
        torch.ops.aten._unsafe_view.default(output, output.shape) if output._is_view() else output
    )


class _Product(torch.autograd.Function):
    """states · weightᵀ + bias, (..., N), whose gradients are computed by oneDNN too."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        # As torch does: save only what a gradient needs.
        of_states, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(states if of_weight else None, weight if of_states else None)
        return multiply(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])  # (T, N)
        # oneDNN's operators cannot be differentiated, nor compute many gradients at once.
        by_torch = (
            torch.is_grad_enabled()
            or is_intercepted()
            or torch._C._functorch.is_legacy_batchedtensor(gradient)
        )
        of_states = of_weight = of_bias = None
        if weight is not None:
            of_states = gradient @ weight if by_torch else multiply(gradient, weight.t())
        if states is not None:
            columns = states.reshape(-1, states.shape[-1]).t()  # (in, T)
            of_weight = rows.t() @ columns.t() if by_torch else multiply(rows.t(), columns)
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        return of_states, of_weight, of_bias


# --- what a call is part of ---------------------------------------------------------------------


@cache
def has_onednn() -> bool:
    """Whether torch has oneDNN, and the private names by which this file uses it."""
    functorch = getattr(torch._C, "_functorch", None)
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn._linear_pointwise.default, "_op")
        and hasattr(torch._C, "_len_torch_dispatch_stack")
        and hasattr(torch._C, "_len_torch_function_stack")
        and hasattr(torch.overrides, "_get_current_function_mode_stack")
        and hasattr(forward_ad, "_current_level")
        and hasattr(functorch, "peek_interpreter_stack")
        and hasattr(functorch, "is_legacy_batchedtensor")
    )


@cache
def most_rows_by_onednn() -> float:
    """Up to how many rows oneDNN is faster than torch's own float32 kernel on an unpacked weight.

    On AMD processors with AVX-512 MKL uses half of their width, so there is no limit. With AVX2
    MKL is slower for few rows only. On Intel's both are equally fast.
    """
    if not (torch.backends.mkl.is_available() and has_onednn() and _is_amd()):
        return 0
    if has_avx512():
        return math.inf
    return FEW_ROWS if torch.backends.cpu.get_cpu_capability() == "AVX2" else 0


def has_avx512() -> bool:
    """Whether torch uses AVX-512 here."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def _is_amd() -> bool:
    with suppress(OSError), open("/proc/cpuinfo") as file:
        return "AuthenticAMD" in file.read(1000)  # of the first core
    return "AuthenticAMD" in platform.processor()  # Windows has no such file


def is_hooked(module: Any) -> bool:
    """Whether other code runs where the module is called: a hook, another `forward`.

    transformers leaves hooks that record states after the first call that asks for them.
    """
    hooks = module._forward_hooks
    return bool(
        (hooks and any(getattr(hook, "__module__", "") != RECORDER for hook in hooks.values()))
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__  # accelerate's way
        or module._compiled_call_impl is not None  # `module.compile()`
        or hooks_of_all._has_any_global_hook()
    )


def is_intercepted() -> bool:
    """Whether something records or transforms this call (compile, autocast, torch.func)."""
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch.is_autocast_enabled("cpu")
        or not torch._C._get_mkldnn_enabled()
        or (
            torch._C._len_torch_function_stack() > 0
            # `torch.set_default_device` is a mode that only names a device.
            and any(
                type(mode) is not DeviceContext
                for mode in torch.overrides._get_current_function_mode_stack()
            )
        )
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None  # `torch.func`
        or forward_ad._current_level >= 0
        or hooks_of_all._has_any_global_hook()
    )


def type_name(kind: type) -> str:
    """The full name of a type: many libraries have a `Linear`."""
    return f"{kind.__module__}.{kind.__qualname__}"
