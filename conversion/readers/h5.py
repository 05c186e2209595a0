"""Keras weights: `tf_model.h5` of transformers' TFBert classes, whole or in shards.

Names are the full paths of the datasets, `bert/tf_bert_for_pre_training/bert/embeddings/…:0`. In
shards the first two parts are missing, and the index names each tensor with a prefix (the model's
name) that the shards do not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from .hdf5 import SIGNATURE, SIGNATURE_PLACES, Hdf5File
from .mapped import read_at
from .sharded import ShardedReader


def is_h5(path: Path) -> bool:
    """Whether a file is HDF5, by its signature."""
    return any(read_at(path, place, len(SIGNATURE)) == SIGNATURE for place in SIGNATURE_PLACES)


class H5Reader(ShardedReader):
    """The datasets of `tf_model.h5`, or of the files of `tf_model.h5.index.json`."""

    format = "h5"

    def _open(self, path: Path) -> Hdf5File:
        file = Hdf5File(path)
        self.software = self.software or _software(file.attributes)
        return file

    def _stored_names(
        self, weight_map: dict[str, str], names: Mapping[Path, Iterable[str]]
    ) -> dict[str, str]:
        """Without the model's name, where all names of the index begin with it."""
        prefixes = {name.partition("/")[0] for name in weight_map}
        shorter = {name.partition("/")[2]: file for name, file in weight_map.items()}
        known = any(name in shorter for held in names.values() for name in held)
        return shorter if len(prefixes) == 1 and known else weight_map


def _software(attributes: Mapping[str, str]) -> str | None:
    version, backend = attributes.get("keras_version"), attributes.get("backend")
    if version is None or not version.isprintable():
        return None
    known = f"Keras {version:.40}"
    return f"{known} ({backend:.40})" if backend and backend.isprintable() else known
