"""What every reader gives: the tensors of a checkpoint by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: The dtypes that a reader may give a tensor in.
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16"),
        *("int64", "int32", "int16", "int8", "uint8", "bool"),
    )
}


@dataclass(frozen=True)
class Unread:
    """A value of a dtype that is none of `DTYPES`. It is listed, and its bytes are not read."""

    shape: tuple[int, ...]
    dtype: str
    """The format's own word, such as "string"."""


#: By name, exactly as the file has it, in the order of the file. A tensor may lie in the mapped
#: file: it is not to be changed.
Tensors = Mapping[str, Tensor | Unread]


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds, or all files of a checkpoint."""

    tensors: Tensors
    software: str | None = None
    """What the file says about the program that wrote it, where it says so."""
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
    """The tensor itself, or an `Unread` where its dtype is none of `DTYPES`."""
    name = dtype_name(tensor)
    return tensor if name in DTYPES else Unread(tuple(tensor.shape), name)
