"""Linear layers of a model that is not prepared: by oneDNN where `cpu_kernels.py` says it pays.

What is computed is the same, in another order of summation. Whatever changes, records or
transforms a linear layer (an adapter, hooks, quantisation, autocast, a compiler, a tracer,
`torch.func`, modes, patches of torch) is served as ever: then the layer itself is called. Gradients
are oneDNN's as well; those that are to be differentiated again are torch's own.
`torch.backends.mkldnn.flags(enabled=False)` switches oneDNN off.

Notation: T computed tokens (see `padding.py`), N outputs of a linear layer.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as hooks_of_all
from torch.utils._device import DeviceContext
from transformers.activations import GELUActivation

from .cpu_kernels import is_faster_here, is_large

#: As torch has them; tools that count or record put their own in their place.
_TORCH = (nn.Module.__call__, nn.Linear.forward, nn.functional.linear)


def linear(
    layer: nn.Module, states: Tensor, activation: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """(..., in) to activation(layer(states)), (..., N).

    Args:
        layer: A linear layer, or whatever stands in its place.
        states: Its input.
        activation: Follows, if given. The exact GELU is then part of the product.
    """
    if not takes_onednn(layer, states):
        output = layer(states)
        return output if activation is None else activation(output)
    parameters: Any = layer._parameters
    inputs = (states, parameters["weight"], parameters["bias"])
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        output = _Product.apply(*inputs)
    elif activation is not None and _is_exact_gelu(activation):
        output, activation = _multiply(*inputs, "gelu", "none"), None
    else:
        output = _multiply(*inputs)
    return output if activation is None else activation(output)


def _multiply(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    operation: str = "none",
    algorithm: str = "",
) -> Tensor:
    """(..., in), (N, in), (N,) to (..., N); neither has to be contiguous."""
    output = torch.ops.mkldnn._linear_pointwise(states, weight, bias, operation, [], algorithm)
    # For other shapes than (T, in) the operator returns a view of what it has made, which nobody
    # else holds. As a view, autograd would let nobody write into it that `_Product` returned or
    # that was made under `no_grad`; as torch's own products are it is a tensor of its own.
    return torch.ops.aten._unsafe_view(output, output.shape) if output._is_view() else output


class _Product(torch.autograd.Function):
    """states · weightᵀ + bias, (..., N), whose gradients are products by oneDNN too."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        # As torch's own: what no gradient needs is not kept alive.
        of_states, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(states if of_weight else None, weight if of_states else None)
        return _multiply(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])  # (T, N)
        # Derivatives of these, and many of them at once, are what oneDNN's operators lack.
        by_torch = (
            torch.is_grad_enabled()
            or is_recorded()
            or torch._C._functorch.is_legacy_batchedtensor(gradient)
        )
        of_states = of_weight = of_bias = None
        if weight is not None:
            of_states = gradient @ weight if by_torch else _multiply(gradient, weight.t())
        if states is not None:
            columns = states.reshape(-1, states.shape[-1]).t()  # (in, T)
            of_weight = rows.t() @ columns.t() if by_torch else _multiply(rows.t(), columns)
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        return of_states, of_weight, of_bias


def takes_onednn(layer: nn.Module, states: Tensor) -> bool:
    """Whether this call is a plain product that oneDNN computes faster."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    # Exact types: a subclass may stand for anything, and so may what `torch.func.functional_call`
    # puts in a parameter's place.
    if type(states) is not Tensor or not states.is_cpu:
        return False
    if type(layer) is not nn.Linear or not is_faster_here() or not can_tell():
        return False
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    return (
        type(weight) is nn.Parameter
        and type(bias) is nn.Parameter
        and weight.ndim == 2
        and is_large(states, weight)
        and states.shape[-1] == weight.shape[1]
        and bias.shape == weight.shape[:1]
        and states.dtype is weight.dtype is bias.dtype is torch.float32
        and weight.is_cpu
        and bias.is_cpu
        and weight.is_contiguous()
        and bias.is_contiguous()
        and not is_hooked(layer)
        and not is_patched()
        and not is_recorded()
        and not torch._C._functorch.is_legacy_batchedtensor(states)
    )


@cache
def can_tell() -> bool:
    """Whether this torch has the private names that tell what a call is part of."""
    return (
        hasattr(torch._C, "_len_torch_dispatch_stack")
        and hasattr(torch.overrides, "_get_current_function_mode_stack")
        and hasattr(forward_ad, "_current_level")
        and hasattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack")
        and hasattr(torch._C._functorch, "is_legacy_batchedtensor")
        and hasattr(nn.Module, "_compiled_call_impl")
        and hasattr(hooks_of_all, "_has_any_global_hook")
    )


def is_hooked(module: nn.Module) -> bool:
    """Whether someone else's code runs where the module is called."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__  # accelerate's way
        or module._compiled_call_impl is not None  # `module.compile()`
        or hooks_of_all._has_any_global_hook()
    )


def type_name(kind: type) -> str:
    """In full: many libraries have a `Linear`."""
    return f"{kind.__module__}.{kind.__qualname__}"


def is_patched() -> bool:
    """Whether a tool has put its own in the place of what every linear layer runs through."""
    return (nn.Module.__call__, nn.Linear.forward, nn.functional.linear) != _TORCH


def is_recorded() -> bool:
    """Whether more than numbers is wanted of this call: a program, tangents, another precision."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch.is_autocast_enabled("cpu")
        or not torch.backends.mkldnn.enabled
        # `torch.set_default_device` is a mode that only names a device.
        or any(
            type(mode) is not DeviceContext
            for mode in torch.overrides._get_current_function_mode_stack()
        )
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None  # `torch.func`
        or forward_ad._current_level >= 0
    )


def _is_exact_gelu(activation: Callable[[Tensor], Tensor]) -> bool:
    """Whether it is `hidden_act="gelu"` as transformers makes it, which oneDNN has as well."""
    return (
        isinstance(activation, nn.Module)
        and type(activation) is GELUActivation
        and activation.act is nn.functional.gelu
        and not is_hooked(activation)
    )
