"""Tensor bundles of TensorFlow are read; false ones are refused in one line, in little memory.

`tf1_partitioned` and `tf2_checkpoint` were written by TensorFlow 2.21: by tf.compat.v1's
Saver(sharded=True) over two devices with fixed_size_partitioner, and by tf.train.Checkpoint. Their
expected.npz is the output of its own reader, bfloat16 as uint16.
"""

import os
import shutil
import tracemalloc
from pathlib import Path

import pytest

from hf_bert_impl.conversion.readers import sstable
from hf_bert_impl.conversion.readers.tensor_bundle import slice_key
from tests.conversion.bundles import (
    block,
    bytes_field,
    fixed32_field,
    number_field,
    table,
    varint,
    write_header,
    write_table,
)
from tests.conversion.cases import FIXTURES, FORMATS

PARTITIONED = FIXTURES / "tf1_partitioned" / "model.ckpt-7"
read_all, refuse = FORMATS["tf1"].read_all, FORMATS["tf1"].refuse


# --- what TensorFlow wrote -------------------------------------------------------------------


def test_index_of_several_blocks(tmp_path):
    records = [(f"layer_{i:04}/a_rather_long_name".encode(), b"x" * i) for i in range(999)]
    parts = [records[start : start + 100] for start in range(0, 999, 100)]
    blocks = [block(*((0, key, value) for key, value in part)) for part in parts]
    table(tmp_path / "m.index", *blocks)
    assert list(sstable.read_table(tmp_path / "m.index")) == records


def test_keys_of_parts():
    """As TensorFlow's SaveV2 writes them."""
    key = slice_key(b"cls/long", ((16383, 3617),)).hex()
    assert key == "00636c732f6c6f6e6700010101e03fffce21"
    assert slice_key(b"x", ((0, -1), (2, 1))).hex() == "007800010102807f8281"


# --- records ---------------------------------------------------------------------------------

FLOAT32, INT8, STRING = 1, 6, 7
MINUS = 1 << 64  # minus n is this less n in a varint
HEADER = (b"", write_header())
DATA = bytes(range(48))


def shape_field(*sizes):
    return bytes_field(2, b"".join(bytes_field(2, number_field(1, size)) for size in sizes))


def record(*sizes, dtype=FLOAT32, shard=0, offset=0, size=None, data=DATA, slices=()):
    """An entry with the right checksum; negative numbers as two's complement."""
    count = 4
    for one in sizes:
        count *= one
    size = count if size is None else size
    return (
        number_field(1, dtype)
        + shape_field(*sizes)
        + number_field(3, shard % MINUS)
        + number_field(4, offset % MINUS)
        + number_field(5, size % MINUS)
        + fixed32_field(6, sstable.masked_crc32c(data[offset : offset + size]))
        + b"".join(bytes_field(7, slice_message(one)) for one in slices)
    )


def slice_message(extents):
    def extent(start, length):
        fields = number_field(1, start % MINUS)
        if length != -1:
            fields += b"\x10" + varint(length % MINUS)
        return bytes_field(1, fields)

    return b"".join(extent(*one) for one in extents)


def bundle(folder, *records, data=DATA):
    write_table(folder / "m.index", records)
    (folder / "m.data-00000-of-00001").write_bytes(data)
    return folder / "m"


def test_missing_files(tmp_path):
    folder = shutil.copytree(PARTITIONED.parent, tmp_path / "copy")
    data = folder / "model.ckpt-7.data-00001-of-00002"
    data.unlink()
    for make in (Path.exists, Path.mkdir, os.mkfifo):  # opening a pipe would wait for a writer
        make(data)
        assert f"{data} is missing" in refuse(folder / PARTITIONED.name)
        if data.is_dir():
            data.rmdir()


ABSURD = {
    "no header": ([(b"a", record(3))], "first record is not a header"),
    "no data files": ([(b"", b"")], "claims 0 data files"),
    "big-endian": ([(b"", number_field(1, 1) + number_field(2, 1))], "big-endian machine"),
    "newer": (
        [(b"", number_field(1, 1) + bytes_field(3, number_field(1, 3) + number_field(2, 2)))],
        "readers of version 2, later than 1",
    ),
    "V1": ([(b"", bytes_field(1, b""))], "first format .V1.; save it again by tf.train.Saver"),
    "twice": ([HEADER, (b"a", record(3)), (b"a", record(3))], "the key b'a' follows b'a'"),
    "not UTF-8": ([HEADER, (b"\xff", record(3))], "is neither a name nor a part"),
    "huge": ([HEADER, (b"a", shape_field(1 << 40, 1 << 40))], "the shape"),
    "rank": ([HEADER, (b"a", bytes_field(2, number_field(3, 1)))], "dimensions is unknown"),
    "shape and size": ([HEADER, (b"a", record(3, size=11))], "of 12 bytes has 11 bytes"),
    "beyond the end": (
        [HEADER, (b"a", record(3, offset=40))],
        "12 bytes from byte 40",
    ),
    "before it": ([HEADER, (b"a", record(3, offset=-4))], "12 bytes from byte -4"),
    "vast field": ([HEADER, (b"a", b"\x12" + varint((1 << 64) - 1))], "field 2 .* is truncated"),
}


TOP, BOTTOM = ((0, 1), (0, -1)), ((1, 3), (0, -1))


def parts(*given, **changes):
    """The tensor `a` of int8 [4, 3] in parts, and a record for each."""
    sizes = changes.pop("sizes", (4, 3))
    whole = number_field(1, INT8) + shape_field(*sizes)
    whole += b"".join(bytes_field(7, slice_message(one)) for one in given)
    records = {}
    for one in given:
        shape = [s if length < 0 else length for (_, length), s in zip(one, sizes, strict=False)]
        count = 1
        for size in shape:
            count *= max(size, 0)
        entry = record(*(n % MINUS for n in shape), dtype=INT8, size=min(count, 48))
        records[slice_key(b"a", one)] = changes.get("entry", entry)
    return [HEADER, *sorted(records.items()), (b"a", whole)]


IN_PARTS = {
    "one missing": ([HEADER, parts(TOP)[-1], (b"z", record(12))], "'a' lacks its part"),
    "too few": (parts(TOP), "do not cover it"),
    "overlapping": (parts(((0, 2), (0, -1)), ((1, 2), (0, -1))), "does not fit"),
    "other dtype": (parts(TOP, entry=record(1, 3, size=12)), "does not fit"),
    "far more than the files": (
        parts(*(((i, 1), (0, -1)) for i in range(50)), sizes=(50, 48)),
        "take 2400 bytes, more than all the data files",
    ),
}


@pytest.mark.parametrize(
    ("records", "message"),
    [*ABSURD.values(), *IN_PARTS.values()],
    ids=[*ABSURD, *(f"part {case}" for case in IN_PARTS)],
)
def test_records_that_lie(tmp_path, records, message):
    assert "/m." in refuse(bundle(tmp_path, *records), message)


def test_parts_in_several_dimensions(tmp_path):
    quarters = [((a, 2), (b, n)) for a in (0, 2) for b, n in ((0, 1), (1, 2))]
    tensors = read_all(bundle(tmp_path, *parts(*quarters)))
    assert list(tensors) == ["a"]
    assert tensors["a"].tolist() == [[0, 0, 1], [1, 2, 3]] * 2


# --- tables ----------------------------------------------------------------------------------

ENTRIES = block((0, *HEADER), (0, b"a", record(3)))
AFTER = ((9999, bytes(n), record()) for n in range(1, 30))
LONG = (block((0, *HEADER), (0, b"k" * 9999, record()), *AFTER),)
#: Blocks, how they are stored, and what is said of them.
TABLES = {
    "no end": ([b""], {}, "shorter than the list"),
    "value beyond": ([varint(0) * 2 + varint(1 << 62) + block()], {}, "longer than the block"),
    "overlong key": (LONG, {}, "keys of a block are too long for its size"),
    "beyond": ([ENTRIES], {"handles": [((1 << 64) - 1, 0)]}, "beyond byte"),
    "within": ([ENTRIES], {"handles": [(0, len(ENTRIES))] * 2}, "byte 0 overlaps another"),
    "compressed": ([ENTRIES], {"kind": 1}, "compressed by method 1"),
}


@pytest.mark.parametrize(("blocks", "options", "message"), TABLES.values(), ids=TABLES)
def test_tables_that_lie(tmp_path, blocks, options, message):
    (tmp_path / "m.data-00000-of-00001").write_bytes(DATA)
    refuse(table(tmp_path / "m.index", *blocks, **options), message)


def swelling_keys(folder):
    """Keys that share 100,000 bytes with the one before; 10 MB from 100 kB."""
    after = ((100_000, bytes(n), record()) for n in range(1, 100))
    return table(folder / "m.index", block((0, *HEADER), (0, b"k" * 100_000, record()), *after))


def test_memory_is_bounded_by_the_file(tmp_path):
    prefix = swelling_keys(tmp_path)
    size = (tmp_path / "m.index").stat().st_size
    tracemalloc.start()
    refuse(prefix)
    assert tracemalloc.get_traced_memory()[1] < 40 * size + (1 << 20)
    tracemalloc.stop()
