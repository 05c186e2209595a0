"""Pickles, read without running them.

A pickle is a program: `pickle.Unpickler` imports and calls the names in it. Here a name is only
compared with the table of this file, and all values are inert: an object becomes its state, and a
tensor a view of the file. `torch.load(weights_only=True)` reads neither codertimo's modules and
vocabularies nor protocol 4, copies old files into memory, and trusts the sizes that a file claims.

Python's own `pickle._Unpickler` decodes the opcodes. Keys of dictionaries are numbers and texts,
since hashing a deep tuple would not end.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, ClassVar

import torch
from torch import Tensor

from ..tensors import DTYPES
from .mapped import Unsafe, read_at, reading

_MAX_VOCABULARY_BYTES = 256 << 20
_MAX_NAME = 200
_INT64 = 1 << 63
#: A module's class. Functions do not start with a capital.
_MODULE_CLASS = re.compile(r"(torch\.nn|bert_pytorch)(\.\w+)*\.[A-Z]\w*", re.ASCII)
#: Objects in checkpoints that hold no weights.
_OPAQUE = re.compile(
    r"_codecs\.encode|builtins\.(bytearray|complex|bytes)|numpy\.(dtype|ndarray)"
    r"|numpy\._?core\.multiarray\.(scalar|_reconstruct)|torch\.(device|Tensor)"
    r"|torch\.(q?u?int\d+(x\d)?|b?float\d+\w*|complex\d+|bool|bits\w+)"
    r"|torch\.nn\.backends\.thnn\._get_thnn_function_backend"
)

#: The numbers of a storage, by its key, dtype and count as the pickle claims them.
StorageOf = Callable[[str, torch.dtype, int], Tensor]


class Instance:
    """An object: its saved `__dict__`."""

    def __init__(self, *_: Any) -> None:
        self.state: dict[Any, Any] = {}


def is_key(key: object) -> bool:
    """Whether a dict may have a key: it hashes fast, and few others share its hash."""
    if isinstance(key, int):
        return -_INT64 <= key < _INT64
    return key is None or isinstance(key, str | bytes | float)


def _fill(table: Any, pairs: Any) -> Any:
    """Add items to a dict, and to no other object. No key may occur twice."""
    for key, value in pairs:
        if type(table) is not dict or not is_key(key) or key in table:
            shown = repr(key)[:80] if is_key(key) else type(key).__name__
            raise ValueError(f"it has the key {shown} twice, or of an unusual type")
        table[key] = value
    return table


def _table(items: Any = ()) -> Any:
    if isinstance(items, dict):
        return items
    pairs = list(items)  # from Python 2
    if items:
        items.clear()  # one long list for many dicts would take unbounded time
    return _fill({}, pairs)


def _view(storage: Tensor, offset: int, shape: Any, strides: Any, *more: Any) -> Tensor:
    """A tensor of a storage. Its shape must not exceed the storage, even with strides of 0."""
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    is_outside = max(math.prod(shape), last + 1) > storage.numel()
    if is_outside or min((offset, *shape, *strides)) < 0:
        raise ValueError(f"a tensor of shape {tuple(shape)} does not fit its storage")
    if any(more[2:]):  # since torch 1.13
        raise ValueError("a tensor in it is lazily conjugated or negated")
    return storage.as_strided(shape, strides, storage.storage_offset() + offset)


_WORDS = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
#: The values of the names that a pickle may have: dtypes of storages, and functions to call.
_NAMES: dict[str, Any] = {
    **{f"torch.{word}Storage": dtype for word, dtype in zip(_WORDS, DTYPES.values(), strict=True)},
    "torch.ComplexFloatStorage": torch.complex64,
    "torch.storage.UntypedStorage": torch.uint8,
    **dict.fromkeys(("collections.OrderedDict", "collections.Counter"), _table),
    **dict.fromkeys(("builtins.set", "builtins.frozenset", "torch.Size"), lambda items=(): items),
    "torch._utils._rebuild_tensor_v2": _view,
    "torch._tensor._rebuild_from_type_v2": lambda function, _, arguments, *__: function(*arguments),
    **dict.fromkeys(
        (
            "torch._utils._rebuild_parameter",
            "torch._utils._rebuild_parameter_with_state",
            "torch.nn.parameter.Parameter",
        ),
        lambda data, *_: data,
    ),
}


_DISPATCH: dict[int, Any] = pickle._Unpickler.dispatch


class InertUnpickler(pickle._Unpickler):
    """Reads one pickle without running it.

    `load` returns plain values, dicts, lists, tuples, tensors and `Instance`. Containers may
    contain themselves, or be shared any number of times.

    Args:
        file: Positioned at the pickle's first byte, and behind its last one after `load`.
        storage_of: Called for each tensor's storage.

    Raises:
        Unsafe: The pickle has a name other than a tensor's part or a known module's class.
        Exception: The pickle is damaged. The type depends on the byte.
    """

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, file: IO[bytes], storage_of: StorageOf | None = None) -> None:
        super().__init__(file, encoding="latin1")
        self._storage_of = storage_of

    def find_class(self, module: str, name: str) -> Any:
        """The inert value of a name, if it is allowed."""
        module = {"__builtin__": "builtins"}.get(module, module)
        full = f"{module}.{name}"
        if "." not in name and len(full) <= _MAX_NAME:  # a dot would access an attribute
            if full in _NAMES:
                return _NAMES[full]
            if _OPAQUE.fullmatch(full):
                return lambda *_: None
            if _MODULE_CLASS.fullmatch(full):
                return Instance
            if full.startswith("torch._utils._rebuild_"):
                kind = name.removeprefix("_rebuild_")
                raise ValueError(f"a tensor in it is a {kind}; save it as a dense one")
        shown = f"{module[:80]}.{name[:80]}".encode("unicode_escape").decode()[:160]
        raise Unsafe(
            f"its pickle names {shown}, which could run code; none of it was run. "
            "Do not load it elsewhere; ask its author for a plain state dict."
        )

    def persistent_load(self, pid: Any) -> Any:
        """A storage, or the class of a module (torch 1.0)."""
        match pid:
            case ("module", made, *_):  # the class, its file and its source
                return made
            case ("storage", torch.dtype() as dtype, str() as key, _, int() as size, *view) if (
                0 <= size < _INT64 and not any(view) and self._storage_of
            ):
                return self._storage_of(key, dtype, size)
        raise ValueError("its pickle has a persistent id of no storage")

    def load_build(self) -> None:
        """BUILD: store an object's `__dict__`. Attributes of other values are not needed."""
        state = self.stack.pop()
        if isinstance(state, tuple) and len(state) == 2:  # __dict__, and __slots__
            state = state[0]
        if isinstance(self.stack[-1], Instance) and isinstance(state, dict):
            self.stack[-1].state = state

    def load_setitem(self) -> None:
        """SETITEM: set one item of a dict."""
        value, key = self.stack.pop(), self.stack.pop()
        _fill(self.stack[-1], [(key, value)])

    def load_setitems(self) -> None:
        """SETITEMS: set items of a dict."""
        items = self.pop_mark()
        _fill(self.stack[-1], zip(items[::2], items[1::2], strict=True))

    def load_refused(self) -> None:
        """An opcode that allocates a claimed length, or is of protocol 0."""
        raise ValueError("its pickle has an opcode that no checkpoint needs")

    dispatch: ClassVar[dict[int, Any]] = {
        **_DISPATCH,
        pickle.BUILD[0]: load_build,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.EMPTY_SET[0]: _DISPATCH[pickle.EMPTY_LIST[0]],
        pickle.ADDITEMS[0]: _DISPATCH[pickle.APPENDS[0]],
        pickle.FROZENSET[0]: _DISPATCH[pickle.LIST[0]],
        **dict.fromkeys((pickle.DICT[0], pickle.PUT[0], pickle.BYTEARRAY8[0]), load_refused),
    }


def read_pickled_vocabulary(path: Path) -> tuple[str, ...]:
    """Read the vocabulary of codertimo/BERT-pytorch, a pickled `bert_pytorch.dataset.vocab` object.

    Args:
        path: A file of its `bert-vocab`, such as `data/vocab.small` in its README.

    Returns:
        The tokens by id: `<pad>`, `<unk>`, `<eos>`, `<sos>`, `<mask>`, and the words.

    Raises:
        InputError: The file is no such pickle, or would run code.
    """
    with reading("vocabulary", path):
        vocabulary = InertUnpickler(io.BytesIO(read_at(path, 0, _MAX_VOCABULARY_BYTES))).load()
        tokens = vocabulary.state.get("itos") if isinstance(vocabulary, Instance) else None
        if not isinstance(tokens, list) or {*map(type, tokens)} != {str}:
            raise ValueError("it has no list of tokens `itos` by bert-vocab")
    return tuple(tokens)
