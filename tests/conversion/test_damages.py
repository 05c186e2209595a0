"""One table of damages: for each format a file that lies, and the one line that refuses it."""

import collections
import itertools
import json
import os
import re
import struct
import zipfile

import h5py
import msgpack
import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers import sstable
from hf_bert_impl.conversion.readers.protobuf import BYTES, FIXED32, VARINT
from hf_bert_impl.conversion.readers.sharded import read_shard_index
from tests.conversion.cases import Runs, refuse, refused, zipped

EIGHT = bytes(8)


# --- safetensors -----------------------------------------------------------------------------


def safetensors(header, length=None, numbers=EIGHT):
    """A table, its length (or a false one), and the bytes of numbers."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + numbers


def entry(shape=(2,), offsets=(0, 8)):
    return {"dtype": "F32", "shape": list(shape), "data_offsets": list(offsets)}


ONE = json.dumps(entry())
#: The library finds other faults.
SAFETENSORS = {
    "vast length": (safetensors({"a": entry()}, (1 << 64) - 1), None),
    "beyond the file": (safetensors({"a": entry(offsets=(0, 16))}), None),
    "vast and 0": (
        safetensors({"a": entry(shape=(0, 1 << 62), offsets=(0, 0))}, numbers=b""),
        r"a tensor has the shape \[0, 4611",
    ),
    "nested": (safetensors(b'{"a": ' * 100_000), None),
    "name twice": (safetensors(f'{{"a": {ONE}, "\\u0061": {ONE}}}'.encode()), "'a' twice"),
}

# --- flax ------------------------------------------------------------------------------------


def lying(shape=(2,), dtype="float32", content=EIGHT, code=1):
    """An array of whatever is given."""
    return msgpack.ExtType(code, msgpack.packb((shape, dtype, content)))


FOUR = lying((4,), content=bytes(16))
ARRAYS = {
    "too few bytes": msgpack.packb(((3,), "float32", EIGHT)),
    "too many bytes": msgpack.packb(((1,), "float32", EIGHT)),
    "vast": msgpack.packb(((1 << 62, 1 << 62), "float32", EIGHT)),
    "thousands of axes": msgpack.packb(((1,) * 5000, "float32", bytes(4))),
    "fraction": msgpack.packb(((2.0,), "float32", EIGHT)),
    "no shape": msgpack.packb((None, "float32", EIGHT)),
    "cut": msgpack.packb(((2,), "float32", EIGHT))[:-1],
    "vast list": b"\x93\xdd\xff\xff\xff\xff",
    "vast content": b"\x93\x91\x02\xa7float32\xc6\xff\xff\xff\xff",
}
#: An array in pieces: its shape and its chunks.
PIECES = {
    "empty": ({"0": 4}, {}),
    "one too few": ({"0": 5}, {"0": FOUR}),
    "negative": ({"0": -4}, {"0": FOUR}),
    "not flat": ({"0": 4}, {"0": lying((2, 2), content=bytes(16))}),
    "other dtype": ({"0": 2}, {"0": lying(dtype="complex64")}),
    "two dtypes": ({"0": 6}, {"0": FOUR, "1": lying(dtype="int32")}),
}


def pieces(shape, chunks):
    tree = {"__msgpack_chunked_array__": True, "shape": shape, "chunks": chunks}
    return msgpack.packb({"good": lying(), "bad": tree})


FLAX = {
    **{name: (msgpack.packb({"a": msgpack.ExtType(1, it)}), None) for name, it in ARRAYS.items()},
    **{f"pieces {name}": (pieces(*given), None) for name, given in PIECES.items()},
    "key twice": (b"\x82\xa1a\x01\xa1a\x02", "a name twice"),
    "number as key": (b"\x81\x01\x02", "int is not allowed for map key"),
    "more behind": (b"\x81\xa1a\x01\x00", "extra data"),
    "vast table": (b"\xdf\xff\xff\xff\xff\xa1a\x01", "a damaged"),
    "many entries": (msgpack.packb({str(n): [1] * 1000 for n in range(200)}), "more than 131072"),
    "deep lists": (b"\x81\xa1a" + b"\x91" * 100_000 + b"\x01", "a damaged"),
    "long names": (  # a long key before many short ones would be that many long names
        msgpack.packb({"k" * 60_000: {str(number): 1 for number in range(2000)}}),
        "names are too long",
    ),
}

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
    h5(lambda f: f.update({"layer/other:0": np.arange(6.0).reshape(2, 3) + 7}))(path)
    with h5py.File(path) as file:
        good, other = (item.id.get_offset() for item in file["layer"].values())
    old, new = (struct.pack("<2Q", at, 48) for at in (other, good))
    path.write_bytes(path.read_bytes().replace(old, new, 1))


CHUNKS = {"chunks": (1 << 20,), "compression": "gzip"}
ELSEWHERE = "'{}' keeps its numbers in another file"
SHAPE = struct.pack("<2Q", 2, 3)
H5 = {
    "soft link": (h5(lambda f: f.update(soft=h5py.SoftLink("/layer"))), "'soft' is a link"),
    "outer link": (
        h5(lambda f: f["layer"].update({"out": h5py.ExternalLink("secret.h5", "/weights")})),
        "'layer/out' is a link",
    ),
    "circle": (h5(lambda f: f.update({"layer/circle": f["/"]})), "second name for one object"),
    "second name": (
        h5(lambda f: f["layer"].update({"again:0": f["layer/good:0"]})),
        "second name for one object",
    ),
    "tree in itself": (tree_in_itself(0), "the tree of a group contains itself"),
    "tree behind a block": (tree_in_itself(1024), "the tree of a group contains itself"),
    "numbers elsewhere": (
        h5(lambda f: f.create_dataset("out", (3,), "f8", external=[("/nowhere/raw", 0, 24)])),
        ELSEWHERE.format("out"),
    ),
    "virtual": (h5(virtual), ELSEWHERE.format("virtual")),
    "hole": (h5(lambda f: f.create_dataset("h", (1 << 50, 5), "f4")), "more bytes than the file"),
    # A petabyte in chunks, none of which is there.
    "bomb": (
        h5(lambda f: f.create_dataset("bomb", (1 << 48,), "f4", **CHUNKS)),
        "'bomb' takes more bytes",
    ),
    "unwritten": (
        h5(lambda f: f.create_dataset("bomb", (1 << 20,), "f4", **CHUNKS)),
        "'bomb' were never written",
    ),
    "deep": (h5(lambda f: f.create_group("/".join("g" * 70))), "too deep"),
    **{
        f"shape {sizes}": (h5(lambda f: None, SHAPE, struct.pack("<2Q", *sizes)), None)
        for sizes in ((3, 3), (2, 1 << 40), (1 << 63, 2))
    },
    "shared bytes": (shared_bytes, "share bytes"),
}

# --- TensorFlow ------------------------------------------------------------------------------


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


def table(file, *blocks, kind=sstable.PLAIN, handles=None):
    """A table of given blocks with good checksums; `handles` replaces the list of blocks."""
    content = b""
    places = []
    for one in blocks:
        places.append((len(content), len(one)))
        content += stored(one, kind)
    listed = [varint(a) + varint(b) for a, b in (places if handles is None else handles)]
    index = block(*((0, b"%03d" % number, handle) for number, handle in enumerate(listed)))
    footer = varint(0) + varint(0) + varint(len(content)) + varint(len(index))
    content += stored(index, sstable.PLAIN)
    file.write_bytes(content + footer.ljust(40, b"\0") + sstable.MAGIC)


def stored(content, kind):
    content += bytes([kind])
    return content + sstable.masked_crc32c(content).to_bytes(4, "little")


def write_table(path, entries):
    """A table of one block."""
    table(path, block(*((0, key, value) for key, value in entries)))


MINUS = 1 << 64  # minus n is this less n in a varint
HEADER = (b"", field(1, 1) + field(3, field(1, 1)))
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


def bundle(*records):
    def write(path):
        write_table(path, records)
        path.with_suffix(".data-00000-of-00001").write_bytes(DATA)

    return write


def blocks(*contents, **options):
    def write(path):
        path.with_suffix(".data-00000-of-00001").write_bytes(DATA)
        table(path, *contents, **options)

    return write


ENTRIES = block((0, *HEADER), (0, b"a", record(3)))
#: Keys that share 9999 bytes with the one before.
AFTER = [(9999, bytes(n), record()) for n in range(1, 30)]
VERSION = field(3, field(1, 3) + field(2, 2))
TF1 = {
    "no header": (bundle((b"a", record(3))), "first record is not a header"),
    "no data files": (bundle((b"", b"")), "claims 0 data files"),
    "big-endian": (bundle((b"", field(1, 1) + field(2, 1))), "big-endian machine"),
    "newer": (bundle((b"", field(1, 1) + VERSION)), "readers of version 2, later than 1"),
    "V1": (bundle((b"", field(1, b""))), "first format .V1.; save it again by tf.train"),
    "twice": (bundle(HEADER, (b"a", record(3)), (b"a", record(3))), "the key b'a' follows b'a'"),
    "not UTF-8": (bundle(HEADER, (b"\xff", record(3))), "is no name"),
    "huge": (bundle(HEADER, (b"a", shape_field(1 << 40, 1 << 40))), "the shape"),
    "rank": (bundle(HEADER, (b"a", field(2, field(3, 1)))), "dimensions is unknown"),
    "size": (bundle(HEADER, (b"a", record(3, size=11))), "of 12 bytes has 11 bytes"),
    "beyond": (bundle(HEADER, (b"a", record(3, offset=40))), "12 bytes from byte 40"),
    "shared": (bundle(HEADER, (b"a", record(12)), (b"b", record(12))), "96 bytes, more than all"),
    "before": (bundle(HEADER, (b"a", record(3, offset=-4))), "12 bytes from byte -4"),
    "field": (bundle(HEADER, (b"a", b"\x12" + varint(MINUS - 1))), "field 2 .* is truncated"),
    "number": (bundle(HEADER, (b"a", b"\x08\x80")), "a number is truncated"),
    "64 bits": (bundle(HEADER, (b"a", b"\x08" + b"\xff" * 9 + b"\x7f")), "more than 64 bits"),
    "wire type": (bundle(HEADER, (b"a", b"\x0b")), "field 1 .* has the wire type 3"),
    "no end": (blocks(b""), "shorter than the list"),
    "long value": (blocks(varint(0) * 2 + varint(1 << 62) + block()), "longer than the block"),
    "long keys": (blocks(block((0, *HEADER), (0, b"k" * 9999, record()), *AFTER)), "too long"),
    "far block": (blocks(ENTRIES, handles=[(MINUS - 1, 0)]), "beyond byte"),
    "block twice": (blocks(ENTRIES, handles=[(0, len(ENTRIES))] * 2), "byte 0 overlaps another"),
    "compressed": (blocks(ENTRIES, kind=1), "compressed by method 1"),
}


def test_an_index_of_several_blocks(tmp_path):
    records = [(f"layer_{i:04}/a_rather_long_name".encode(), b"x" * i) for i in range(999)]
    parts = [records[start : start + 100] for start in range(0, 999, 100)]
    table(tmp_path / "m.index", *(block(*((0, *record) for record in part)) for part in parts))
    assert list(sstable.read_table(tmp_path / "m.index")) == records


# --- PyTorch ---------------------------------------------------------------------------------


def saved(value, is_zip=True):
    return lambda path: torch.save(value, path, _use_new_zipfile_serialization=is_zip)


def changed(name, content=None, method=zipfile.ZIP_STORED):
    """An entry of a file of torch.save changed, or left out (None)."""

    def write(path):
        torch.save({"a": torch.zeros(1000, 1000)[3]}, path)
        with zipfile.ZipFile(path) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()} | {name: content}
        kept = ((name, it) for name, it in entries.items() if it is not None)
        path.write_bytes(zipped(*kept, method=method))

    return write


def directory(place, value):
    """The zip's list of entries with other bytes about the first storage."""

    def write(path):
        torch.save({"a": torch.arange(12.0)}, path)
        content = bytearray(path.read_bytes())
        at = content.rindex(b"bad/data/0") - 46 + place
        content[at : at + len(value)] = value
        path.write_bytes(content)

    return write


def entry_twice(path):
    torch.save({"a": torch.arange(12.0)}, path)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("bad/data/0", b"\0" * 12)


def legacy(pattern, new):
    """The stream that torch.save wrote before 1.6, with bytes changed."""

    def write(path):
        saved({"a": torch.tensor([1.0, 2.0, 3.0])}, is_zip=False)(path)
        content, count = re.subn(pattern, new, path.read_bytes(), flags=re.DOTALL)
        assert count == 1
        path.write_bytes(content)

    return write


#: The number of elements, before the last twelve bytes.
COUNT = rb"\x03\0{7}(?=.{12}\Z)"


def view(offset, shape, strides):
    """A tensor of six numbers that torch would not make."""
    six, hooks = torch.zeros(6)._typed_storage(), collections.OrderedDict()
    return Runs(torch._utils._rebuild_tensor_v2, six, offset, shape, strides, False, hooks)


VIEWS = [
    *((0, (7,), (1,)), (0, (2, 3), (4, 1)), (0, (7,), (0,)), (0, (1 << 62, 4), (0, 0))),
    *((-1, (2,), (1,)), (0, (-2, -3), (1, 1)), (5, (2,), (-1,)), (0, None, (1,))),
]


def shared_containers():
    value = torch.ones(1)
    for _ in range(40):  # 2 ** 40 names
        value = {"a": value, "b": value}
    return value


def in_itself(value, names):
    names["self"] = value
    return value


def shared_modules():
    """A state of many attributes, shared by many modules of many names."""
    module = torch.nn.Linear(2, 3)
    module.__dict__.update({f"_{number}": None for number in range(20_000)})
    return {str(number): module for number in range(20_000)}


def repeated():
    whole = torch.zeros(1 << 10, 1 << 10)
    return {f"layer.{number}": whole for number in range(1000)}


def long_for_ever():
    """A tensor that a pickle fills like a dict."""
    made = view(0, (6,), (1,))
    made.call += (None, None, iter([(0, 1.0)]))
    return made


ENDLESS = "nests its containers without end"
TORCH = {
    "sizes": (directory(20, b"\xf0\xff\xff\xff\xf0\xff\xff\xff"), "more bytes than it has"),
    "small size": (directory(24, b"\x08\0\0\0"), "wrong crc32"),
    "start": (directory(42, b"\x05\0\0\0"), "a damaged"),
    "encrypted": (directory(8, b"\x01"), "compressed or encrypted"),
    "checksum": (directory(16, b"\x05\0\0\0"), "wrong crc32"),
    "compressed": (changed("x", b"", zipfile.ZIP_DEFLATED), "compressed or encrypted"),
    "entry twice": (entry_twice, "zip directory has an entry twice"),
    "long entry": (changed("bad/data/0", bytes(52)), "names 4000000 bytes in an entry of 52"),
    "no entry": (changed("bad/data/0"), "has no entry bad/data/0"),
    "two pickles": (changed("evil/data.pkl", b"N."), "holds 2 pickles"),
    "other order": (changed("bad/byteorder", b"big"), "another byte order"),
    "TorchScript": (changed("bad/constants.pkl", b"N."), "TorchScript"),
    "old: storages": (
        legacy(rb"\]q\x00X.{4}\d+q\x01a\.", b"]."),
        "storages does not match its pickle",
    ),
    "old: long": (legacy(COUNT, b"\4" + bytes(7)), "gives storage '.*' two sizes"),
    "old: short": (legacy(COUNT, b"\2" + bytes(7)), "two sizes"),
    "old: byte order": (legacy(rb"(?<=little_endianq.)\x88", b"\x89"), "another byte order"),
    **{
        f"view {given} {is_zip}": (saved({"a": view(*given)}, is_zip), "a damaged PyTorch file")
        for given, is_zip in itertools.product(VIEWS, (True, False))
    },
    "tensor as dict": (saved({"a": long_for_ever()}), "twice, or of an unusual type"),
    "sparse": (
        saved({"a": torch.ones(2, 3).to_sparse()}),
        "is a sparse_tensor; save it",
    ),
    "meta": (saved({"a": torch.ones(2, 3, device="meta")}), "is a meta_tensor"),
    "repeated": (saved(repeated()), "repeat the same few numbers"),
    "shared": (saved(shared_containers()), ENDLESS),
    "in itself": (saved(in_itself(one := {"tensor": torch.ones(1)}, one)), ENDLESS),
    "module in itself": (saved(in_itself(two := torch.nn.Linear(2, 3), two._modules)), ENDLESS),
    "shared modules": (saved(shared_modules()), ENDLESS),
    "two lines": (saved({"a\nb": torch.ones(1)}), r"the name 'a\\nb'"),
    "long name": (saved({"x" * 2000: torch.ones(1)}), "the name 'xxx"),
    "name twice": (saved({"a.b": torch.ones(1), "a": {"b": torch.ones(2)}}), r"'a\.b' twice"),
    "tensor": (saved(torch.ones(1)), "neither a state dict nor a module"),
}

# --- the index of several files --------------------------------------------------------------


def index(content):
    """An index beside two shards, links, a folder, a pipe, and a secret in the folder above."""

    def write(path):
        path.mkdir()
        (path / "folder").mkdir()
        for name in ("one.bin", "two.bin", "../outside.bin"):
            (path / name).write_bytes(b"1")
        (path / "away.bin").symlink_to(path.parent / "outside.bin")
        (path / "circle").symlink_to("circle")
        os.mkfifo(path / "pipe")
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        (path / "m.index.json").write_bytes(text)

    return write


NAMES = {
    "which is no plain name": (
        *("", "..", "../outside.bin", "/etc/passwd", "a/one.bin", "./one.bin", "..\\one.bin"),
        *("C:one.bin", "one.bin\0", "one.bin\n"),
    ),
    "which does not exist": ("three.bin", "x" * 5000, "\udc80.bin", "folder", "pipe", "circle"),
    "is a link to another folder": ("away.bin",),
}
INDEX = {
    "no UTF-8": (index(b"\xff\xfe{}"), "a damaged"),
    "nested": (index(b"[" * 200_000), "a damaged"),
    "name twice": (index(b'{"weight_map": {"a": "one.bin", "a": "two.bin"}}'), "'a' twice"),
    "list": (index([]), "no weight_map"),
    "empty": (index({"weight_map": {}}), "no weight_map"),
    "no table": (index({"weight_map": ["one.bin"]}), "no weight_map"),
    "number": (index({"weight_map": {"a": 5}}), "maps 'a' to 5"),
    **{
        f"file {name[:20]!r}": (index({"weight_map": {"a": "one.bin", "b": name}}), match)
        for match, names in NAMES.items()
        for name in names
    },
}

DAMAGES = {"safetensors": SAFETENSORS, "flax": FLAX, "h5": H5, "tf1": TF1, "torch": TORCH}
DAMAGES["index"] = INDEX
CASES = [(form, name) for form, table in DAMAGES.items() for name in table]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(("form", "name"), CASES, ids=[" ".join(case) for case in CASES])
def test_damage(form, name, tmp_path):
    damage, match = DAMAGES[form][name]
    path = tmp_path / "bad"
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    else:
        damage(path)
    if form == "index":
        assert str(path) in refused(lambda: read_shard_index(path / "m.index.json"), match)
    else:
        refuse(form, path, match)
