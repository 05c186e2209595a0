"""Keras weights: a `tf_model.h5` that Keras and transformers 4 load by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import require

from ..tensors import TensorInfo
from .checked import Read, read_announced

#: What the file says of its writer. Keras mends weights of versions below 2 while it loads them.
KERAS_VERSION = "2.18.0"


def write_h5(path: Path, tensors: Mapping[str, TensorInfo], read: Read) -> tuple[Path, ...]:
    """The `Writer` of Keras; names are the paths of the datasets, `layer/…/kernel:0`.

    The first part of a name is the Keras layer that the tensor belongs to. transformers finds the
    weights of a layer by name; Keras's own `load_weights(by_name=True)` takes them in order, so
    the tensors of a layer come in the order of its weights in Keras.

    Raises:
        ValueError: h5py is not installed; or as for every `Writer`.
    """
    h5py = require("h5py", "convert", "writing Keras weights")
    layers: dict[str, list[str]] = {}
    for name in tensors:
        layer, _, weight = name.partition("/")
        if not all(name.split("/")) or not weight or "." in name.split("/") or "\0" in name:
            raise InputError(f"the name {name!r}", "a path: layer/…/weight:0", "rename it")
        layers.setdefault(layer, []).append(weight)
    try:
        with h5py.File(path, "w", libver="earliest") as file:  # which every version reads
            text = h5py.string_dtype()
            file.attrs.create("layer_names", list(layers), dtype=text)
            file.attrs["backend"] = "tensorflow"
            file.attrs["keras_version"] = KERAS_VERSION
            for layer, weights in layers.items():
                file.create_group(layer).attrs.create("weight_names", weights, dtype=text)
            for info in tensors.values():
                _write(file, info, read)
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path} cannot be written ({error})",
            "a folder with room for the result, and no name that goes on where another ends",
            "free some space, give another folder, or rename",
        ) from None
    return (path,)


def _write(file: Any, info: TensorInfo, read: Read) -> None:
    tensor = read_announced(info, read)
    if info.dtype != "bfloat16":
        file.create_dataset(info.name, data=tensor.numpy())
        return
    from h5py import h5d, h5p, h5s, h5t

    # numpy has no such type: HDF5 gets the bits, and their meaning beside them
    kind = h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_precision(16)
    kind.set_ebias(127)
    space = h5s.create_simple(info.shape) if info.shape else h5s.create(h5s.SCALAR)
    parents = h5p.create(h5p.LINK_CREATE)
    parents.set_create_intermediate_group(True)
    dataset = h5d.create(file.id, info.name.encode(), kind, space, lcpl=parents)
    if info.size:
        bits = tensor.contiguous().view(torch.int16).numpy()
        dataset.write(h5s.ALL, h5s.ALL, bits, mtype=kind)
