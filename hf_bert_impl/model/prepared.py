"""Prepared inference: weights in the layout of the CPU's kernels, with bias, activation and
residual fused into the matrix products.

torch stores a linear weight row by row; oneDNN's kernels read it in blocks, and reorder it at every
call. Here that is done once, by the operators that torch's own compiler uses for frozen models
(`torch.ops.mkldnn._linear_pointwise` for floats, `torch.ops.onednn.qlinear_pointwise` for int8).

Notation: T computed tokens (see `padding.py`), K tokens kept after the last layer, D hidden size,
F feed-forward width, N outputs of a linear layer, V vocabulary.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from transformers.utils import logging

from .configuration_bert import BertConfig
from .encoder import SLICE_TOKENS, BertEncoder, BertLayer
from .linear import is_hooked
from .memory import LARGEST_BLOCK
from .padding import Packing

if TYPE_CHECKING:
    from .heads import BertLMPredictionHead

logger = logging.get_logger(__name__)

#: The activations that oneDNN computes with the product: name and algorithm of its post-operation.
FUSED_ACTIVATIONS = {
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "tanh": ("tanh", ""),
    "silu": ("swish", ""),
    "swish": ("swish", ""),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
#: Tokens that the blocked layout is chosen for; it serves any number.
TYPICAL_TOKENS = 512


class PackedLinear(Protocol):
    """A linear layer whose weight has been reordered."""

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: str = "none"
    ) -> Tensor:
        """(T, in) to activation(states · Wᵀ + b) + residual, (T, N)."""


class FloatLinear:
    """W and b in float32, bfloat16 or float16."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_TOKENS)
        self.bias = bias

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: str = "none"
    ) -> Tensor:
        """See `PackedLinear`."""
        if residual is not None:
            return torch.ops.mkldnn._linear_pointwise.binary(
                states, residual, self.weight, self.bias, "add"
            )
        name, algorithm = FUSED_ACTIVATIONS.get(activation, ("none", ""))
        return torch.ops.mkldnn._linear_pointwise(
            states, self.weight, self.bias, name, [], algorithm
        )


class Int8Linear:
    """W in int8, a scale an output channel; activations quantised as they come, a scale a token.

    Both symmetric: q = round(x · 127 / max|x|). Activations are stored shifted by 128, because the
    CPU's dot product takes unsigned by signed. Sums are exact in int32; bias, activation and
    residual are added in float32.
    """

    ZERO_POINT = 128

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        weight = weight.float()
        self.scale = weight.abs().amax(dim=1).clamp(min=1e-12) / 127  # (N,)
        quantised = (weight / self.scale[:, None]).round().to(torch.int8)  # (N, in)
        self.weight = torch.ops.onednn.qlinear_prepack(quantised, [TYPICAL_TOKENS, weight.shape[1]])
        self.zero_points = torch.zeros(weight.shape[0], dtype=torch.int32)
        self.bias = bias.float()

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: str = "none"
    ) -> Tensor:
        """See `PackedLinear`."""
        # Not `vector_norm(inf)`, which is twenty times slower on the CPU.
        scale = states.abs().amax(dim=-1, keepdim=True).clamp_(min=1e-12).div_(127)  # (T, 1)
        quantised = (states / scale).round_().add_(self.ZERO_POINT).to(torch.uint8)
        product = torch.ops.onednn.qlinear_pointwise(
            quantised,
            1.0,
            self.ZERO_POINT,
            self.weight,
            self.scale,
            self.zero_points,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )  # (T, N), to be scaled by token
        # In place: a new block of this size costs more to get from the system than to fill.
        output = torch.addcmul(self.bias, product, scale, out=product)
        if activation in FUSED_ACTIVATIONS:
            output = _activate(output, activation)
        return output if residual is None else output.add_(residual)


def _fused_activation(config: BertConfig) -> str:
    """The name of the activation where it is one of those, or "none"."""
    act = config.hidden_act
    return act if isinstance(act, str) and act in FUSED_ACTIVATIONS else "none"


def _activate(states: Tensor, activation: str) -> Tensor:
    """The activation, in place."""
    name, algorithm = FUSED_ACTIVATIONS[activation]
    if name == "gelu":
        return torch.ops.aten.gelu_(states, approximate=algorithm)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": torch.relu_,
        "tanh": torch.tanh_,
        "swish": torch.ops.aten.silu_,
    }
    return functions[name](states)


class PreparedLayer:
    """One encoder layer, its query, key and value weights joined into one product."""

    def __init__(self, layer: BertLayer, linear: Callable[[Tensor, Tensor], PackedLinear]) -> None:
        attention = layer.attention
        self.attention = attention.self
        parts = [attention.self.query, attention.self.key, attention.self.value]
        self.projection = linear(
            torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
        )
        self.context_output = linear(attention.output.dense.weight, attention.output.dense.bias)
        self.context_norm = attention.output.LayerNorm
        self.intermediate = linear(layer.intermediate.dense.weight, layer.intermediate.dense.bias)
        self.activation = layer.intermediate.intermediate_act_fn
        self.fused = _fused_activation(attention.self.config)
        inner = layer.intermediate.dense
        self.inner_bytes = inner.out_features * inner.weight.element_size()
        self.output = linear(layer.output.dense.weight, layer.output.dense.bias)
        self.output_norm = layer.output.LayerNorm

    def __call__(self, hidden_states: Tensor, packing: Packing, kept: Tensor | None) -> Tensor:
        """(T, D) to (T, D), or to (K, D) where only the tokens in `kept` are read."""
        attention = self.attention
        projected = self.projection(hidden_states)  # (T, 3·H·d)
        joined = projected.view(len(projected), 3, -1, attention.attention_head_size)
        query, key, value = joined.unbind(1)  # (T, H, d) each
        context = attention.attend_packed(query, key, value, packing).flatten(-2)  # (T, H·d)
        if kept is not None:
            context, hidden_states = context[kept], hidden_states[kept]
        attended = self.context_norm(self.context_output(context, hidden_states))
        if attended.shape[0] * self.inner_bytes > LARGEST_BLOCK:
            slices = attended.split(SLICE_TOKENS)
            return self.output_norm(torch.cat([self.feed_forward(part) for part in slices]))
        return self.output_norm(self.feed_forward(attended))

    def feed_forward(self, attended: Tensor) -> Tensor:
        """(T, D) to (T, D), before the LayerNorm."""
        inner = self.intermediate(attended, activation=self.fused)  # (T, F)
        if self.fused == "none":
            inner = self.activation(inner)
        return self.output(inner, attended)


class Prepared:
    """Packed weights of a module, as long as it is the one that was prepared.

    It is no part of the model's state: a copy, a pickle or a saved model goes without it.
    """

    def __init__(self, module: nn.Module, copied: Iterable[nn.Module]) -> None:
        """Remembers `module`, and the weights of the linear layers in it that are copied."""
        self.modules = list(module.modules())
        self.slots = [
            (slots, name, value)
            for module in self.modules
            for slots in (module._modules, module._parameters)
            for name, value in slots.items()
        ]
        # Of what was copied. Other biases and the LayerNorms are used where they are.
        self.marks = [_Mark(p) for linear in copied for p in linear.parameters()]

    def is_current(self) -> bool:
        """Whether nothing has happened since to a weight, a module, its hooks or its mode."""
        return (
            all(slots.get(name) is value for slots, name, value in self.slots)
            and not any(m.training or is_hooked(m) for m in self.modules)
            and all(mark.holds() for mark in self.marks)
        )

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class PreparedEncoder(Prepared):
    """The layers of an encoder."""

    def __init__(self, encoder: BertEncoder, int8: bool) -> None:
        super().__init__(encoder, _linears(encoder))
        linear = Int8Linear if int8 else FloatLinear
        with torch.no_grad():
            self.layers = [PreparedLayer(layer, linear) for layer in _layers(encoder)]


class PreparedLMHead(Prepared):
    """The masked-LM head, in floats: its product with the vocabulary is the model's largest."""

    def __init__(self, head: "BertLMPredictionHead", config: BertConfig) -> None:
        self.transform = head.transform
        super().__init__(head, (self.transform.dense, head.decoder))
        with torch.no_grad():
            self.dense = FloatLinear(self.transform.dense.weight, self.transform.dense.bias)
            self.decoder = FloatLinear(head.decoder.weight, head.decoder.bias)
        self.fused = _fused_activation(config)

    def __call__(self, states: Tensor) -> Tensor:
        """(..., D) to (..., V)."""
        states = self.dense(states, activation=self.fused)
        if self.fused == "none":
            states = self.transform.transform_act_fn(states)
        return self.decoder(self.transform.LayerNorm(states))


def usable(holder: Any) -> bool:
    """Whether `holder.prepared`, if any, serves this call. It is dropped where it is out of date.

    Args:
        holder: A module that `prepare_for_inference` packs.
    """
    prepared: Prepared | None = holder.prepared
    if prepared is None or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if prepared.is_current():
        return True
    logger.warning(
        "the model has changed since prepare_for_inference, which is undone; call it again"
    )
    holder.prepared = None
    return False


class _Mark:
    """What tells that a parameter has changed: its memory, its version and two of its numbers.

    Changes through `.data` leave the version alone, hence the numbers.
    """

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = parameter
        self.pointer = parameter.data_ptr()
        self.version = _version(parameter)
        flat = parameter.detach().flatten()  # a view
        if flat.dtype == torch.bfloat16:
            flat = flat.view(torch.int16)  # NumPy has no bfloat16
        self.sample = flat[:: max(1, flat.numel() - 1)].numpy()
        self.numbers = self.sample.tobytes()

    def holds(self) -> bool:
        return (
            self.parameter.data_ptr() == self.pointer
            and _version(self.parameter) == self.version
            and self.sample.tobytes() == self.numbers
        )


def _version(parameter: Tensor) -> int:
    return 0 if parameter.is_inference() else parameter._version


def why_not(encoder: BertEncoder, int8: bool) -> str | None:
    """Why this encoder cannot be prepared on this machine, or None if it can."""
    if not len(encoder.layer):
        return "it has no layers"
    weight = _layers(encoder)[0].attention.self.query.weight
    if weight.device.type != "cpu":
        return f"its weights are on {weight.device}, and the packed kernels are the CPU's"
    if not torch.backends.mkldnn.is_available() or not hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    ):
        return "this torch comes without oneDNN"
    supported = {
        torch.float32: True,
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported(),
    }
    if not supported.get(weight.dtype, False):
        return f"this CPU has no {weight.dtype} kernels"
    if int8 and not _int8_works():
        return "this CPU or torch has no int8 kernels"
    config = encoder.config
    if config.is_decoder or config.position_embedding_type.startswith("relative"):
        return "decoders and relative positions compute attention scores of their own"
    if config.variant != "bert":
        return f"layers of variant={config.variant!r} normalise their input, not their output"
    return _why_not_plain(encoder, _linears(encoder))


def why_not_head(head: "BertLMPredictionHead") -> str | None:
    """Why this head cannot be prepared where its encoder was, or None if it can."""
    return _why_not_plain(head, (head.transform.dense, head.decoder))


def _why_not_plain(root: nn.Module, linears: Iterable[nn.Module]) -> str | None:
    for module in linears:
        # An adapter (LoRA, say) or a quantised layer may stand in its place.
        if type(module) is not nn.Linear:
            return f"one of its linear layers is a {type(module).__name__}"
    if any(is_hooked(m) for m in root.modules()):
        return "a module of it has a hook, which the prepared layers would not call"
    return None


def _int8_works() -> bool:
    """Tries the operator on four numbers: which CPUs it needs differs between releases."""
    try:
        layer = Int8Linear(torch.eye(16), torch.zeros(16))
        return bool(torch.allclose(layer(torch.eye(16)), torch.eye(16), atol=0.02))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


def _layers(encoder: BertEncoder) -> list[BertLayer]:
    return list(encoder.layer)  # type: ignore[arg-type]  # a ModuleList has no item type


def _linears(encoder: BertEncoder) -> Iterable[nn.Module]:
    for layer in _layers(encoder):
        attention = layer.attention
        yield from (attention.self.query, attention.self.key, attention.self.value)
        yield from (attention.output.dense, layer.intermediate.dense, layer.output.dense)
