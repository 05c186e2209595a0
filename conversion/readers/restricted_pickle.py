"""A pickle machine that can run nothing: it knows no import and calls no callable of a pickle.

A pickle is a program. `pickle.Unpickler` imports what it names and calls it, and even one that
restricts the names allocates what a length claims and hashes what it is given. This machine reads
the opcodes (by `pickletools`, which takes them apart and does not execute them) and keeps a stack
of plain values: numbers, strings, lists, dicts, and in place of objects the records of
`pickled_objects`. A name is a string to it, looked up in the tables there; any other ends the
reading.

`torch.load(weights_only=True)` does less: it refuses the pickled modules that codertimo's code and
many training loops save, does not map the container before torch 1.6 into memory, checks no crc32,
and a small pickle can make it build a tensor of any size by a stride of 0.

PyTorch's own part of the format, the rebuild functions and the persistent ids of storages, is that
of torch/_utils.py and torch/serialization.py.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol, cast

from hf_bert_impl.errors import InputError

from .mapped import read_small
from .pickled_objects import (
    Global,
    Instance,
    MalformedPickleError,
    Storage,
    TensorRecord,
    UnsupportedTensor,
    construct,
    is_admitted,
    is_key,
    storage,
)

#: Steps of one pickle, about ten seconds: BERT's largest state dict takes 20 000, the vocabulary
#: of codertimo's code eight a word.
MAX_STEPS = 5_000_000
#: Bytes of a pickled vocabulary.
MAX_VOCABULARY_BYTES = 256 << 20

_LITERALS = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BYTEARRAY8"),
    )
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
#: Protocols up to 2 have these names, whatever Python wrote them.
_PYTHON_2_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}


class Source(Protocol):
    """Where a pickle is read from. A `read` past the end gives what there is."""

    def read(self, size: int, /) -> bytes: ...

    def readline(self) -> bytes: ...

    def tell(self) -> int: ...


class RestrictedUnpickler:
    """Reads one pickle, without running any of it.

    Args:
        source: Stands at the pickle's first byte, and behind its last one after `load`.
        path: The file, for errors.
    """

    def __init__(self, source: Source, path: Path) -> None:
        self._source = source
        self._path = path
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}
        """The storages that the pickle names, whole, by key."""

    def load(self) -> Any:
        """Read the pickle.

        Returns:
            Numbers, strings, bytes, None; dicts and lists (sets are lists), tuples; `Global`,
            `Instance`, `Storage`, `TensorRecord`, `UnsupportedTensor`. They may be nested in
            themselves, and shared without end.

        Raises:
            InputError: The pickle is damaged, takes too many steps, or names something that
                is neither a tensor's part nor a known module's class.
        """
        try:
            return self._run()
        except MalformedPickleError as error:
            raise InputError(
                f"{self._path}: its pickle {error}",
                "tensors in plain containers",
                "download it again, or save it again as a plain state dict",
            ) from None

    def _run(self) -> Any:
        for step, (opcode, argument) in enumerate(self._opcodes()):
            if step == MAX_STEPS:
                raise MalformedPickleError(f"takes more than {MAX_STEPS} steps")
            if opcode in _LITERALS:
                self._push(argument)
            elif opcode in _CONSTANTS:
                self._push(_CONSTANTS[opcode])
            else:
                self._do(opcode, argument)
        return self._pop()  # the last opcode was STOP

    def _opcodes(self) -> Iterator[tuple[str, Any]]:
        try:
            for opcode, argument, _ in pickletools.genops(cast(IO[bytes], self._source)):
                yield opcode.name, argument
        # Only what genops raises arrives here. A Warning does where warnings are made errors.
        except (ValueError, Warning) as error:
            raise MalformedPickleError(f"is damaged ({str(error)[:120]!r})") from None

    def _forbidden(self, name: str) -> InputError:
        name = name.encode("unicode_escape").decode()[:160]
        return InputError(
            f"{self._path}: its pickle asks for {name}, which could run code; none of it was run",
            "only tensors, plain containers, and modules of torch.nn and bert_pytorch",
            "do not load this file with other programs; ask its author for a plain state dict",
        )

    def _do(self, opcode: str, argument: Any) -> None:
        """Do what an opcode says. Those that a checkpoint has most of stand first."""
        match opcode:
            # values, kept under numbers
            case "BINGET" | "LONG_BINGET" | "GET":
                if argument not in self._memo:
                    raise MalformedPickleError("recalls a value that it never kept")
                self._push(self._memo[argument])
            case "BINPUT" | "LONG_BINPUT" | "PUT":
                self._put(argument)
            case "MEMOIZE":
                self._put(len(self._memo))
            # containers
            case "MARK":
                self._marks.append(self._stack)
                self._stack = []
            case "TUPLE":
                self._push(tuple(self._pop_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = [self._pop() for _ in range(int(opcode[-1]))]
                self._push(tuple(reversed(items)))
            case "EMPTY_DICT":
                self._push({})
            case "EMPTY_LIST" | "EMPTY_SET":
                self._push([])
            case "DICT":
                items = self._pop_mark()
                self._push({})
                self._set(items)
            case "LIST" | "FROZENSET":
                self._push(self._pop_mark())
            case "SETITEM":
                value, key = self._pop(), self._pop()
                self._set([key, value])
            case "SETITEMS":
                self._set(self._pop_mark())
            case "APPEND":
                self._extend([self._pop()])
            case "APPENDS" | "ADDITEMS":
                self._extend(self._pop_mark())
            # names and what is made of them
            case "BINPERSID":
                self._push(self._persistent(self._pop()))
            case "REDUCE" | "NEWOBJ":
                arguments, made = self._pop(), self._pop()
                self._push(construct(made, arguments))
            case "NEWOBJ_EX":
                _, arguments, made = self._pop(), self._pop(), self._pop()
                self._push(construct(made, arguments))
            case "GLOBAL":
                self._push(self._admit(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                name, module = self._pop(), self._pop()
                if not isinstance(name, str) or not isinstance(module, str):
                    raise MalformedPickleError("names something by what is no string")
                self._push(self._admit(module, name))
            case "INST":
                made = self._admit(*argument.split(" ", 1))
                self._push(construct(made, tuple(self._pop_mark())))
            case "OBJ":
                items = self._pop_mark()
                if not items:
                    raise MalformedPickleError("makes an object of no class")
                self._push(construct(items[0], tuple(items[1:])))
            case "BUILD":
                self._build(self._pop())
            case "EXT1" | "EXT2" | "EXT4":
                raise self._forbidden(f"extension code {argument}")
            # the rest
            case "POP" if self._stack:
                self._pop()
            case "POP" | "POP_MARK":
                self._pop_mark()
            case "DUP":
                self._push(self._top())
            case "PROTO" | "FRAME" | "STOP":
                pass
            case _:
                raise MalformedPickleError(f"has the opcode {opcode}, which no checkpoint needs")

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _top(self) -> Any:
        if not self._stack:
            raise MalformedPickleError("takes from an empty stack")
        return self._stack[-1]

    def _pop(self) -> Any:
        self._top()
        return self._stack.pop()

    def _pop_mark(self) -> list[Any]:
        if not self._marks:
            raise MalformedPickleError("goes back to a mark that is not there")
        items, self._stack = self._stack, self._marks.pop()
        return items

    def _put(self, index: int) -> None:
        if not is_key(index):
            raise MalformedPickleError("keeps a value under no number")
        self._memo[index] = self._top()

    def _extend(self, items: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, list):
            raise MalformedPickleError(f"appends to a {type(target).__name__}")
        target.extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(items) % 2:
            raise MalformedPickleError(f"sets {len(items)} items of a {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not is_key(key):
                raise MalformedPickleError(f"has a dictionary key of type {type(key).__name__}")
            target[key] = value

    def _admit(self, module: str, name: str) -> Global:
        module = _PYTHON_2_MODULES.get(module, module)
        if not is_admitted(module, name):
            raise self._forbidden(f"{module[:80]}.{name[:80]}")
        return Global(f"{module}.{name}")

    def _build(self, state: Any) -> None:
        target = self._top()
        if isinstance(target, Instance):
            if isinstance(state, tuple) and len(state) == 2:  # __dict__, and __slots__
                state = state[0]
            if isinstance(state, dict):
                target.state = state
        elif not isinstance(target, dict | list | TensorRecord | UnsupportedTensor):
            # The attributes of an OrderedDict or a Parameter hold nothing that is needed.
            raise MalformedPickleError(f"sets the state of a {type(target).__name__}")

    def _persistent(self, identity: Any) -> Global | Storage:
        match identity:
            case ("module", Global() as made, *_):  # the class, its file and its source: torch 1.0
                return made
            case ("storage", Global() as kind, str() as key, _, int() as size):
                return self._storage(kind, key, size)
            case ("storage", Global() as kind, str() as key, _, int() as size, view):
                whole = self._storage(kind, key, size)
                return whole if view is None else whole.part(view)
        raise MalformedPickleError("has a persistent id that is no storage's")

    def _storage(self, kind: Global, key: str, size: int) -> Storage:
        whole = storage(kind, key, size)
        if self.storages.setdefault(key, whole) != whole:
            raise MalformedPickleError(f"gives storage {key[:80]!r} two sizes or types")
        return whole


def read_pickled_vocabulary(path: Path) -> tuple[str, ...]:
    """Read the vocabulary of codertimo/BERT-pytorch, a pickled `bert_pytorch.dataset.vocab` object.

    Args:
        path: What its `bert-vocab` wrote, in the README `data/vocab.small`.

    Returns:
        The tokens by id: `<pad>`, `<unk>`, `<eos>`, `<sos>`, `<mask>`, and the words.

    Raises:
        InputError: The file is no such pickle, or would run code.
    """
    content = read_small(path, MAX_VOCABULARY_BYTES, "a pickled vocabulary")
    vocabulary = RestrictedUnpickler(io.BytesIO(content), path).load()
    tokens = vocabulary.state.get("itos") if isinstance(vocabulary, Instance) else None
    if not isinstance(tokens, list) or not tokens or not all(isinstance(t, str) for t in tokens):
        raise InputError(
            f"{path} holds no list of tokens `itos`",
            "a vocabulary pickled by bert_pytorch",
            "write it by bert-vocab, or give the tokens as vocab.txt",
        )
    return tuple(tokens)
