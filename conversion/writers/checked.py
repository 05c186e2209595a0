"""What every writer checks of the tensors that it is given."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hf_bert_impl.errors import InputError

from ..tensors import DTYPES, TensorInfo


def check_announced(info: TensorInfo, tensor: Tensor) -> None:
    """Check that a tensor is what a writer's table says of it.

    Raises:
        InputError: Its shape or dtype is another.
    """
    if tuple(tensor.shape) != info.shape or tensor.dtype != DTYPES.get(info.dtype):
        raise InputError(
            f"tensor {info.name!r:.200} came as {tensor.dtype} {list(tensor.shape)}",
            f"{info.dtype} {list(info.shape)}",
            "report this: it is a fault of the conversion, not of the checkpoint",
        )


def raw_bytes(info: TensorInfo, tensor: Tensor) -> np.ndarray:
    """The bytes of a tensor, row by row; no copy where it lies so.

    Raises:
        InputError: It is not what a writer's table says of it.
    """
    check_announced(info, tensor)
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def check_unicode(name: str) -> None:
    """Refuse a name that cannot be encoded.

    Raises:
        InputError: Half of a surrogate pair stands in it.
    """
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{error.object[error.start : error.end]!r} stands in a name", "Unicode", "rename it"
        ) from None
