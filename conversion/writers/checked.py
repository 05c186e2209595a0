"""What every writer takes and gives, and what it checks of the tensors that it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hf_bert_impl.errors import InputError

from ..tensors import DTYPES, TensorInfo

#: Gives the tensor of a name, once for each, in the shape and dtype that was announced.
Read = Callable[[str], Tensor]


class Writer(Protocol):
    """Writes tensors, one of them in memory at a time unless it says otherwise."""

    def __call__(
        self, path: Path, tensors: Mapping[str, TensorInfo], read: Read, /
    ) -> tuple[Path, ...]:
        """Write a checkpoint.

        Args:
            path: The file, or what the format has in its place; files of that name are replaced.
            tensors: What to write, by name, in order.
            read: Gives the tensors.

        Returns:
            The files written.

        Raises:
            InputError: A name or a dtype has no place in the format, or a tensor is not as
                announced.
            OSError: A file cannot be written.
        """


def read_announced(info: TensorInfo, read: Read) -> Tensor:
    """Read a tensor, and check that it is what a writer's table says of it.

    Raises:
        InputError: Its shape or dtype is another.
    """
    tensor = read(info.name)
    if tuple(tensor.shape) != info.shape or tensor.dtype != DTYPES.get(info.dtype):
        raise InputError(
            f"tensor {info.name!r:.200} came as {tensor.dtype} {list(tensor.shape)}",
            f"{info.dtype} {list(info.shape)}",
            "report this: it is a fault of the conversion, not of the checkpoint",
        )
    return tensor.detach()


def raw_bytes(info: TensorInfo, read: Read) -> np.ndarray:
    """Read a tensor as `read_announced` does: its bytes, row by row; no copy where it lies so."""
    return read_announced(info, read).contiguous().reshape(-1).view(torch.uint8).numpy()


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
