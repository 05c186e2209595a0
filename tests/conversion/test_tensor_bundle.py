"""Tensor bundles that lie: records, parts and tables are refused in one line, in little memory."""

import os
import shutil
import tracemalloc
from pathlib import Path

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_bert_impl.conversion.readers import sstable
from hf_bert_impl.conversion.readers.protobuf import (
    bytes_field,
    fixed32_field,
    number_field,
    varint,
)
from hf_bert_impl.conversion.readers.tensor_bundle import slice_key, write_header
from hf_bert_impl.conversion.readers.tf1 import Tf1Reader, is_tf1
from tests.conversion.cases import FIXTURES, FORMATS, bits

PARTITIONED = FIXTURES / "tf1_partitioned" / "model.ckpt-7"
read_all, refuse = FORMATS["tf1"].read_all, FORMATS["tf1"].refuse

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
    sstable.write_table(folder / "m.index", records)
    (folder / "m.data-00000-of-00001").write_bytes(data)
    return folder / "m"


def block(*entries, restarts=(0,)):
    """Entries as (shared, rest of the key, value)."""
    content = b"".join(
        varint(shared) + varint(len(rest)) + varint(len(value)) + rest + value
        for shared, rest, value in entries
    )
    numbers = (*restarts, len(restarts))
    return content + b"".join(number.to_bytes(4, "little") for number in numbers)


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
    return file.with_suffix("")


def stored(content, kind):
    content += bytes([kind])
    return content + sstable.masked_crc32c(content).to_bytes(4, "little")


def test_missing_files(tmp_path):
    for file in PARTITIONED.parent.glob(f"{PARTITIONED.name}.*"):
        shutil.copy(file, tmp_path)
    prefix = tmp_path / PARTITIONED.name
    data = tmp_path / "model.ckpt-7.data-00001-of-00002"
    data.unlink()
    assert f"{data} is missing" in refuse(prefix)
    data.mkdir()
    assert f"{data} is missing" in refuse(prefix)
    data.rmdir()
    os.mkfifo(data)  # opening it would wait for a writer
    assert f"{data} is missing" in refuse(prefix)
    for path in (data.with_name("none"), tmp_path, Path("/"), Path(".")):
        assert str(path) in refuse(path)
        assert not is_tf1(path)


ABSURD = {
    "no header": ([(b"a", record(3))], "first record is not a header"),
    "nothing": ([], "first record is not a header"),
    "no data files": ([(b"", b"")], "claims 0 data files"),
    "minus one": ([(b"", number_field(1, MINUS - 1))], "claims -1 data files"),
    "big-endian": ([(b"", number_field(1, 1) + number_field(2, 1))], "big-endian machine"),
    "newer": (
        [(b"", number_field(1, 1) + bytes_field(3, number_field(1, 3) + number_field(2, 2)))],
        "readers of version 2 on; expected version 1",
    ),
    "V1": ([(b"", bytes_field(1, b""))], "first format .V1.; .* tf.train.Saver"),
    "twice": ([HEADER, (b"a", record(3)), (b"a", record(3))], "the key b'a' follows b'a'"),
    "order": ([HEADER, (b"b", record(3)), (b"a", record(3))], "the key b'a' follows b'b'"),
    "not UTF-8": ([HEADER, (b"\xff", record(3))], "is neither a name nor a part"),
    "stray part": ([HEADER, (slice_key(b"a", ((9, 3),)), record(3))], "is neither a name nor a"),
    "no dtype": ([HEADER, (b"a", record(3, dtype=0))], "'a' is wrong: it has no dtype"),
    "less than none": ([HEADER, (b"a", shape_field(MINUS - 3))], r"the shape \[-3\]"),
    "huge": ([HEADER, (b"a", shape_field(1 << 40, 1 << 40))], "the shape"),
    "huge and empty": ([HEADER, (b"a", shape_field(1 << 60, 0))], "the shape"),
    "huge text": ([HEADER, (b"a", number_field(1, 7) + shape_field(1 << 63 - 1))], "the shape"),
    "dimensions": ([HEADER, (b"a", shape_field(*[1] * 999))], "the shape"),
    "unknown rank": (
        [HEADER, (b"a", bytes_field(2, number_field(3, 1)))],
        "number of dimensions is not known",
    ),
    "shape and size": ([HEADER, (b"a", record(3, size=11))], "11 bytes, .* takes 12"),
    "beyond the end": ([HEADER, (b"a", record(3, offset=40))], "has 48 bytes; expected 52 or more"),
    "overflow": ([HEADER, (b"a", record(3, offset=(1 << 63) - 4))], "has 48 bytes; expected 922"),
    "before it": ([HEADER, (b"a", record(3, offset=-4))], "12 bytes from byte -4 on"),
    "text of less": ([HEADER, (b"a", record(dtype=STRING, size=-1))], "-1 bytes from"),
    "text beyond": ([HEADER, (b"a", record(dtype=STRING, size=49))], "expected 49 or more"),
    "no such file": ([HEADER, (b"a", record(3, shard=1))], "in data file 1 of 1"),
    "file below 0": ([HEADER, (b"a", record(3, shard=-1))], "in data file -1 of 1"),
    "endless number": ([HEADER, (b"a", b"\x08" + b"\xff" * 20)], "more than 64 bits"),
    "65 bits": ([HEADER, (b"a", b"\x08" + b"\xff" * 9 + b"\x02")], "more than 64 bits"),
    "cut number": ([HEADER, (b"a", b"\x08\xff")], "a number is cut off"),
    "cut field": ([HEADER, (b"a", b"\x12\x05\x12")], "field 2 of a record is cut off"),
    "vast field": ([HEADER, (b"a", b"\x12" + varint((1 << 64) - 1))], "field 2 .* is cut off"),
    "cut checksum": ([HEADER, (b"a", b"\x35\x00\x00")], "field 6 of a record is cut off"),
    "group": ([HEADER, (b"a", b"\x0b\x0c")], "field 1 .* wire type 3"),
}


def test_unknown_fields_and_dtypes_are_passed_over(tmp_path):
    unknown = number_field(99, 5) + bytes_field(98, b"xyz") + b"\x81\x06" + bytes(8)
    prefix = bundle(
        tmp_path,
        (b"", number_field(1, 1) + unknown),
        (b"a", record(3) + unknown),
        (b"b", record(3, dtype=77)),
    )
    assert [bits(tensor) for tensor in read_all(prefix).values()] == [DATA[:12]]
    with Tf1Reader(prefix) as reader:
        assert reader.tensors["b"].dtype == "DataType 77"


PART, INNER = ((0, 4), (0, 3)), ((0, 4), (0, -1))
PART_KEY = slice_key(b"a", PART)
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
    "one missing": ([HEADER, parts(TOP)[-1]], "'a' lacks its part"),
    "too few": (parts(TOP), "have 3 elements together, not 12"),
    "twice": (parts(TOP, BOTTOM, TOP), "have 15 elements together, not 12"),
    "overlapping": (parts(((0, 2), (0, -1)), ((1, 2), (0, -1))), "parts of .*'a' overlap"),
    "outside": (parts(TOP, ((2, 3), (0, -1))), "does not fit"),
    "start after all": (parts(TOP, ((9, -1), (0, -1))), "does not fit|the shape"),
    "start below 0": (parts(TOP, ((-1, 3), (0, -1))), "does not fit"),
    "length overflow": (parts(TOP, ((1, (1 << 63) - 1), (0, -1))), "shape|does not fit"),
    "dimensions": (parts(TOP, ((1, 3),)), "a part of 1 dimensions"),
    "300 dimensions": (parts(TOP, ((0, -1),) * 255), "a part of 255 dimensions|shape"),
    "other shape": (parts(TOP, entry=record(3, 1, dtype=INT8, size=3)), "does not fit"),
    "other dtype": (parts(TOP, entry=record(1, 3, size=12)), "does not fit"),
    "parts of parts": (
        [
            HEADER,
            (slice_key(PART_KEY, INNER), record(4, 3, dtype=INT8, size=12)),
            (PART_KEY, record(4, 3, dtype=INT8, size=0, slices=[INNER])),
            parts(PART)[-1],
        ],
        "lacks its part",
    ),
    "far more than the files": (
        parts(*(((i, 1), (0, -1)) for i in range(50)), sizes=(50, 48)),
        "has 2400 bytes, more than all the data files",
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

ENTRIES = [(0, *HEADER), (0, b"a", record(3))]
BLOCKS = {
    "no end": ([b""], "shorter than the list"),
    "restarts beyond": ([b"\xff\xff\xff\xff"], "shorter than the list"),
    "shared of none": ([block((5, b"", b""))], "longer than the block"),
    "key beyond": ([varint(0) + varint(99) + varint(0) + block()], "longer than the block"),
    "value beyond": ([varint(0) + varint(0) + varint(1 << 62) + block()], "longer than the block"),
    "cut entry": ([b"\x80" + block()], "a number is cut off"),
    "overlong key": (
        [
            block(
                (0, *HEADER),
                (0, b"k" * 9999, record()),
                *((9999, bytes(n), record()) for n in range(1, 30)),
            )
        ],
        "keys of a block are too long for its size",
    ),
}


@pytest.mark.parametrize(("blocks", "message"), BLOCKS.values(), ids=BLOCKS)
def test_blocks_that_lie(tmp_path, blocks, message):
    refuse(table(tmp_path / "m.index", *blocks), message)


@pytest.mark.parametrize("restarts", [(), (0, 0, 0), (1,), ((1 << 32) - 1,) * 9, (7, 3)])
def test_restart_points_are_not_followed(tmp_path, restarts):
    (tmp_path / "m.data-00000-of-00001").write_bytes(DATA)
    prefix = table(tmp_path / "m.index", block(*ENTRIES, restarts=restarts))
    assert [bits(tensor) for tensor in read_all(prefix).values()] == [DATA[:12]]


@pytest.mark.parametrize(
    ("handles", "message"),
    [
        ([(0, 1 << 63)], "beyond byte"),
        ([((1 << 64) - 1, 0)], "beyond byte"),
        ([(0, 3)], "checksum of its block at byte 0 is wrong"),
        ([(0, 0)], "checksum of its block at byte 0 is wrong"),
        ([(0, len(block(*ENTRIES)))] * 2, "block at byte 0 lies within another"),
    ],
)
def test_lists_of_blocks_that_lie(tmp_path, handles, message):
    (tmp_path / "m.data-00000-of-00001").write_bytes(DATA)
    prefix = table(tmp_path / "m.index", block(*ENTRIES), handles=handles)
    refuse(prefix, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (varint(1 << 32) + b"\0a", "cannot be decompressed"),
        (varint((1 << 32) - 1) + b"\0a", "claims too great a length"),
        (varint(9) + b"\0a", "cannot be decompressed"),
        (b"", "shorter than|cannot be decompressed"),
        (b"\x05\xff\xff\xff", "cannot be decompressed"),
    ],
)
def test_snappy_that_lies(tmp_path, content, message):
    refuse(table(tmp_path / "m.index", content, kind=sstable.SNAPPY), message)


def test_other_compression(tmp_path):
    prefix = table(tmp_path / "m.index", block(*ENTRIES), kind=2)
    refuse(prefix, "compressed by method 2")


def test_memory_is_bounded_by_the_file(tmp_path):
    key = b"k" * 100_000
    repeated = [(0, *HEADER), (0, key, record())]
    repeated += [(len(key), bytes(n), record()) for n in range(1, 100)]
    bombs = {
        # Keys that share 100,000 bytes with the one before; 10 MB from 100 kB.
        "keys": table(tmp_path / "keys.index", block(*repeated)),
        "snappy": table(
            tmp_path / "snappy.index",
            varint(1 << 31) + bytes(cramjam.snappy.compress_raw(bytes(1 << 20))),
            kind=sstable.SNAPPY,
        ),
        "parts": bundle(
            tmp_path, *parts(*(((i, 1), (0, -1)) for i in range(999)), sizes=(999, 48))
        ),
    }
    for name, prefix in bombs.items():
        size = sum(file.stat().st_size for file in tmp_path.glob(f"{prefix.name}.*"))
        tracemalloc.start()
        try:
            refuse(prefix)
            assert tracemalloc.get_traced_memory()[1] < 40 * size + (1 << 20), name
        finally:
            tracemalloc.stop()


@settings(deadline=None, max_examples=150)
@given(content=st.binary(max_size=60), kind=st.integers(0, 2))
def test_any_block(tmp_path_factory, content, kind):
    prefix = table(tmp_path_factory.mktemp("block") / "m.index", content, kind=kind)
    refuse(prefix)
