"""Bytes of files, read or mapped, for all readers."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hf_bert_impl.errors import InputError, one_line

from ..tensors import DTYPES

#: More elements than any file has; an axis of 0 would otherwise leave the other axes unbounded.
_MAX_ELEMENTS = 1 << 48
_MAX_AXES = 32
_MAX_RATIO = 200
_SLACK_BYTES = 64 << 20


class Unsafe(ValueError):
    """Content that may do harm, and the remedy. `reading` names the file."""


def most_bytes(path: Path) -> int:
    """The maximum number of bytes that the content of a file may use in memory or on the disk.

    Weights hardly shrink, and vocabularies or graphs shrink to a tenth. A few hostile bytes may
    claim any number of zeros.
    """
    return _MAX_RATIO * path.stat().st_size + _SLACK_BYTES


@contextlib.contextmanager
def reading(kind: str, path: Path) -> Iterator[None]:
    """Turn an error of a library into one `InputError`; its type depends on the damaged byte."""
    try:
        yield
    except InputError:
        raise
    except Unsafe as error:
        raise InputError(f"{path} is refused: {error}") from None
    except Exception as error:
        problem = f"{path} is a damaged {kind} file: {one_line(error):.300}"
        raise InputError(f"{problem}. Download or copy it again.") from None


def map_file(path: Path) -> Tensor:
    """The bytes of a file, mapped: only used parts are read, and writing changes no file."""
    return torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)


def read_at(path: Path, offset: int, size: int) -> bytes:
    """Read some bytes of a file.

    Args:
        path: Any path.
        offset: The first byte; a negative one counts from the end.
        size: Number of bytes.

    Returns:
        The bytes, fewer at the end; none if the path is no file, too short or cannot be read.
    """
    with contextlib.suppress(OSError):
        if path.is_file():  # a pipe would block
            with path.open("rb") as file:
                file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
                return file.read(size)
    return b""


def byte_size(shape: Sequence[int], dtype: str) -> int:
    """The bytes of a tensor.

    Args:
        shape: Sizes as a file names them.
        dtype: A key of `DTYPES`.

    Raises:
        ValueError: No tensor has such a shape.
    """
    is_large = len(shape) > _MAX_AXES or math.prod(max(n, 1) for n in shape) > _MAX_ELEMENTS
    if is_large or min(shape, default=0) < 0:
        raise ValueError(f"a tensor has the shape {list(shape)!s:.100}")
    return math.prod(shape) * DTYPES[dtype].itemsize


def tensor_at(data: Tensor, offset: int, shape: Sequence[int], dtype: str) -> Tensor:
    """A tensor inside bytes, row-major and little-endian.

    Args:
        data: The bytes of a file.
        offset: Where the tensor starts. The caller has checked that it ends inside the file.
        shape: Its sizes.
        dtype: A key of `DTYPES`.

    Returns:
        A view of the bytes; a copy if they are not aligned.
    """
    raw = data[offset : offset + byte_size(shape, dtype)]
    if offset % DTYPES[dtype].itemsize:
        raw = raw.clone()
    return raw.view(DTYPES[dtype]).reshape(tuple(shape))
