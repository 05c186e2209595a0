"""Safetensors: a JSON table of names, dtypes and places, and the numbers behind it.

The library checks that the table fits the file (that every tensor lies in it, that none overlap and
that nothing is left over) and maps the numbers; the format has no checksum. The layout is that of
https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import ConversionError
from ..tensors import DTYPES, Reader, TensorInfo
from .mapped import byte_size
from .shard_index import read_shard_index
from .shards import check_shards

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


class SafetensorsReader(Reader):
    """A checkpoint of `model.safetensors`, or of shards and their `model.safetensors.index.json`.

    Args:
        path: The file, or the index.

    Raises:
        ConversionError: A file cannot be read or is damaged, or the shards are not those of the
            index.
    """

    format = "safetensors"

    def __init__(self, path: Path) -> None:
        self.metadata: dict[str, str] = {}
        """The files' `__metadata__`: `format` is "pt", "tf", "flax", "np" or "mlx"."""
        self._tensors: dict[str, TensorInfo] = {}
        self._places: dict[str, tuple[Path, Any]] = {}
        index = read_shard_index(path) if path.suffix == ".json" else None
        shards = index.files if index else (path,)
        self._files = (path, *shards) if index else shards
        names = {shard: self._open(shard) for shard in shards}
        if index:
            check_shards(path, index, names)
        if "format" in self.metadata:
            self.software = f"safetensors, metadata format {self.metadata['format']!r:.40}"

    def _open(self, path: Path) -> list[str]:
        if not path.is_file():  # the library would wait for a pipe
            raise ConversionError(f"{path} is no file", "a safetensors file", "check the path")
        try:
            file = safe_open(path, framework="pt")
            _check_names(path)  # after the library has bounded the table and its shape
            names = file.offset_keys()
            for name in names:
                view = file.get_slice(name)
                code, shape = view.get_dtype(), tuple(view.get_shape())
                if byte_size(shape, "uint8") is None:  # beside a 0 the library checks no size
                    raise _damaged(path, f"tensor {name!r:.200} has a shape that no tensor has")
                self._tensors[name] = TensorInfo(name, shape, _DTYPES.get(code, code))
                self._places[name] = (path, file)
            self.metadata |= file.metadata() or {}
        except (SafetensorError, OSError) as error:
            raise _damaged(path, str(error)) from None
        return names

    @property
    def files(self) -> tuple[Path, ...]:
        return self._files

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def read(self, name: str) -> Tensor:
        path, file = self._places[name]
        info = self._tensors[name]
        if info.dtype not in DTYPES:
            raise ConversionError(
                f"tensor {name!r:.200} of {path} is of dtype {info.dtype}",
                f"one of {', '.join(DTYPES)}",
                "convert it to one of these by torch and save it again",
            )
        try:
            tensor = file.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:  # RuntimeError: torch
            raise _damaged(path, f"tensor {name!r:.200}: {error}") from None

        if tensor.dtype == torch.bool:
            return tensor.view(torch.uint8) != 0  # torch knows no bool but 0 and 1
        # Old files have a table of any length, and numbers behind it at any place.
        return tensor.clone() if tensor.data_ptr() % tensor.itemsize else tensor

    def close(self) -> None:
        self._places.clear()  # a map closes by itself when the last tensor in it is gone


def is_safetensors(path: Path) -> bool:
    """Whether a file begins as one of safetensors: a length that fits it, and a JSON table.

    Args:
        path: Any file; False for one that cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            head = file.read(9)
    except OSError:
        return False
    return head[8:] == b"{" and int.from_bytes(head[:8], "little") <= size - 8


def _check_names(path: Path) -> None:
    """Refuse what the library passes over: a name that stands in the table twice."""
    with path.open("rb") as file:
        table = file.read(int.from_bytes(file.read(8), "little"))
    try:
        json.loads(table, object_pairs_hook=_only_once)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"in its table {error}") from None


def _only_once(pairs: list[tuple[str, Any]]) -> None:
    names = set()
    for name, _ in pairs:
        if name in names:
            raise ValueError(f"{name!r:.200} stands twice")
        names.add(name)


def _damaged(path: Path, what: str) -> ConversionError:
    return ConversionError(
        f"{path} is damaged: {what:.300}", "an undamaged safetensors file", "download it again"
    )
