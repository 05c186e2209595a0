"""Tensor bundles of TensorFlow are read; false ones are refused in one line, in little memory.

`tf1_partitioned` and `tf2_checkpoint` were written by TensorFlow 2.21: by tf.compat.v1's
Saver(sharded=True) over two devices with fixed_size_partitioner, and by tf.train.Checkpoint.
"""

import os
import shutil
import tracemalloc
from pathlib import Path

import pytest

from hf_bert_impl.conversion.readers import sstable
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

SHARDED = FIXTURES / "tf1_sharded" / "bert_model.ckpt"
read_all, refuse = FORMATS["tf1"].read_all, FORMATS["tf1"].refuse


# --- what TensorFlow wrote -------------------------------------------------------------------


def test_index_of_several_blocks(tmp_path):
    records = [(f"layer_{i:04}/a_rather_long_name".encode(), b"x" * i) for i in range(999)]
    parts = [records[start : start + 100] for start in range(0, 999, 100)]
    blocks = [block(*((0, key, value) for key, value in part)) for part in parts]
    table(tmp_path / "m.index", *blocks)
    assert list(sstable.read_table(tmp_path / "m.index")) == records


# --- records ---------------------------------------------------------------------------------

FLOAT32 = 1
MINUS = 1 << 64  # minus n is this less n in a varint
HEADER = (b"", write_header())
DATA = bytes(range(48))


def shape_field(*sizes):
    return bytes_field(2, b"".join(bytes_field(2, number_field(1, size)) for size in sizes))


def record(*sizes, dtype=FLOAT32, shard=0, offset=0, size=None, data=DATA):
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
    )


def bundle(folder, *records, data=DATA):
    write_table(folder / "m.index", records)
    (folder / "m.data-00000-of-00001").write_bytes(data)
    return folder / "m"


def test_missing_files(tmp_path):
    folder = shutil.copytree(SHARDED.parent, tmp_path / "copy")
    data = folder / "bert_model.ckpt.data-00001-of-00002"
    data.unlink()
    for make in (Path.exists, Path.mkdir, os.mkfifo):  # opening a pipe would wait for a writer
        make(data)
        assert f"{data} is missing" in refuse(folder / SHARDED.name)
        if data.is_dir():
            data.rmdir()


def test_a_partitioned_variable():
    refuse(FIXTURES / "tf1_partitioned/model.ckpt-7", "is a partitioned variable; save it again")


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
    "not UTF-8": ([HEADER, (b"\xff", record(3))], "is no name"),
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


@pytest.mark.parametrize(
    ("records", "message"),
    ABSURD.values(),
    ids=ABSURD,
)
def test_records_that_lie(tmp_path, records, message):
    assert "/m." in refuse(bundle(tmp_path, *records), message)


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
