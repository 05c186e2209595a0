"""Safetensors: a JSON table of names, dtypes and places, and the numbers behind it.

The library checks that the table fits the file (that every tensor lies in it, that none overlap and
that nothing is left over) and maps the numbers; the format has no checksum. The layout is that of
https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hf_bert_impl.errors import InputError

from ..tensors import TensorInfo
from .mapped import byte_size, damaged, read_at
from .sharded import DuplicateKeyError, ShardedReader, only_once

#: The format's word for each dtype of `DTYPES`, in the order of the library's own list.
CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "float32": "F32",
    "float64": "F64",
    "int64": "I64",
}
_DTYPES = {code: dtype for dtype, code in CODES.items()}
_damaged = functools.partial(damaged, "safetensors")


class SafetensorsReader(ShardedReader):
    """The tensors of `model.safetensors`, or of the files of `model.safetensors.index.json`."""

    format = "safetensors"

    def _open(self, path: Path) -> _File:
        file = _File(path)
        if file.written_for is not None:
            self.software = f"safetensors, metadata format {file.written_for!r:.40}"
        return file


class _File:
    def __init__(self, path: Path) -> None:
        self.tensors: dict[str, TensorInfo] = {}
        self._path = path
        try:
            if not path.is_file():  # the library would wait for a pipe
                raise InputError(f"{path} is no file", "a safetensors file", "check the path")
            self._file: Any = safe_open(path, framework="pt")
            _check_names(path)  # after the library has bounded the table and its shape
            for name in self._file.offset_keys():
                view = self._file.get_slice(name)
                code, shape = view.get_dtype(), tuple(view.get_shape())
                if byte_size(shape, "uint8") is None:  # beside a 0 the library checks no size
                    raise _damaged(path, f"tensor {name!r:.200} has a shape that no tensor has")
                self.tensors[name] = TensorInfo(name, shape, _DTYPES.get(code, code))
            self.written_for: str | None = (self._file.metadata() or {}).get("format")
            """"pt", "tf", "flax", "np" or "mlx"."""
        except (SafetensorError, OSError) as error:
            raise _damaged(path, str(error)) from None

    def read(self, name: str) -> Tensor:
        try:
            tensor: Tensor = self._file.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:  # RuntimeError: torch
            raise _damaged(self._path, f"tensor {name!r:.200}: {error}") from None
        if tensor.dtype == torch.bool:
            return tensor.view(torch.uint8) != 0  # torch knows no bool but 0 and 1
        # Old files have a table of any length, and numbers behind it at any place.
        return tensor.clone() if tensor.data_ptr() % tensor.itemsize else tensor


def is_safetensors(path: Path) -> bool:
    """Whether a file begins as one of safetensors: a length that fits it, and a JSON table."""
    head = read_at(path, 0, 9)
    return head[8:] == b"{" and int.from_bytes(head[:8], "little") <= path.stat().st_size - 8


def _check_names(path: Path) -> None:
    """Refuse what the library passes over: a name that stands in the table twice."""
    table = read_at(path, 8, int.from_bytes(read_at(path, 0, 8), "little"))
    try:
        json.loads(table, object_pairs_hook=only_once)
    except (DuplicateKeyError, ValueError, RecursionError) as error:
        raise _damaged(path, f"its table has {error}") from None
