"""Files that lie, and indexes of shards: each is refused in one line.

test_damaged_torch has those of torch.save.
"""

import json
import os
import struct

import h5py
import msgpack
import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers import sstable
from hf_bert_impl.conversion.readers.protobuf import BYTES, FIXED32, VARINT
from hf_bert_impl.conversion.readers.sharded import read_shard_index
from tests.conversion.cases import assert_same, read_all, refuse, refused

EIGHT = bytes(8)


# --- safetensors -----------------------------------------------------------------------------


def safetensors(table, numbers=EIGHT):
    return struct.pack("<Q", len(table)) + table + numbers


ONE = b'{"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}'
VAST = b'{"dtype": "F32", "shape": [0, 4611686018427387904], "data_offsets": [0, 0]}'
#: The library finds other faults.
SAFETENSORS = {
    "vast and 0": (safetensors(b'{"a": ' + VAST + b"}", b""), r"a tensor has the shape \[0, 4611"),
    "name twice": (safetensors(b'{"a": ' + ONE + b', "\\u0061": ' + ONE + b"}"), "'a' twice"),
}


# --- flax ------------------------------------------------------------------------------------


def lying(shape=(2,), dtype="float32", content=EIGHT):
    """An array of whatever is given."""
    return msgpack.ExtType(1, msgpack.packb((shape, dtype, content)))


def pieces(shape, *chunks):
    """An array in pieces, as flax.serialization cuts one of more than a GiB; in any order."""
    tables = ({str(n): it for n, it in [*enumerate(given)][::-1]} for given in (shape, chunks))
    return dict(zip(("shape", "chunks"), tables, strict=True)) | {"__msgpack_chunked_array__": True}


FOUR = lying((4,), content=bytes(16))
ARRAYS = {
    "too few bytes": lying((3,)),
    "vast": lying((1 << 62, 1 << 62)),
    "thousands of axes": lying((1,) * 5000, content=bytes(4)),
    "fraction": lying((2.0,)),
    "no pieces": pieces([4]),
    "a piece too few": pieces([5], FOUR),
    "pieces that are not flat": pieces([4], lying((2, 2), content=bytes(16))),
    "pieces of two dtypes": pieces([6], FOUR, lying(dtype="int32")),
}
FLAX = {
    **{name: (msgpack.packb({"a": lying(), "b": x}), "a damaged") for name, x in ARRAYS.items()},
    "key twice": (b"\x82\xa1a\x01\xa1a\x02", "a name twice"),
    "many entries": (msgpack.packb({str(n): [1] * 1000 for n in range(200)}), "more than 131072"),
    "long names": (  # a long key before many short ones would be that many long names
        msgpack.packb({"k" * 60_000: {str(number): 1 for number in range(2000)}}),
        "names are too long",
    ),
}


def test_arrays_in_pieces(tmp_path):
    """Flat ones, the last one shorter."""
    values, path = np.arange(35, dtype="f4"), tmp_path / "pieces.msgpack"
    cuts = (values[start : start + 12] for start in (0, 12, 24))
    tree = pieces([5, 7], *(lying(cut.shape, content=cut.tobytes()) for cut in cuts))
    path.write_bytes(msgpack.packb({"a": {"b": tree}, "d": tree}))
    whole = torch.from_numpy(values).reshape(5, 7)
    assert_same(read_all("flax", path), {"a/b": whole, "d": whole})


# --- HDF5 ------------------------------------------------------------------------------------


def h5(fill, old=b"", new=b""):
    """A file by h5py, of which bytes are replaced."""

    def write(path):
        with h5py.File(path, "w") as file:
            file["layer/good:0"] = np.arange(6.0).reshape(2, 3)
            fill(file)
        path.write_bytes(path.read_bytes().replace(old, new, 1))

    return write


def virtual(file):
    layout = h5py.VirtualLayout((6,), "f8")
    layout[:] = h5py.VirtualSource("/nowhere/other.h5", "x", (6,))
    file.create_virtual_dataset("virtual", layout)


def tree_in_itself(userblock):
    """HDF5 crashes on it."""

    def write(path):
        with h5py.File(path, "w", userblock_size=userblock) as file:
            file["layer/a"] = np.arange(3.0)
        content = bytearray(path.read_bytes())
        node = content.rindex(b"TREE\0")
        content[node + 5] = 1
        content[node + 32 : node + 40] = struct.pack("<Q", node - userblock)
        path.write_bytes(content)

    return write


def shared_bytes(path):
    h5(lambda file: file.update({"layer/other:0": np.arange(6.0).reshape(2, 3) + 7}))(path)
    with h5py.File(path) as file:
        good, other = (item.id.get_offset() for item in file["layer"].values())
    old, new = (struct.pack("<2Q", at, 48) for at in (other, good))
    path.write_bytes(path.read_bytes().replace(old, new, 1))


def unwritten(size):
    """Zeros in chunks, none of which is there."""
    chunks = {"chunks": (1 << 20,), "compression": "gzip"}
    return h5(lambda file: file.create_dataset("bomb", (size,), "f4", **chunks))


ELSEWHERE = [("/nowhere/raw", 0, 24)]
SHAPE = struct.pack("<2Q", 2, 3)
H5 = {
    "outer link": (
        h5(lambda file: file["layer"].update(out=h5py.ExternalLink("secret.h5", "/weights"))),
        "'layer/out' is a link",
    ),
    "circle": (h5(lambda file: file.update(circle=file["/"])), "second name for one object"),
    "tree in itself": (tree_in_itself(0), "the tree of a group contains itself"),
    "tree behind a block": (tree_in_itself(1024), "the tree of a group contains itself"),
    "numbers elsewhere": (
        h5(lambda file: file.create_dataset("out", (3,), "f8", external=ELSEWHERE)),
        "'out' keeps its numbers in another file",
    ),
    "virtual": (h5(virtual), "'virtual' keeps its numbers in another file"),
    "hole": (h5(lambda file: file.create_dataset("h", (1 << 50, 5), "f4")), "more bytes than the"),
    "bomb": (unwritten(1 << 48), "'bomb' takes more bytes"),
    "unwritten": (unwritten(1 << 20), "'bomb' were never written"),
    "deep": (h5(lambda file: file.create_group("/".join("g" * 70))), "too deep"),
    **{
        f"shape {sizes}": (h5(lambda file: None, SHAPE, struct.pack("<2Q", *sizes)), None)
        for sizes in ((3, 3), (2, 1 << 40), (1 << 63, 2))
    },
    "shared bytes": (shared_bytes, "share bytes"),
}


# --- TensorFlow's index, written as TensorFlow does not -----------------------------------------


def varint(value):
    """The bytes of an unsigned number, as `read_varint` reads them."""
    content = bytearray()
    while value >= 0x80:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)


def field(number, value):
    """An unsigned number, and nothing for 0, the default; or a string or a message."""
    if isinstance(value, bytes):
        return varint(number << 3 | BYTES) + varint(len(value)) + value
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def block(*entries):
    """Entries as (bytes shared with the key before, rest of the key, value)."""
    content = b"".join(
        varint(shared) + varint(len(rest)) + varint(len(value)) + rest + value
        for shared, rest, value in entries
    )
    return content + bytes(4) + (1).to_bytes(4, "little")  # one restart, at the start


def stored(content, kind):
    content += bytes([kind])
    return content + sstable.masked_crc32c(content).to_bytes(4, "little")


def table(*blocks, kind=sstable.PLAIN, handles=None):
    """A table of given blocks with good checksums; `handles` replaces the list of blocks."""
    content, places = b"", []
    for one in blocks:
        places.append((len(content), len(one)))
        content += stored(one, kind)
    listed = [varint(a) + varint(b) for a, b in (places if handles is None else handles)]
    index = block(*((0, b"%03d" % number, handle) for number, handle in enumerate(listed)))
    footer = varint(0) + varint(0) + varint(len(content)) + varint(len(index))
    content += stored(index, sstable.PLAIN)
    return content + footer.ljust(40, b"\0") + sstable.MAGIC


MINUS = 1 << 64  # minus n is this less n in a varint
HEADER = field(1, 1) + field(3, field(1, 1))
DATA = bytes(range(48))


def shape_field(*sizes):
    return field(2, b"".join(field(2, field(1, size)) for size in sizes))


def record(*sizes, offset=0, size=None):
    """An entry of float32 with the right checksum; negative numbers as two's complement."""
    size = 4 * int(np.prod(sizes)) if size is None else size
    return (
        field(1, 1)
        + shape_field(*sizes)
        + field(4, offset % MINUS)
        + field(5, size % MINUS)
        + varint(6 << 3 | FIXED32)
        + sstable.masked_crc32c(DATA[offset : offset + size]).to_bytes(4, "little")
    )


def bundle(*records, key=b"a", header=HEADER):
    """A table with a header, by default a good one, and records under the same key."""
    return table(block((0, b"", header), *((0, key, content) for content in records)))


ENTRIES = block((0, b"", HEADER), (0, b"a", record(3)))
#: Keys that share 9999 bytes with the one before.
AFTER = [(9999, bytes(n), record()) for n in range(1, 30)]
VERSION = field(3, field(1, 3) + field(2, 2))
TENSORFLOW = {
    "no header": (table(block((0, b"a", record(3)))), "first record is not a header"),
    "no data files": (bundle(header=b""), "claims 0 data files"),
    "big-endian": (bundle(header=field(1, 1) + field(2, 1)), "big-endian machine"),
    "newer": (bundle(header=field(1, 1) + VERSION), "readers of version 2, later than 1"),
    "V1": (bundle(header=field(1, b"")), "first format .V1.; save it again by tf.train"),
    "twice": (bundle(record(3), record(3)), "the key b'a' follows b'a'"),
    "not UTF-8": (bundle(record(3), key=b"\xff"), "is no name"),
    "huge": (bundle(shape_field(1 << 40, 1 << 40)), "the shape"),
    "rank": (bundle(field(2, field(3, 1))), "dimensions is unknown"),
    "size": (bundle(record(3, size=11)), "of 12 bytes has 11 bytes"),
    "beyond": (bundle(record(3, offset=40)), "12 bytes from byte 40"),
    "shared": (
        table(block((0, b"", HEADER), (0, b"a", record(12)), (0, b"b", record(12)))),
        "96 bytes, more than all",
    ),
    "before": (bundle(record(3, offset=-4)), "12 bytes from byte -4"),
    "field": (bundle(b"\x12" + varint(MINUS - 1)), "field 2 .* is truncated"),
    "number": (bundle(b"\x08\x80"), "a number is truncated"),
    "64 bits": (bundle(b"\x08" + b"\xff" * 9 + b"\x7f"), "more than 64 bits"),
    "wire type": (bundle(b"\x0b"), "field 1 .* has the wire type 3"),
    "no end": (table(b""), "shorter than the list"),
    "long value": (table(varint(0) * 2 + varint(1 << 62) + block()), "longer than the block"),
    "long keys": (table(block((0, b"", HEADER), (0, b"k" * 9999, record()), *AFTER)), "too long"),
    "far block": (table(ENTRIES, handles=[(MINUS - 1, 0)]), "beyond byte"),
    "block twice": (table(ENTRIES, handles=[(0, len(ENTRIES))] * 2), "byte 0 overlaps another"),
    "compressed": (table(ENTRIES, kind=1), "compressed by method 1"),
}


def test_an_index_of_several_blocks(tmp_path):
    records = [(f"layer_{i:04}/a_rather_long_name".encode(), b"x" * i) for i in range(999)]
    parts = [records[start : start + 100] for start in range(0, 999, 100)]
    content = table(*(block(*((0, *record) for record in part)) for part in parts))
    (tmp_path / "m.index").write_bytes(content)
    assert list(sstable.read_table(tmp_path / "m.index")) == records


# --- all of them -------------------------------------------------------------------------------

DAMAGES = {"safetensors": SAFETENSORS, "flax": FLAX, "h5": H5, "tf1": TENSORFLOW}
CASES = {
    f"{form} {name}": (form, *DAMAGES[form][name]) for form in DAMAGES for name in DAMAGES[form]
}


@pytest.mark.parametrize(("form", "damage", "match"), CASES.values(), ids=CASES)
def test_damage(form, damage, match, tmp_path):
    (tmp_path / "bad.data-00000-of-00001").write_bytes(DATA)  # TensorFlow's numbers
    refuse(form, tmp_path / "bad", match, damage)


# --- the index of several files --------------------------------------------------------------

NAMES = {
    "which is no plain name": (
        *("", "..", "../outside.bin", "/etc/passwd", "a/one.bin", "./one.bin", "..\\one.bin"),
        *("C:one.bin", "one.bin\0", "one.bin\n"),
    ),
    "which does not exist": ("three.bin", "x" * 5000, "\udc80.bin", "folder", "pipe", "circle"),
    "is a link to another folder": ("away.bin",),
}
INDEX = [
    (b"\xff\xfe{}", "a damaged"),
    (b"[" * 200_000, "a damaged"),
    (b'{"weight_map": {"a": "one.bin", "a": "two.bin"}}', "'a' twice"),
    (b'{"weight_map": {}}', "no weight_map"),
    (b'{"weight_map": ["one.bin"]}', "no weight_map"),
    (b'{"weight_map": {"a": 5}}', "maps 'a' to 5"),
    *(
        (json.dumps({"weight_map": {"a": "one.bin", "b": name}}).encode(), match)
        for match, names in NAMES.items()
        for name in names
    ),
]


@pytest.mark.parametrize(("content", "match"), INDEX, ids=lambda value: str(value)[:60])
def test_an_index_that_lies(content, match, tmp_path):
    """Beside it are two shards, links, a folder and a pipe; above it is a secret."""
    folder = tmp_path / "index"
    (folder / "folder").mkdir(parents=True)
    for name in ("one.bin", "two.bin", "../outside.bin"):
        (folder / name).write_bytes(b"1")
    (folder / "away.bin").symlink_to(tmp_path / "outside.bin")
    (folder / "circle").symlink_to("circle")
    os.mkfifo(folder / "pipe")
    (folder / "m.index.json").write_bytes(content)
    line = refused(lambda: read_shard_index(folder / "m.index.json"), match)
    assert str(folder / "m.index.json") in line
