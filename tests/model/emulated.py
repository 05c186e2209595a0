"""A device that is not the CPU, emulated: numbers are computed by the CPU, and mix-ups are errors.

    python -m tests.model.emulated

It compares every head on this device with the CPU, along the routes of accelerators. The device
lasts as long as the process, so `test_conformance.py` runs it in one of its own.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from hf_bert_impl.model import attention, modeling_bert
from hf_bert_impl.model.layers import BertEncoder
from tests.model.cases import HEADS, LOSS_HEADS, NO_DROPOUT, largest, model_and_batch, tensors
from tests.model.packing.rows import model_and_rows, packed, totals

NAME = "emulated"
aten = torch.ops.aten
#: Operations that take tensors of two devices.
MIXED = (aten.copy_.default, aten._to_copy.default, aten.index.Tensor, aten.index_put_.default)
#: The calls so far that would wait for the device.
waits: list[str] = []


class There(Tensor):
    """A tensor on the device; its numbers are on the CPU."""

    _numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> "There":
        form: dict[str, Any] = {"strides": inner.stride(), "dtype": inner.dtype}
        form["storage_offset"] = inner.storage_offset()
        made = Tensor._make_wrapper_subclass(cls, inner.shape, device=torch.device(NAME, 0), **form)
        made._numbers = inner
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return compute(func, args, kwargs or {})

    def tolist(self) -> Any:
        waits.append("tolist")
        return self._numbers.tolist()


class Device(TorchDispatchMode):
    """Makes tensors on the device where a call names it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Computes an operation by the CPU.

    Raises:
        RuntimeError: Its tensors are on two devices.
    """
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    there = [each for each in given if isinstance(each, There)]
    others = [each for each in given if not isinstance(each, There) and each.ndim]
    if there and others and func not in MIXED:
        raise RuntimeError(f"{func} takes tensors of two devices")
    is_there = bool(there)
    if kwargs.get("device") is not None:
        is_there = torch.device(kwargs["device"]).type == NAME
        kwargs = kwargs | {"device": "cpu"} if is_there else kwargs
    is_moved = func is aten._to_copy.default and bool(there) != is_there
    reads = func in (aten._local_scalar_dense.default, aten.nonzero.default) and bool(there)
    by_mask = func is aten.index.Tensor and any(each.dtype == torch.bool for each in given[1:])
    if (is_moved and not kwargs.get("non_blocking")) or reads or by_mask:
        waits.append(str(func))
    args, kwargs = tree_map(_inner, (args, kwargs))
    found = func(*args, **kwargs)
    if func._schema.is_mutable and found is args[0]:
        return given[0]
    return tree_map(_outer, found) if is_there else found


def _outer(value: Any) -> Any:
    return There(value) if isinstance(value, Tensor) else value


def _inner(value: Any) -> Any:
    return value._numbers if isinstance(value, There) else value


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    totals_q: Tensor,
    totals_k: Tensor,
    longest_q: int,
    longest_k: int,
) -> Any:
    """In place of torch's: the arguments that its releases share, and the checks of its kernel."""
    assert all(x.is_contiguous() and x.ndim == 3 for x in (query, key, value))
    lengths = []
    for totals_, states, longest in ((totals_q, query, longest_q), (totals_k, key, longest_k)):
        assert isinstance(totals_, There) and totals_.dtype == torch.int32
        assert totals_.is_contiguous()
        found = totals_._numbers.diff().tolist()
        assert (sum(found), max(found)) == (len(states), longest) and min(found) > 0
        lengths.append(found)
    parts = zip(
        query.split(lengths[0]), key.split(lengths[1]), value.split(lengths[1]), strict=True
    )
    attend = torch.nn.functional.scaled_dot_product_attention
    return torch.cat([attend(*(x.transpose(0, 1) for x in part)).transpose(0, 1) for part in parts])


@contextlib.contextmanager
def device(is_varlen: bool) -> Iterator[tuple[list[int], Any]]:
    """Computes on the device in this block.

    Args:
        is_varlen: Whether it has the kernel of variable lengths.

    Yields:
        How many calls have waited for the device before the layers of each call, and the kernel.
    """
    starts: list[int] = []
    layers, tensor = BertEncoder._forward_packed, torch.tensor

    def watched(*arguments: Any) -> Any:
        starts.append(len(waits))
        return layers(*arguments)

    def made(values: Any, device: Any = None, **options: Any) -> Tensor:
        found = tensor(values, device="cpu", **options)  # which no mode sees
        return found if device is None else found.to(device)

    with (
        mock.patch.object(BertEncoder, "_forward_packed", watched),
        mock.patch.object(attention, "varlen_attn", side_effect=varlen_attn) as kernel,
        mock.patch.object(modeling_bert, "takes_varlen", lambda *_: is_varlen),
        mock.patch.object(torch, "tensor", made),
        Device(),
    ):
        yield starts, kernel


def cases() -> Iterator[tuple[str, Any, dict[str, Tensor]]]:
    """A name, a model and its batch: every head and padding, in eval mode and in training."""
    for head in HEADS:
        for padding in ("left", "holes", "none"):
            yield f"{head}, {padding}", *model_and_batch(head, padding=padding)
        if head != "BertForMultipleChoice":
            model, rows = model_and_rows(head)
            yield f"{head}, packed", model, packed(rows) | {"cu_seq_lens_q": totals()}
    for head in LOSS_HEADS:
        options: dict[str, Any] = {"labels": True, **NO_DROPOUT}
        model, batch = model_and_batch(head, **options)
        yield f"{head}, right, training", model.train(), batch


def check(name: str, model: Any, batch: dict[str, Tensor], is_varlen: bool) -> None:
    """Compares numbers with the CPU's; the layers wait for nothing, and the kernel is called."""
    expected, _ = outputs(model, batch)
    with device(is_varlen) as (starts, kernel):
        there = {name: value.to(f"{NAME}:0") for name, value in batch.items()}
        model = model.to(f"{NAME}:0")
        if not model.training:
            model.prepare_for_inference()
        found, end = outputs(model, there)
    assert found.keys() == expected.keys(), name
    error = max(largest(_inner(found[key]) - value) for key, value in expected.items())
    assert error < 1e-5, (name, error)
    # Where column 0 is padding, a wait at the end leaves its states out.
    is_first_read = any(word in name for word in ("right", "none", "packed"))
    late = waits[starts[0] : end] if starts else []
    assert not (late and is_first_read), (name, late)
    is_served = is_varlen and "none" not in name and "BertLMHeadModel" not in name
    assert bool(kernel.call_count) == is_served, name


def outputs(model: Any, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], int]:
    """A call's output, in train mode the gradients of its loss, and the waits until then."""
    with torch.set_grad_enabled(model.training):
        output = model(**batch)
    end = len(waits)
    found = {name: value.detach() for name, value in tensors(output).items()}
    if model.training:
        output.loss.backward()
        found |= {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
    return found, end


if __name__ == "__main__":
    _setup_privateuseone_for_python_backend(NAME)
    torch.__future__.set_swap_module_params_on_conversion(True)
    for has_kernel in (True, False):
        for each in cases():
            check(*each, has_kernel)
    # autograd's thread for such a device is not joined, and now and then aborts an ordinary exit.
    os._exit(0)
