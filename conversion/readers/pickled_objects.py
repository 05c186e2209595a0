"""What stands for the objects of a pickle, and the tables of the names that a pickle may use.

All of it is inert: a class is its name, an object is its state, a tensor is where its numbers lie.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch

#: A module's class: nothing but these names is known of it, and functions start with no capital.
_MODULE_CLASS = re.compile(r"(torch\.nn|bert_pytorch)(\.\w+)*\.[A-Z]\w*", re.ASCII)
_MAX_NAME = 200
_MAX_DIMENSIONS = 32
_INT64 = 1 << 63


class MalformedPickleError(Exception):
    """What is wrong with a pickle, in words that follow "its pickle"."""


@dataclass(frozen=True, slots=True)
class Global:
    """A name that a pickle uses, `module.name`; it is never imported."""

    name: str


@dataclass(slots=True, eq=False)
class Instance:
    """Stands for an object: the name of its class, and the `__dict__` that was saved of it."""

    cls: str
    state: dict[Any, Any]


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of numbers in the file."""

    key: str
    """The name of the record that holds it."""
    dtype: str
    """A dtype's name in torch."""
    start: int
    """Elements of the record before it; 0 but for the views of old containers."""
    size: int
    """Elements."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return _itemsize(self.dtype)

    def part(self, view: Any) -> Storage:
        """A view that old containers save as (key, first element, elements)."""
        match view:
            case (_, int() as start, int() as size) if 0 <= start <= start + size <= self.size:
                return Storage(self.key, self.dtype, start, size)
        raise MalformedPickleError(f"has a view that does not lie in storage {self.key[:80]!r}")


@dataclass(frozen=True, slots=True, eq=False)
class TensorRecord:
    """A tensor that was not read: the part of a storage that it takes, checked to lie in it."""

    storage: Storage
    dtype: str
    """A dtype's name in torch; the storage's, unless that is one of bytes."""
    offset: int
    """Elements of the storage before it."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Elements from one index to the next, a dimension."""

    @property
    def span(self) -> int:
        """Elements from its first to its last one, those between that it skips included."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class UnsupportedTensor:
    """A tensor of a kind that this package does not read."""

    kind: str


def _itemsize(dtype: str) -> int:
    return getattr(torch, dtype).itemsize


def _is_dtype(name: str) -> bool:
    return isinstance(vars(torch).get(name), torch.dtype)


# --- the tables ----------------------------------------------------------------------------------

#: What a pickle may call for a value, by what `_call` knows it as.
_FUNCTIONS = {
    "collections.OrderedDict": "dict",
    "collections.Counter": "dict",
    "builtins.set": "set",
    "builtins.frozenset": "set",
    "torch.Size": "size",
    "torch._utils._rebuild_tensor": "tensor",
    "torch._utils._rebuild_tensor_v2": "tensor v2",
    "torch._utils._rebuild_tensor_v3": "tensor v3",
    "torch._utils._rebuild_parameter": "parameter",
    "torch._utils._rebuild_parameter_with_state": "parameter",
    "torch.nn.parameter.Parameter": "parameter",
    "torch._tensor._rebuild_from_type": "subclass",
    "torch._tensor._rebuild_from_type_v2": "subclass",
}

_STORAGES = {
    "torch.DoubleStorage": "float64",
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.LongStorage": "int64",
    "torch.IntStorage": "int32",
    "torch.ShortStorage": "int16",
    "torch.CharStorage": "int8",
    "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool",
    "torch.ComplexFloatStorage": "complex64",
    "torch.ComplexDoubleStorage": "complex128",
    "torch.QInt8Storage": "qint8",
    "torch.QUInt8Storage": "quint8",
    "torch.QInt32Storage": "qint32",
    "torch.storage.UntypedStorage": "uint8",
}

_UNSUPPORTED = {
    "torch._utils._rebuild_qtensor": "quantized",
    "torch._utils._rebuild_sparse_tensor": "sparse",
    "torch._utils._rebuild_sparse_csr_tensor": "sparse",
    "torch._utils._rebuild_nested_tensor": "nested",
    "torch._utils._rebuild_meta_tensor_no_storage": "meta (it has no numbers)",
    "torch._utils._rebuild_wrapper_subclass": "wrapped",
    "torch._utils._rebuild_device_tensor_from_numpy": "another device's",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "another device's",
}

#: Names that stand for themselves, beside the dtypes.
_PLAIN = frozenset(
    (
        "torch.Tensor",
        *("torch.per_tensor_affine", "torch.per_tensor_symmetric"),
        *("torch.per_channel_affine", "torch.per_channel_symmetric"),
        "torch.per_channel_affine_float_qparams",
    )
)

#: Objects beside the weights: known by name, and left out.
_OPAQUE = frozenset(
    (
        *("_codecs.encode", "builtins.bytearray", "builtins.complex", "builtins.bytes"),
        *("torch.device", "torch.serialization._get_layout"),
        *("numpy.dtype", "numpy.ndarray"),
        *("numpy.core.multiarray.scalar", "numpy.core.multiarray._reconstruct"),
        *("numpy._core.multiarray.scalar", "numpy._core.multiarray._reconstruct"),
        "torch.nn.backends.thnn._get_thnn_function_backend",
    )
)


def is_admitted(module: str, name: str) -> bool:
    """Whether a pickle may use a name. Names with a dot, which reach into an object, never are."""
    if len(module) > _MAX_NAME or len(name) > _MAX_NAME or "." in name:
        return False
    full = f"{module}.{name}"
    return (
        full in _FUNCTIONS
        or full in _STORAGES
        or full in _UNSUPPORTED
        or full in _OPAQUE
        or full in _PLAIN
        or (module == "torch" and _is_dtype(name))
        or _MODULE_CLASS.fullmatch(full) is not None
    )


def is_key(key: object) -> bool:
    """Whether a dict may have a key: one that is hashed fast, and whose hash few others share."""
    if isinstance(key, int):
        return -_INT64 <= key < _INT64
    return key is None or isinstance(key, str | bytes | float)


def construct(made: Any, arguments: Any) -> Any:
    """What a pickle gets for calling a name.

    Args:
        made: What is called, a `Global`.
        arguments: Its arguments, a tuple.

    Returns:
        A value or a record of this file; for a class the empty `Instance`.

    Raises:
        MalformedPickleError: It is nothing to be called, or the arguments are not its own.
    """
    if not isinstance(made, Global):
        raise MalformedPickleError(f"calls a {type(made).__name__}")
    if not isinstance(arguments, tuple):
        raise MalformedPickleError(f"calls {made.name} with a {type(arguments).__name__}")
    if made.name in _FUNCTIONS:
        made_value = _call(_FUNCTIONS[made.name], arguments)
        if made_value is None:
            raise MalformedPickleError(f"calls {made.name} with arguments that it does not take")
        return made_value
    if made.name in _UNSUPPORTED:
        return UnsupportedTensor(_UNSUPPORTED[made.name])
    if made.name in _OPAQUE or _MODULE_CLASS.fullmatch(made.name):
        return Instance(made.name, {})
    raise MalformedPickleError(f"calls {made.name}, which is no function")


def storage(kind: Global, key: str, size: int) -> Storage:
    """The storage of a persistent id.

    Args:
        kind: Its class.
        key: Its record.
        size: Its elements.

    Raises:
        MalformedPickleError: The class is no storage, or the size no size.
    """
    if kind.name not in _STORAGES or not 0 <= size < _INT64:
        raise MalformedPickleError(f"has storage {key[:80]!r} of an unknown type or size")
    return Storage(key, _STORAGES[kind.name], 0, size)


def _call(function: str, arguments: tuple[Any, ...]) -> Any:
    """What one of `_FUNCTIONS` gives for its arguments; None for arguments that are not its own."""
    match function, arguments:
        case ("dict", ()):
            return {}
        case ("dict", (dict() as items,)):
            return items
        case ("dict", (list() as pairs,)):
            return _dict_of(pairs)
        case ("set", ()):
            return []
        case ("set", (list() | tuple() as items,)):
            return items
        case ("size", (list() | tuple() as items,)) if len(items) <= _MAX_DIMENSIONS:
            return tuple(items)
        case ("parameter", (TensorRecord() | UnsupportedTensor() as data, *_)):
            return data
        case ("subclass", (Global() as made, Global(), tuple() as inner, _)):
            return None if "_rebuild_from" in made.name else construct(made, inner)
        case ("tensor", (Storage() as held, offset, shape, strides)):
            return _record(held, held.dtype, offset, shape, strides)
        # Behind the strides: requires_grad, hooks, and since torch 1.13 {"conj": …, "neg": …}.
        case ("tensor v2", (_, _, _, _, _, _, changes)) if changes:
            return UnsupportedTensor("lazily conjugated or negated")
        case ("tensor v2", _) if 6 <= len(arguments) <= 7:
            return _call("tensor", arguments[:4])
        # The same for dtypes that have no storage class; the storage is one of bytes.
        case ("tensor v3", (Storage() as held, offset, shape, strides, _, _, Global(name), *_)):
            dtype = name.removeprefix("torch.")
            return _record(held, dtype, offset, shape, strides) if _is_dtype(dtype) else None
    return None


def _dict_of(pairs: list[Any]) -> dict[Any, Any] | None:
    """The dict of a list of pairs, as Python 2 wrote it.

    The list is emptied: a pickle may use one long list for many dicts, which would take for ever.
    """
    items = {}
    while pairs:
        match pairs.pop():
            case (key, value) if is_key(key):
                items[key] = value
            case _:
                return None
    return dict(reversed(items.items()))


def _record(held: Storage, dtype: str, offset: Any, shape: Any, strides: Any) -> TensorRecord:
    if not (isinstance(shape, tuple | list) and isinstance(strides, tuple | list)):
        raise MalformedPickleError("has a tensor whose shape or strides are no tuple")
    if len(shape) != len(strides) or len(shape) > _MAX_DIMENSIONS:
        raise MalformedPickleError(f"has a tensor of {len(shape)} sizes and {len(strides)} strides")
    for number in (offset, *shape, *strides):
        if type(number) is not int or not 0 <= number < _INT64:
            raise MalformedPickleError("has a tensor with a size that is no size")
    record = TensorRecord(held, dtype, offset, tuple(shape), tuple(strides))
    # A stride of 0 shows the same number many times: a shape may not claim more than is stored,
    # and an empty one not more than torch can count.
    size = math.prod(record.shape)
    held_bytes, itemsize = held.size * held.itemsize, _itemsize(dtype)
    too_far = record.span and (offset + record.span) * itemsize > held_bytes
    if too_far or size * itemsize > held_bytes or math.prod(max(n, 1) for n in shape) >= _INT64:
        raise MalformedPickleError(
            f"has a tensor of shape {record.shape} that storage {held.key[:80]!r} cannot hold"
        )
    return record
