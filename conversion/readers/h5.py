"""Keras weights: `tf_model.h5` of transformers' TFBert classes, whole or in shards.

Names are the full paths of the datasets, `bert/tf_bert_for_pre_training/bert/embeddings/…:0`. In
shards the first two parts are missing, and the index names each tensor with a prefix (the model's
name) that the shards do not have.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from ..errors import ConversionError
from ..tensors import DTYPES, Reader, TensorInfo
from .hdf5 import SIGNATURE, SIGNATURE_PLACES, Hdf5File
from .mapped import tensor_at
from .shard_index import ShardIndex, read_shard_index
from .shards import check_shards


def is_h5(path: Path) -> bool:
    """Whether a file is HDF5, by its signature; False for what is no file or cannot be read."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            for place in SIGNATURE_PLACES:
                file.seek(place)
                if file.read(len(SIGNATURE)) == SIGNATURE:
                    return True
    except OSError:
        return False
    return False


class H5Reader(Reader):
    """The datasets of an HDF5 file, or of the files that an index names.

    Args:
        path: `tf_model.h5`, or `tf_model.h5.index.json`.

    Raises:
        ConversionError: The file is damaged, or laid out as Keras does not, or index and shards
            do not agree.
    """

    format = "h5"

    def __init__(self, path: Path) -> None:
        index = read_shard_index(path) if path.suffix == ".json" else None
        self._files = (path, *index.files) if index else (path,)
        shards = [Hdf5File(shard) for shard in (index.files if index else self._files)]
        if index:
            names = {shard.path: shard.datasets for shard in shards}
            check_shards(path, _without_prefix(index, names), names)
        self._homes = {name: shard for shard in shards for name in shard.datasets}
        self._tensors = {}
        for name, shard in self._homes.items():
            dataset = shard.datasets[name]
            self._tensors[name] = TensorInfo(name, dataset.shape, dataset.dtype)
        self.software = _software(shards[0].attributes)

    @property
    def files(self) -> tuple[Path, ...]:
        return self._files

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def read(self, name: str) -> Tensor:
        shard = self._homes[name]
        dataset = shard.datasets[name]
        if dataset.dtype not in DTYPES:
            raise ConversionError(
                f"{name!r:.200} of {shard.path} is {dataset.dtype}",
                f"one of {', '.join(DTYPES)}",
                "leave it out",
            )
        if not dataset.big_endian:
            return tensor_at(shard.data, dataset.offset, dataset.shape, dataset.dtype)
        dtype = DTYPES[dataset.dtype]
        rows = (math.prod(dataset.shape), dtype.itemsize)
        raw = tensor_at(shard.data, dataset.offset, rows, "uint8")
        return raw.flip(-1).view(dtype).reshape(dataset.shape)

    def close(self) -> None:
        self._homes = {}  # a mapped file goes when the last tensor in it does


def _without_prefix(index: ShardIndex, names: Mapping[Path, Container[str]]) -> ShardIndex:
    """The index with the names of the shards: without the model's, where its names share one."""
    prefixes = {name.partition("/")[0] for name in index.weight_map}
    shorter = {name.partition("/")[2]: file for name, file in index.weight_map.items()}
    known = any(name in held for name in shorter for held in names.values())
    return replace(index, weight_map=shorter) if len(prefixes) == 1 and known else index


def _software(attributes: Mapping[str, str]) -> str | None:
    version, backend = attributes.get("keras_version"), attributes.get("backend")
    if version is None or not version.isprintable():
        return None
    known = f"Keras {version:.40}"
    return f"{known} ({backend:.40})" if backend and backend.isprintable() else known
