"""Pickles, read without running any of them.

A pickle is a program: `pickle.Unpickler` imports what it names and calls it. Here a name is looked
up in the tables of this file and never imported, and what a pickle makes is inert: a class is its
name, an object its state, a tensor where its numbers lie. `torch.load(weights_only=True)` refuses
the pickled modules that codertimo's code and many training loops save. Without `weights_only` it
runs them, and believes sizes that they claim.

Python's own `pickle._Unpickler` takes the opcodes apart. Those that allocate what a length claims,
or look something up outside, are left out. Keys of dictionaries are numbers and texts: a deep
tuple would be hashed without end.
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

from hf_bert_impl.errors import InputError

from ..tensors import DTYPES, Unread
from .mapped import read_at

#: Steps of one pickle: BERT's largest state dict takes 20 000, the vocabulary of codertimo's code
#: eight a word.
_MAX_STEPS = 5_000_000
#: Bytes of a pickled vocabulary.
_MAX_VOCABULARY_BYTES = 256 << 20
_MAX_NAME = 200
_MAX_AXES = 32
_INT64 = 1 << 63

#: A module's class: nothing but these names is known of it, and functions start with no capital.
_MODULE_CLASS = re.compile(r"(torch\.nn|bert_pytorch)(\.\w+)*\.[A-Z]\w*", re.ASCII)
#: Functions that make a tensor of a kind that is not read here: quantized, sparse, nested.
_OTHER_TENSOR = re.compile(r"torch\._utils\._rebuild_[a-z_0-9]+", re.ASCII)
#: What a pickle may call for a value, by what `_call` knows it as.
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
#: Objects beside the weights: known by name, and left out.
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
#: Dtypes of storages; the quantized ones as the numbers that they are stored as.
_STORAGES = dict(zip(_WORDS, DTYPES.values(), strict=True)) | {
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
    "QInt8": torch.int8,
    "QUInt8": torch.uint8,
    "QInt32": torch.int32,
}
_STORAGES = {f"torch.{word}Storage": dtype for word, dtype in _STORAGES.items()}
_STORAGES["torch.storage.UntypedStorage"] = torch.uint8
#: Values of torch that stand for themselves.
_PLAIN = (torch.dtype, torch.qscheme)
_KNOWN = _FUNCTIONS.keys() | _STORAGES.keys() | _OPAQUE


StorageOf = Callable[[str, torch.dtype, int], Tensor]


class Global(str):
    """A name that a pickle uses, `module.name`."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Instance:
    """Stands for an object: the name of its class, and the `__dict__` that was saved of it."""

    cls: str
    state: dict[Any, Any]


class _Opcodes(dict[int, Any]):
    """The methods of opcodes; counts how many were asked for."""

    steps = 0

    def __getitem__(self, opcode: int) -> Any:
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise pickle.UnpicklingError(f"it takes more than {_MAX_STEPS} steps")
        if opcode not in self:
            raise pickle.UnpicklingError(f"it has the opcode {opcode}, which no checkpoint needs")
        return super().__getitem__(opcode)


class InertUnpickler(pickle._Unpickler):
    """Reads one pickle, without running any of it.

    `load` gives numbers, strings, bytes, None; dicts, lists (sets are lists) and tuples; `Global`,
    `Instance`, `Tensor`, `Unread`. They may be nested in themselves, and shared without end.

    Args:
        file: Stands at the pickle's first byte, and behind its last one after `load`.
        storage_of: As of `load_inert`.
    """

    stack: list[Any]
    memo: dict[int, Any]
    pop_mark: Callable[[], list[Any]]
    readline: Callable[[], bytes]

    def __init__(self, file: IO[bytes], storage_of: StorageOf) -> None:
        super().__init__(file, encoding="latin1")
        vars(self)["dispatch"] = _Opcodes(_DISPATCH)
        self.storages: dict[str, Tensor] = {}
        """The storages that the pickle names, by key."""
        self._storage_of = storage_of

    def find_class(self, module: str, name: str) -> Global:
        """The name itself, if it is one of those that are known."""
        module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)
        full = f"{module}.{name}"
        # A name with a dot reaches into an object.
        known = len(full) <= _MAX_NAME and "." not in name
        if not known or not (
            full in _KNOWN
            or _MODULE_CLASS.fullmatch(full)
            or _OTHER_TENSOR.fullmatch(full)
            or (module == "torch" and isinstance(vars(torch).get(name), _PLAIN))
        ):
            shown = f"{module[:80]}.{name[:80]}".encode("unicode_escape").decode()[:160]
            raise InputError(
                f"its pickle asks for {shown}, which could run code; none of it was run",
                "only tensors, plain containers, and modules of torch.nn and bert_pytorch",
                "do not load this file with other programs; ask its author for a plain state dict",
            )
        return Global(full)

    def persistent_load(self, pid: Any) -> Global | Tensor:
        """What stands for a storage, or for the class of a module (torch 1.0)."""
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
                    raise pickle.UnpicklingError(f"storage {key[:80]!r} has two sizes or types")
                match view:
                    case [] | [None]:
                        return whole
                    case [(_, int() as start, int() as part)] if 0 <= start <= size - part <= size:
                        return whole[start : start + part]
        raise pickle.UnpicklingError("it has a persistent id that is no storage's")

    # --- opcodes that differ from Python's ---

    def load_call(self) -> None:
        """REDUCE and NEWOBJ: call a name."""
        arguments, made = self.stack.pop(), self.stack.pop()
        self.stack.append(_call(made, arguments))

    def load_state(self) -> None:
        """BUILD: keep an object's `__dict__`. Attributes of other values are not needed."""
        state = self.stack.pop()
        if isinstance(state, tuple) and len(state) == 2:  # __dict__, and __slots__
            state = state[0]
        if isinstance(self.stack[-1], Instance) and isinstance(state, dict):
            self.stack[-1].state = state

    def load_table(self) -> None:
        """EMPTY_DICT: a dict."""
        self.stack.append(_Table())

    def load_filled_table(self) -> None:
        """DICT: a dict of what is on the stack."""
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
        """Set keys and values, one behind another, of the dict on the stack; of nothing else."""
        if not isinstance(self.stack[-1], _Table):
            raise pickle.UnpicklingError(f"it sets items of a {type(self.stack[-1]).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.stack[-1][key] = value

    def load_named(self) -> None:
        """PUT: keep a value under a number in text."""
        index = int(self.readline())
        if not is_key(index):
            raise pickle.UnpicklingError("it keeps a value under no number")
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
    """A storage of which only the size is known."""
    return torch.empty(size, dtype=dtype, device="meta")


def load_inert(
    file: IO[bytes], path: Path, storage_of: StorageOf = no_numbers
) -> tuple[Any, dict[str, Tensor]]:
    """Read one pickle.

    Args:
        file: Stands at the pickle's first byte, and behind its last one afterwards.
        path: The file's name, for errors.
        storage_of: Gives the numbers of a storage, flat, by its key, dtype and size.

    Returns:
        What `InertUnpickler.load` gives, and the storages that it names, by key.

    Raises:
        InputError: The pickle is damaged, takes too many steps, or names something that is neither
            a tensor's part nor a known module's class.
    """
    unpickler = InertUnpickler(file, storage_of)
    try:
        return unpickler.load(), unpickler.storages
    except InputError as error:
        raise InputError(f"{path}: {error.args[0]}", *error.args[1:]) from None
    except Exception as error:  # what it raises on damaged bytes depends on the byte
        said = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{path}: its pickle is damaged: {said:.200}",
            "tensors in plain containers",
            "download it again, or save it again as a plain state dict",
        ) from None


def is_key(key: object) -> bool:
    """Whether a dict may have a key: one that is hashed fast, and whose hash few others share."""
    if isinstance(key, int):
        return -_INT64 <= key < _INT64
    return key is None or isinstance(key, str | bytes | float)


class _Table(dict[Any, Any]):
    """A dict that a pickle fills: each key once, and none that takes long to hash."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if not is_key(key) or key in self:
            shown = repr(key)[:80] if is_key(key) else type(key).__name__
            raise pickle.UnpicklingError(f"it has the key {shown} twice, or of a strange type")
        super().__setitem__(key, value)


def _call(made: Any, arguments: Any) -> Any:
    """What a pickle gets for calling a name: a value or a record of this file."""
    name = made if isinstance(made, Global) else f"a {type(made).__name__}"
    match _FUNCTIONS.get(name), arguments:
        case "dict", ():
            return _Table()
        case "dict", (dict() as items,):
            return items
        case "dict", (list() as pairs,):  # Python 2
            made_of_pairs = _Table()
            for key, value in pairs:
                made_of_pairs[key] = value
            pairs.clear()  # one long list, used for many dicts, would take for ever
            return made_of_pairs
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
        # Behind the strides: requires_grad, hooks, and since torch 1.13 {"conj": …, "neg": …}.
        case "tensor v2", (Tensor() as storage, offset, shape, strides, _, _, *changes) if not any(
            changes
        ):
            return _view(storage, offset, shape, strides)
        # Of a dtype that has no storage class.
        case "tensor v3", (Tensor(), _, tuple() as shape, _, _, _, Global() as dtype, *_):
            return Unread(shape, dtype.removeprefix("torch."))
        case ("tensor v2", _) if len(arguments) == 7:
            return Unread((), "lazily conjugated or negated")
        case None, tuple() if name in _OPAQUE or _MODULE_CLASS.fullmatch(name):
            return Instance(name, {})
        case None, tuple() if _OTHER_TENSOR.fullmatch(name):
            return Unread((), name.rpartition("_rebuild_")[2])
    raise pickle.UnpicklingError(f"it calls {name} with arguments that it does not take")


def _view(storage: Tensor, offset: Any, shape: Any, strides: Any) -> Tensor:
    """A tensor of a storage; a shape may not claim more than is stored, as strides of 0 would."""
    if storage.dim() != 1 or not storage.is_contiguous():
        raise pickle.UnpicklingError("a tensor is made of what is no storage")
    if len(shape) != len(strides) or len(shape) > _MAX_AXES:
        raise pickle.UnpicklingError(f"a tensor has {len(shape)} sizes, {len(strides)} strides")
    numbers = (offset, *shape, *strides)
    if not all(type(number) is int and 0 <= number < _INT64 for number in numbers):
        raise pickle.UnpicklingError("a tensor has a size that is no size")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if math.prod(shape) > len(storage) or (0 not in shape and last >= len(storage)):
        raise pickle.UnpicklingError(f"a tensor of shape {tuple(shape)} does not fit its storage")
    if 0 in shape:
        return torch.empty(shape, dtype=storage.dtype)
    return storage.as_strided(shape, strides, storage.storage_offset() + offset)


def read_pickled_vocabulary(path: Path) -> tuple[str, ...]:
    """Read the vocabulary of codertimo/BERT-pytorch, a pickled `bert_pytorch.dataset.vocab` object.

    Args:
        path: What its `bert-vocab` wrote, in the README `data/vocab.small`.

    Returns:
        The tokens by id: `<pad>`, `<unk>`, `<eos>`, `<sos>`, `<mask>`, and the words.

    Raises:
        InputError: The file is no such pickle, or would run code.
    """
    if not path.is_file():
        raise InputError(f"{path} cannot be read", "a pickled vocabulary", "check the path")
    content = read_at(path, 0, _MAX_VOCABULARY_BYTES)
    vocabulary, _ = load_inert(io.BytesIO(content), path)
    tokens = vocabulary.state.get("itos") if isinstance(vocabulary, Instance) else None
    if not isinstance(tokens, list) or not tokens or not all(isinstance(t, str) for t in tokens):
        raise InputError(
            f"{path} holds no list of tokens `itos`",
            "a vocabulary pickled by bert_pytorch",
            "write it by bert-vocab, or give the tokens as vocab.txt",
        )
    return tuple(tokens)
