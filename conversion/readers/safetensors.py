"""Safetensors: a JSON table of names, dtypes and places, followed by the numbers.

The library checks that the tensors fill the file without overlap, and maps the numbers. The format
has no checksum. Layout: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import safe_open

from ..tensors import Checkpoint, known
from .mapped import byte_size, read_at, reading
from .sharded import load_json


def read_safetensors(path: Path) -> Checkpoint:
    """Read `model.safetensors`.

    Raises:
        InputError: The file cannot be read, is damaged, or has a duplicate name.
    """
    file: Any
    with reading("safetensors", path), safe_open(path, framework="pt") as file:
        # The library has bounded the table, and accepts duplicate names.
        load_json(read_at(path, 8, int.from_bytes(read_at(path, 0, 8), "little")))
        for name in file.offset_keys():  # the library does not bound the sizes next to a 0
            byte_size(file.get_slice(name).get_shape(), "uint8")
        tensors = {name: known(file.get_tensor(name)) for name in file.offset_keys()}
        written_for = (file.metadata() or {}).get("format")  # "pt", "tf", "flax", "np" or "mlx"
    software = f"safetensors, metadata format {written_for!r:.40}" if written_for else None
    return Checkpoint(tensors, software)


def is_safetensors(path: Path) -> bool:
    """Whether a file begins with a length that fits it, and a JSON table."""
    head = read_at(path, 0, 9)
    return head[8:] == b"{" and int.from_bytes(head[:8], "little") <= path.stat().st_size - 8
