"""Pickles, read without running them.

A pickle is a program: `pickle.Unpickler` imports and calls the names in it. Here a name is only
compared with the tables of this file, and all values are inert. A class becomes its name, an object
its state, a tensor a view of stored numbers. `torch.load(weights_only=True)` refuses the pickled
modules of codertimo's code and of many training loops. Without `weights_only` it runs them, and
trusts the sizes that they claim.

Python's own `pickle._Unpickler` decodes the opcodes. Opcodes that allocate a claimed length, or
look up a name elsewhere, are removed. Keys of dictionaries are numbers and texts, since hashing a
deep tuple would not end.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ..tensors import DTYPES, Unread
from .mapped import Unsafe, read_at, reading

#: Steps of one pickle: BERT's largest state dict takes 20 000, codertimo's vocabulary eight per
#: word.
_MAX_STEPS = 5_000_000
_MAX_VOCABULARY_BYTES = 256 << 20
_MAX_NAME = 200
_MAX_AXES = 32
_INT64 = 1 << 63

#: A module's class. Functions do not start with a capital.
_MODULE_CLASS = re.compile(r"(torch\.nn|bert_pytorch)(\.\w+)*\.[A-Z]\w*", re.ASCII)
#: Functions that make a quantized, sparse or nested tensor, which is not read.
_OTHER_TENSOR = re.compile(r"torch\._utils\._rebuild_[a-z_0-9]+", re.ASCII)
#: Functions that a pickle may call for a value, by their case in `_call`.
_FUNCTIONS = {
    "collections.OrderedDict": "dict",
    "collections.Counter": "dict",
    "builtins.set": "list",
    "builtins.frozenset": "list",
    "torch.Size": "tuple",
    "torch._utils._rebuild_tensor": "tensor",
    "torch._utils._rebuild_tensor_v2": "tensor v2",
    "torch._utils._rebuild_tensor_v3": "tensor v3",
    "torch._utils._rebuild_parameter": "parameter",
    "torch._utils._rebuild_parameter_with_state": "parameter",
    "torch.nn.parameter.Parameter": "parameter",
    "torch._tensor._rebuild_from_type_v2": "subclass",
}
#: Objects in checkpoints that hold no weights: accepted by name, and skipped.
_OPAQUE = frozenset(
    (
        *("_codecs.encode", "builtins.bytearray", "builtins.complex", "builtins.bytes"),
        *("torch.device", "torch.serialization._get_layout", "torch.Tensor"),
        *("numpy.dtype", "numpy.ndarray"),
        *("numpy.core.multiarray.scalar", "numpy.core.multiarray._reconstruct"),
        *("numpy._core.multiarray.scalar", "numpy._core.multiarray._reconstruct"),
        "torch.nn.backends.thnn._get_thnn_function_backend",
    )
)
_WORDS = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
#: Dtypes of storages; of quantized ones the dtype of their integers.
_STORAGES = dict(zip(_WORDS, DTYPES.values(), strict=True)) | {
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
    "QInt8": torch.int8,
    "QUInt8": torch.uint8,
    "QInt32": torch.int32,
}
_STORAGES = {f"torch.{word}Storage": dtype for word, dtype in _STORAGES.items()}
_STORAGES["torch.storage.UntypedStorage"] = torch.uint8
#: Constants of torch.
_PLAIN = (torch.dtype, torch.qscheme)
_KNOWN = _FUNCTIONS.keys() | _STORAGES.keys() | _OPAQUE


StorageOf = Callable[[str, torch.dtype, int], Tensor]


class Global(str):
    """A name that a pickle uses, `module.name`."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Instance:
    """An object: the name of its class, and its saved `__dict__`."""

    cls: str
    state: dict[Any, Any]


class _Opcodes(dict[int, Any]):
    """The methods of opcodes, with a count of steps."""

    steps = 0

    def __getitem__(self, opcode: int) -> Any:
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise ValueError(f"its pickle takes more than {_MAX_STEPS} steps")
        if opcode not in self:
            raise ValueError(f"its pickle has the opcode {opcode}, which no checkpoint needs")
        return super().__getitem__(opcode)


class InertUnpickler(pickle._Unpickler):
    """Reads one pickle without running it.

    `load` returns plain values, dicts, lists (also for sets), tuples, `Global`, `Instance`,
    `Tensor` and `Unread`. Containers may contain themselves, or be shared any number of times.

    Args:
        file: Positioned at the pickle's first byte, and behind its last one after `load`.
        storage_of: As in `load_inert`.
    """

    stack: list[Any]
    memo: dict[int, Any]
    pop_mark: Callable[[], list[Any]]
    readline: Callable[[], bytes]

    def __init__(self, file: IO[bytes], storage_of: StorageOf) -> None:
        super().__init__(file, encoding="latin1")
        vars(self)["dispatch"] = _Opcodes(_DISPATCH)
        self.storages: dict[str, Tensor] = {}
        """The storages in the pickle, by key."""
        self._storage_of = storage_of

    def find_class(self, module: str, name: str) -> Global:
        """The name itself, if it is allowed."""
        module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)
        full = f"{module}.{name}"
        # A name with a dot accesses attributes of an object.
        known = len(full) <= _MAX_NAME and "." not in name
        if not known or not (
            full in _KNOWN
            or _MODULE_CLASS.fullmatch(full)
            or _OTHER_TENSOR.fullmatch(full)
            or (module == "torch" and isinstance(vars(torch).get(name), _PLAIN))
        ):
            shown = f"{module[:80]}.{name[:80]}".encode("unicode_escape").decode()[:160]
            raise Unsafe(
                f"its pickle names {shown}, which could run code; none of it was run. "
                "Do not load it elsewhere; ask its author for a plain state dict."
            )
        return Global(full)

    def persistent_load(self, pid: Any) -> Global | Tensor:
        """A storage, or the class of a module (torch 1.0)."""
        match pid:
            case ("module", Global() as made, *_):  # the class, its file and its source
                return made
            case ("storage", Global() as name, str() as key, _, int() as size, *view) if (
                name in _STORAGES and 0 <= size < _INT64
            ):
                dtype = _STORAGES[name]
                if key not in self.storages:
                    self.storages[key] = self._storage_of(key, dtype, size)
                whole = self.storages[key]
                if (whole.dtype, len(whole)) != (dtype, size):
                    raise ValueError(f"storage {key[:80]!r} has two sizes or types")
                match view:
                    case [] | [None]:
                        return whole
                    case [(_, int() as start, int() as part)] if 0 <= start <= size - part <= size:
                        return whole[start : start + part]
        raise ValueError("its pickle has a persistent id of no storage")

    # --- opcodes that differ from Python's ---

    def load_call(self) -> None:
        """REDUCE and NEWOBJ: call a name."""
        arguments, made = self.stack.pop(), self.stack.pop()
        self.stack.append(_call(made, arguments))

    def load_state(self) -> None:
        """BUILD: store an object's `__dict__`. Attributes of other values are not needed."""
        state = self.stack.pop()
        if isinstance(state, tuple) and len(state) == 2:  # __dict__, and __slots__
            state = state[0]
        if isinstance(self.stack[-1], Instance) and isinstance(state, dict):
            self.stack[-1].state = state

    def load_table(self) -> None:
        """EMPTY_DICT: a dict."""
        self.stack.append(_Table())

    def load_filled_table(self) -> None:
        """DICT: a dict of the items on the stack."""
        items = self.pop_mark()
        self.load_table()
        self.set_items(items)

    def load_item(self) -> None:
        """SETITEM: set one item of a dict."""
        self.set_items([self.stack.pop(-2), self.stack.pop()])

    def load_items(self) -> None:
        """SETITEMS: set items of a dict."""
        self.set_items(self.pop_mark())

    def set_items(self, items: list[Any]) -> None:
        """Set alternating keys and values of the dict on the stack; of no other object."""
        if not isinstance(self.stack[-1], _Table):
            raise ValueError(f"its pickle sets items of a {type(self.stack[-1]).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.stack[-1][key] = value

    def load_named(self) -> None:
        """PUT: store a value under a number in text."""
        index = int(self.readline())
        if not is_key(index):
            raise ValueError("its pickle stores a value under no number")
        self.memo[index] = self.stack[-1]


_BASE = pickle._Unpickler
_DISPATCH = {
    **_BASE.dispatch,
    pickle.REDUCE[0]: InertUnpickler.load_call,
    pickle.NEWOBJ[0]: InertUnpickler.load_call,
    pickle.BUILD[0]: InertUnpickler.load_state,
    pickle.EMPTY_DICT[0]: InertUnpickler.load_table,
    pickle.DICT[0]: InertUnpickler.load_filled_table,
    pickle.SETITEM[0]: InertUnpickler.load_item,
    pickle.SETITEMS[0]: InertUnpickler.load_items,
    pickle.PUT[0]: InertUnpickler.load_named,
    pickle.EMPTY_SET[0]: _BASE.dispatch[pickle.EMPTY_LIST[0]],
    pickle.ADDITEMS[0]: _BASE.dispatch[pickle.APPENDS[0]],
    pickle.FROZENSET[0]: _BASE.dispatch[pickle.LIST[0]],
}
for _opcode in (
    *(pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID),
    *(pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX),
    *(pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
):
    del _DISPATCH[_opcode[0]]


def no_numbers(key: str, dtype: torch.dtype, size: int) -> Tensor:
    """A storage without its numbers."""
    return torch.empty(size, dtype=dtype, device="meta")


def load_inert(
    file: IO[bytes], storage_of: StorageOf = no_numbers
) -> tuple[Any, dict[str, Tensor]]:
    """Read one pickle. The caller names the file in errors, by `mapped.reading`.

    Args:
        file: Positioned at the pickle's first byte, and behind its last one afterwards.
        storage_of: Returns the numbers of a storage, flat, by its key, dtype and size.

    Returns:
        The result of `InertUnpickler.load`, and the storages in the pickle, by key.

    Raises:
        Unsafe: The pickle has a name other than a tensor's part or a known module's class.
        Exception: The pickle is damaged or takes too many steps. The type depends on the byte.
    """
    unpickler = InertUnpickler(file, storage_of)
    return unpickler.load(), unpickler.storages


def is_key(key: object) -> bool:
    """Whether a dict may have a key: it hashes fast, and few others share its hash."""
    if isinstance(key, int):
        return -_INT64 <= key < _INT64
    return key is None or isinstance(key, str | bytes | float)


class _Table(dict[Any, Any]):
    """A dict of a pickle: no duplicate keys, and only keys that hash fast."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if not is_key(key) or key in self:
            shown = repr(key)[:80] if is_key(key) else type(key).__name__
            raise ValueError(f"it has the key {shown} twice, or of an unusual type")
        super().__setitem__(key, value)


def _call(made: Any, arguments: Any) -> Any:
    """The inert value of a call."""
    name = made if isinstance(made, Global) else f"a {type(made).__name__}"
    match _FUNCTIONS.get(name), arguments:
        case "dict", ():
            return _Table()
        case "dict", (dict() as items,):
            return items
        case "dict", (list() as pairs,):  # Python 2
            table = _Table()
            for key, value in pairs:
                table[key] = value
            pairs.clear()  # one long list for many dicts would take unbounded time
            return table
        case "list", ():
            return []
        case "list", (list() | tuple() as items,):
            return items
        case "tuple", (list() | tuple() as items,) if len(items) <= _MAX_AXES:
            return tuple(items)
        case "parameter", (Tensor() | Unread() as data, *_):
            return data
        case "subclass", (Global() as inner, Global(), tuple() as rest, _) if inner != name:
            return _call(inner, rest)
        case "tensor", (Tensor() as storage, offset, shape, strides):
            return _view(storage, offset, shape, strides)
        # After the strides: requires_grad, hooks, and since torch 1.13 {"conj": …, "neg": …}.
        case "tensor v2", (Tensor() as storage, offset, shape, strides, _, _, *changes) if not any(
            changes
        ):
            return _view(storage, offset, shape, strides)
        # Of a dtype without a storage class.
        case "tensor v3", (Tensor(), _, tuple() as shape, _, _, _, Global() as dtype, *_):
            return Unread(shape, dtype.removeprefix("torch."))
        case ("tensor v2", _) if len(arguments) == 7:
            return Unread((), "lazily conjugated or negated")
        case None, tuple() if name in _OPAQUE or _MODULE_CLASS.fullmatch(name):
            return Instance(name, {})
        case None, tuple() if _OTHER_TENSOR.fullmatch(name):
            return Unread((), name.rpartition("_rebuild_")[2])
    raise ValueError(f"its pickle calls {name} with wrong arguments")


def _view(storage: Tensor, offset: Any, shape: Any, strides: Any) -> Tensor:
    """A tensor of a storage. Its shape must not exceed the storage, even with strides of 0."""
    if storage.dim() != 1 or not storage.is_contiguous():
        raise ValueError("a tensor has no storage")
    if len(shape) != len(strides) or len(shape) > _MAX_AXES:
        raise ValueError(f"a tensor has {len(shape)} sizes, {len(strides)} strides")
    numbers = (offset, *shape, *strides)
    if not all(type(number) is int and 0 <= number < _INT64 for number in numbers):
        raise ValueError("a tensor has a size or stride that is no size")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if math.prod(shape) > len(storage) or (0 not in shape and last >= len(storage)):
        raise ValueError(f"a tensor of shape {tuple(shape)} does not fit its storage")
    if 0 in shape:
        return torch.empty(shape, dtype=storage.dtype)
    return storage.as_strided(shape, strides, storage.storage_offset() + offset)


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
        content = read_at(path, 0, _MAX_VOCABULARY_BYTES)
        vocabulary, _ = load_inert(io.BytesIO(content))
        tokens = vocabulary.state["itos"] if isinstance(vocabulary, Instance) else None
        if not isinstance(tokens, list) or {*map(type, tokens)} != {str}:
            raise ValueError("it has no list of tokens `itos` by bert-vocab")
    return tuple(tokens)
