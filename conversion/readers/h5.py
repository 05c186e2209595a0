"""Keras weights: `tf_model.h5` of transformers' TFBert classes.

Names are the full paths of the datasets, `bert/tf_bert_for_pre_training/bert/embeddings/…:0`. In
shards the first two parts are missing.
"""

from __future__ import annotations

import itertools
import math
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_bert_impl.extras import require

from ..tensors import DTYPES, Checkpoint, Unread
from .mapped import most_bytes, read_at, reading

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: The signature may follow a user block of 512 bytes or a larger power of two.
_SIGNATURE_PLACES = (0, *(1 << power for power in range(9, 21)))
#: A node of a group's tree (a B-tree of version 1) that has children of its own kind.
_NODE = re.compile(rb"TREE\0[^\0]", re.DOTALL)
_MAX_DEPTH = 64


def read_h5(path: Path) -> Checkpoint:
    """Read an HDF5 file by h5py.

    Raises:
        InputError: The file is damaged, has links or numbers in other files, or h5py is missing.
    """
    h5py = require("h5py", "convert", "a Keras checkpoint")
    tensors: dict[str, torch.Tensor | Unread] = {}
    ranges = []
    limit = most_bytes(path)
    with reading("HDF5", path):
        _check_trees(path)
    with reading("HDF5", path), h5py.File(path, "r") as file:
        for name, dataset in _datasets(h5py, file, "", set()):
            limit -= max(dataset.nbytes, math.prod(dataset.chunks or ()) * dataset.dtype.itemsize)
            if limit < 0:
                raise ValueError(f"{name!r:.200} takes more bytes than the file can hold")
            kind = dataset.dtype.name if dataset.dtype.kind != "O" else "string"
            if kind not in DTYPES or dataset.shape is None:
                tensors[name] = Unread(dataset.shape or (), kind)
                continue
            _check_whole(dataset, name)
            native = dataset.dtype.newbyteorder("=")
            tensors[name] = torch.from_numpy(np.asarray(dataset[()], native))
            if (start := dataset.id.get_offset()) is not None:
                ranges.append((start, start + dataset.id.get_storage_size()))
        software = _software(file.attrs)
        # The only sign of a wrong address.
        if any(end > start for (_, end), (start, _) in itertools.pairwise(sorted(ranges))):
            raise ValueError("two of its tensors share bytes")
    return Checkpoint(tensors, software)


def _software(attributes: Any) -> str | None:
    said = (attributes.get(name) for name in ("keras_version", "backend"))
    words = (text.decode() if isinstance(text, bytes) else text for text in said)
    version, backend = (
        text[:40] if isinstance(text, str) and text.isprintable() else "" for text in words
    )
    return f"Keras {version}" + f" ({backend})" * bool(backend) if version else None


def _datasets(h5py: Any, group: Any, prefix: str, seen: set[Any]) -> Iterator[tuple[str, Any]]:
    """All datasets by path. A second name for an object is refused: it may form a circle."""
    for key in group:
        name = f"{prefix}{key}"
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise ValueError(f"{name!r:.200} is a link")
        item = group[key]
        address = h5py.h5o.get_info(item.id).addr
        if address in seen or name.count("/") > _MAX_DEPTH:
            raise ValueError(f"{name!r:.200} is a second name for one object, or too deep")
        seen.add(address)
        if isinstance(item, h5py.Group):
            yield from _datasets(h5py, item, f"{name}/", seen)
        elif isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
            raise ValueError(f"{name!r:.200} keeps its numbers in another file")
        elif isinstance(item, h5py.Dataset):
            yield name, item


def _check_trees(path: Path) -> None:
    """Refuse a group's tree with a node inside itself: HDF5 would recurse until it crashes.

    Layout: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html, III.A.1.
    """
    start = _start(path) or 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        sizes = start + (13 if data[start + 8] < 2 else 9)
        if data[sizes : sizes + 2] != b"\x08\x08":
            raise ValueError("its addresses do not have 8 bytes")
        for node in _NODE.finditer(data):
            used = int.from_bytes(data[node.start() + 6 : node.start() + 8], "little")
            for at in range(node.start() + 32, node.start() + 32 + 16 * used, 16):
                child = start + int.from_bytes(data[at : at + 8], "little")
                inside = _NODE.match(data, child)
                if inside and data[inside.end() - 1] >= data[node.end() - 1]:
                    raise ValueError("the tree of a group contains itself")


def _check_whole(dataset: Any, name: str) -> None:
    """Refuse a dataset with unwritten parts, which the library would fill with zeros."""
    if dataset.chunks:
        pairs = zip(dataset.shape, dataset.chunks, strict=True)
        is_whole = dataset.id.get_num_chunks() == math.prod(-(-n // size) for n, size in pairs)
    else:
        size = dataset.size * dataset.id.get_type().get_size()
        is_whole = dataset.id.get_storage_size() >= size
    if not is_whole:
        raise ValueError(f"some numbers of {name!r:.200} were never written")


def is_h5(path: Path) -> bool:
    """Whether a file is HDF5, by its signature."""
    return _start(path) is not None


def _start(path: Path) -> int | None:
    places = (at for at in _SIGNATURE_PLACES if read_at(path, at, len(_SIGNATURE)) == _SIGNATURE)
    return next(places, None)
