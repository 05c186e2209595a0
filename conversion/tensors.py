"""The tensors of a checkpoint by name: the result of every reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: The dtypes of the tensors that readers return.
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16"),
        *("int64", "int32", "int16", "int8", "uint8", "bool"),
    )
}


@dataclass(frozen=True)
class Unread:
    """A value of a dtype outside `DTYPES`: it is listed, and its bytes are not read."""

    shape: tuple[int, ...]
    dtype: str
    """The format's own word, such as "string"."""


#: By name, exactly as in the file, in the order of the file. A tensor may be a view of the mapped
#: file, so it must not be changed.
Tensors = Mapping[str, Tensor | Unread]


@dataclass(frozen=True)
class Checkpoint:
    """The content of a file, or of all files of a checkpoint."""

    tensors: Tensors
    software: str | None = None
    """The program that wrote it, where the file names one."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Plain attributes of a pickled module, dotted: "transformer_blocks.0.attention.h"."""
    files: tuple[Path, ...] = ()
    """Every file, index files included."""
    format: str = ""
    """A key of `formats.FORMATS`."""


def dtype_name(tensor: Tensor | Unread) -> str:
    """The name of a dtype, "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def known(tensor: Tensor | Unread) -> Tensor | Unread:
    """The tensor itself, or an `Unread` if its dtype is not in `DTYPES`."""
    name = dtype_name(tensor)
    return tensor if name in DTYPES else Unread(tuple(tensor.shape), name)
