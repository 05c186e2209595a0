"""Flax weights: arrays in pieces, and hostile files."""

import msgpack
import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers.flax import read_flax
from tests.conversion.cases import FORMATS

CHUNKED = "__msgpack_chunked_array__"

refuse = FORMATS["flax"].refuse


def lying(shape=(2,), dtype="float32", content=bytes(8), code=1):
    """An array of whatever is given."""
    return msgpack.ExtType(code, msgpack.packb((shape, dtype, content)))


def array(values, code=1):
    """An array as flax.serialization packs it."""
    return lying(values.shape, values.dtype.name, values.tobytes(), code)


def write(path, tree):
    path.write_bytes(msgpack.packb(tree))
    return path


# --- lies ------------------------------------------------------------------------------------

EIGHT = bytes(8)
#: An array at fault: what its extension holds.
ARRAYS = {
    "too few bytes": ((3,), "float32", EIGHT),
    "vast": ((1 << 62, 1 << 62), "float32", EIGHT),
    "thousands of axes": ((1,) * 5000, "float32", bytes(4)),
    "fraction": ((2.0,), "float32", EIGHT),
    "no shape": (None, "float32", EIGHT),
    "table": {"shape": (2,)},
    "cut": msgpack.packb(((2,), "float32", EIGHT))[:-1],
    "vast list": b"\x93\xdd\xff\xff\xff\xff",
    "vast content": b"\x93\x91\x02\xa7float32\xc6\xff\xff\xff\xff",
}
ONE = lying((4,), content=bytes(16))
#: A table for an array in pieces: its shape and its chunks.
PIECES = {
    "no shape": (None, {"0": ONE}),
    "empty": ({"0": 4}, {}),
    "one too few": ({"0": 5}, {"0": ONE}),
    "negative": ({"0": -4}, {"0": ONE}),
    "not flat": ({"0": 4}, {"0": lying((2, 2), content=bytes(16))}),
    "other dtype": ({"0": 2}, {"0": lying(dtype="complex64")}),
    "two dtypes": ({"0": 6}, {"0": ONE, "1": lying(dtype="int32")}),
}
#: Bytes of a whole file.
FILES = {
    "key twice": (b"\x82\xa1a\x01\xa1a\x02", "a name twice"),
    "number as key": (b"\x81\x01\x02", "int is not allowed for map key"),
    "cut": (b"\x81\xa1a\xcb\0\0", "incomplete input"),
    "more behind": (b"\x81\xa1a\x01\x00", "extra data"),
    "vast table": (b"\xdf\xff\xff\xff\xff\xa1a\x01", "a damaged"),
    "many entries": (msgpack.packb({str(n): [1] * 1000 for n in range(200)}), "more than 131072"),
    "deep lists": (b"\x81\xa1a" + b"\x91" * 100_000 + b"\x01", "a damaged"),
    "long names": (  # a long key in front of many short ones would be that many long names
        msgpack.packb({"k" * 60_000: {str(number): 1 for number in range(2000)}}),
        "names are too long",
    ),
}


def arrays_at_fault():
    for content in ARRAYS.values():
        packed = content if isinstance(content, bytes) else msgpack.packb(content)
        yield msgpack.packb({"good": lying(), "bad": msgpack.ExtType(1, packed)}), None


def pieces_at_fault():
    for shape, chunks in PIECES.values():
        given = {
            key: value for key, value in (("shape", shape), ("chunks", chunks)) if value is not None
        }
        yield msgpack.packb({"good": lying(), "bad": {CHUNKED: True} | given}), None


@pytest.mark.parametrize(
    ("content", "match"),
    [*arrays_at_fault(), *pieces_at_fault(), *FILES.values()],
    ids=[*(f"array {name}" for name in ARRAYS), *(f"pieces {name}" for name in PIECES), *FILES],
)
def test_files_that_lie(content, match, tmp_path):
    path = tmp_path / "bad.msgpack"
    path.write_bytes(content)
    refuse(path, match)


def test_arrays_in_pieces(tmp_path):
    """As flax.serialization cuts: flat, as many elements as fit, the last piece shorter."""
    values = np.arange(35, dtype="f4").reshape(5, 7)
    pieces = {str(n): array(values.reshape(-1)[12 * n : 12 * n + 12]) for n in range(3)}
    tree = {CHUNKED: True, "shape": {"0": 5, "1": 7}, "chunks": pieces}
    shuffled = dict(reversed(tree.items())) | {"chunks": dict(reversed(pieces.items()))}
    for content in ({"a": {"b": tree}}, {"a": {"b": shuffled}, "d": tree}):
        found = read_flax(write(tmp_path / "pieces.msgpack", content)).tensors
        assert list(found) == ["a/b", "d"][: len(content)]
        for tensor in found.values():
            assert torch.equal(tensor, torch.from_numpy(values))
