"""Numbers that are NaN or infinite, in weights and in what a model computes."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from hf_bert_impl.errors import InputError


@torch.no_grad()
def not_finite(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers with a NaN or an infinity, by name; if sharded, this process's."""
    tensors = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if hasattr(tensor, "to_local"):  # sharded among processes
            tensor = tensor.to_local()
        if not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
            continue
        # A NaN becomes both ends. This takes a tenth of the time of `isfinite`.
        if not all(math.isfinite(end.item()) for end in torch.aminmax(tensor)):
            tensors[name] = tensor
    return tensors


def check_finite(module: nn.Module, name: Any) -> None:
    """Checks a loaded model's weights; `from_pretrained` accepts such weights, as upstream does.

    Args:
        module: The model.
        name: Its source, for the message.

    Raises:
        ValueError: A weight is NaN or infinite.
    """
    odd = not_finite(module)
    if not odd:
        return
    first, tensor = next(iter(odd.items()))
    nan, total = int(tensor.isnan().sum()), tensor.numel()
    what = f"{nan} NaN" if nan else f"{int(tensor.isinf().sum())} infinities"
    more = f", and {len(odd) - 1} other tensors" if len(odd) > 1 else ""
    wide = "Load it in float32. " if tensor.dtype == torch.float16 and not nan else ""
    raise ValueError(
        f"{name} has NaN or infinite weights: {what} among the {total} of "
        f"{first}{more}. {wide}Use a checkpoint from before its training failed, or "
        "restore its files."
    )


class NotFinite(InputError):
    """A model computed NaN or infinities."""


def check_numbers(numbers: Any, model: Any) -> None:
    """Checks a model's results, which can exceed the range of its dtype.

    Args:
        numbers: A tensor or an array.
        model: The model, whose dtype the message names.

    Raises:
        NotFinite: A number is NaN or infinite.
    """
    if bool(torch.as_tensor(numbers).isfinite().all()):
        return
    kind = str(model.dtype).removeprefix("torch.")
    wide = model.dtype in (torch.float32, torch.float64)
    advice = "Use a checkpoint with smaller weights." if wide else "Use `dtype='float32'`."
    raise NotFinite(
        f"The model's outputs in {kind} are NaN or infinite. The largest {kind} is "
        f"{torch.finfo(model.dtype).max:.3g}. {advice}",
        "dtype='float32'",
    )
