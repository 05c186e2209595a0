"""PyTorch's checkpoints: state dicts and pickled modules, of any torch since 0.2.

Nothing of a checkpoint is run: see `restricted_pickle`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from hf_bert_impl.errors import InputError

from ..tensors import TensorInfo
from .pickled_objects import Instance, TensorRecord, UnsupportedTensor, is_key
from .sharded import ShardedReader
from .torch_containers import TorchFile, is_torch

__all__ = ["TorchReader", "is_torch"]

#: Containers in one another: a module of BERT lies seven deep, a container in itself without end.
_MAX_DEPTH = 64
_MAX_NAME = 1000
#: Characters of all names together. A dict may be shared by many others, and a small pickle so
#: have more names than fit in memory; a vocabulary of 250 000 words has five million.
_MAX_CHARACTERS = 1 << 25
_NAME_OVERHEAD = 32


class TorchReader(ShardedReader):
    """A checkpoint of PyTorch: `pytorch_model.bin`, `.pt`, `.pth`, codertimo's `.ep0`, or an index.

    Nested dicts are flattened to dotted names ("model.bert.pooler.dense.bias"), and so are the
    parameters and buffers of pickled modules, as their `state_dict()` would have named them.
    Tied tensors come under each of their names.
    """

    format = "torch"

    def __init__(self, path: Path) -> None:
        self.attributes: dict[str, int | float | bool | str] = {}
        """The plain attributes of pickled modules, dotted: "transformer_blocks.0.attention.h"."""
        super().__init__(path)

    def _open(self, path: Path) -> _Contents:
        contents = _Contents(TorchFile(path))
        self.software = contents.file.software
        self.attributes |= contents.attributes
        return contents


class _Contents:
    """Everything in a pickled value, by dotted names."""

    def __init__(self, file: TorchFile) -> None:
        self.attributes: dict[str, int | float | bool | str] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self.file = file
        self._records: dict[str, TensorRecord] = {}
        self._path = file.path
        self._characters = 0
        if not isinstance(file.root, dict | Instance):
            held = "Tensor" if isinstance(file.root, TensorRecord) else type(file.root).__name__
            raise InputError(
                f"{file.path} holds a {held}",
                "a state dict or a module",
                "save its state_dict()",
            )
        self._visit(file.root, "", 0)

    def read(self, name: str) -> Tensor:
        return self.file.read(name, self._records[name])

    def _visit(self, value: Any, name: str, depth: int) -> None:
        self._count(1, name)
        if depth > _MAX_DEPTH:
            raise self._endless(name)
        if isinstance(value, dict):
            for key, item in value.items():
                self._visit(item, self._join(name, key), depth + 1)
        elif isinstance(value, Instance) and isinstance(value.state.get("_modules"), dict):
            self._visit_module(value.state, name, depth)
        elif isinstance(value, TensorRecord):
            if name in self.tensors:
                raise InputError(
                    f"{self._path} has tensor {name!r} twice", "every name once", "rename one"
                )
            self.tensors[name] = TensorInfo(name, value.shape, value.dtype)
            self._records[name] = value
        elif isinstance(value, UnsupportedTensor):
            raise InputError(
                f"tensor {name!r} of {self._path} is {value.kind}",
                "plain dense tensors",
                "make it a dense one by torch and save it again",
            )

    def _visit_module(self, state: dict[Any, Any], prefix: str, depth: int) -> None:
        """The order is that of `torch.nn.Module.state_dict`: parameters, buffers, children."""
        self._count(len(state), prefix)
        for key, value in state.items():
            if not isinstance(key, str) or key.startswith("_"):
                continue
            if isinstance(value, float | str) or (isinstance(value, int) and is_key(value)):
                self.attributes[self._join(prefix, key)] = value
        unsaved = state.get("_non_persistent_buffers_set")  # since torch 1.6
        unsaved = unsaved if isinstance(unsaved, list) else []
        self._count(len(unsaved), prefix)
        left_out = {key for key in unsaved if isinstance(key, str)}
        for part in ("_parameters", "_buffers", "_modules"):
            items = state.get(part)
            if not isinstance(items, dict):
                continue
            self._count(len(items), prefix)
            for key, value in items.items():
                # None: a bias that the module was made without
                if value is not None and not (part == "_buffers" and key in left_out):
                    self._visit(value, self._join(prefix, key), depth + 1)

    def _count(self, names: int, prefix: str) -> None:
        """Take note of names that are about to be made, and refuse to make too many."""
        self._characters += names * (len(prefix) + _NAME_OVERHEAD)
        if self._characters > _MAX_CHARACTERS:
            raise self._endless(prefix)

    def _endless(self, name: str) -> InputError:
        return InputError(
            f"{self._path} nests its containers without end, as in {name!r:.100}",
            f"a state dict, {_MAX_DEPTH} deep at most",
            "save a plain state dict",
        )

    def _join(self, prefix: str, key: object) -> str:
        name = f"{prefix}.{key}" if prefix else str(key)
        if len(name) > _MAX_NAME or not name.isprintable():
            raise InputError(
                f"{self._path} has the name {name!r:.100}",
                f"printable names of {_MAX_NAME} characters at most",
                "save it again with other names",
            )
        return name
