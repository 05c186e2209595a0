"""What every reader gives: a list of named tensors, each of them read when it is asked for."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor

from hf_bert_impl.errors import InputError

#: The dtypes that a reader may give a tensor in, by the name in `TensorInfo.dtype`.
DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


@dataclass(frozen=True)
class TensorInfo:
    """What is known of a tensor before it is read."""

    name: str
    """Its name, exactly as the file has it."""
    shape: tuple[int, ...]
    """Its sizes; () for a scalar."""
    dtype: str
    """A key of `DTYPES`, or the format's own word for one that torch lacks ("string")."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


class Reader(abc.ABC):
    """An open checkpoint of one format, a context manager.

    Opening reads and checks the lists (headers, indexes) and no tensor, so that a checkpoint of
    any size can be looked at. Every failure is a `InputError`.
    """

    format: ClassVar[str]
    """The format's short name: "tf1", "h5", "flax", "torch" or "safetensors"."""

    software: str | None = None
    """What the file says about the program that wrote it, where it says so."""

    files: tuple[Path, ...]
    """Every file of the checkpoint, index files included."""

    tensors: Mapping[str, TensorInfo]
    """All tensors by name, in the order of the file."""

    def read(self, name: str) -> Tensor:
        """Read one tensor, and check it by whatever checksum the format has.

        Args:
            name: A key of `tensors`.

        Returns:
            The tensor in the dtype and shape that `tensors` names. It may lie in the mapped file:
            it is not to be changed, and not to be used after `close`.

        Raises:
            InputError: There is no such tensor, its bytes are missing or damaged, or its dtype
                is none of `DTYPES`.
        """
        if name not in self.tensors:
            raise InputError(
                f"{self.files[0]} has no tensor {name!r:.200}",
                f"one of its {len(self.tensors)} tensors",
                "hf-bert inspect lists them",
            )
        dtype = self.tensors[name].dtype
        if dtype not in DTYPES:
            raise InputError(
                f"tensor {name!r:.200} of {self.files[0]} is of dtype {dtype!r:.40}",
                f"one of {', '.join(DTYPES)}",
                "convert it to one of these, or leave it out, and save the checkpoint again",
            )
        return self._read(name)

    @abc.abstractmethod
    def _read(self, name: str) -> Tensor:
        """Read a tensor that is there, and of one of `DTYPES`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of the files. A mapped file goes when the last tensor in it does."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
