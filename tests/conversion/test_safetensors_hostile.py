"""Damaged and lying safetensors: one clear error each."""

import json
import os
import random
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_bert_impl.conversion.errors import ConversionError
from hf_bert_impl.conversion.readers.safetensors import SafetensorsReader, is_safetensors

FIXTURES = Path(__file__).parents[1] / "fixtures"
SOURCE = FIXTURES / "hf_mlm_no_pooler" / "model.safetensors"


def read_all(path):
    with SafetensorsReader(path) as reader:
        return {name: reader.read(name).clone() for name in reader.tensors}


def refuse(path, match=None):
    with pytest.raises(ConversionError, match=match) as raised:
        read_all(path)
    message = str(raised.value)
    assert path.name in message
    assert "\n" not in message
    assert len(message) < 900


def write(path, table, numbers=b"", length=None):
    header = table if isinstance(table, bytes) else json.dumps(table).encode()
    length = len(header) if length is None else length
    path.write_bytes(struct.pack("<Q", length) + header + numbers)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_truncated(tmp_path):
    content, path = SOURCE.read_bytes(), tmp_path / "cut.safetensors"
    size = len(content)
    for cut in {*range(200), *range(200, size, 397), *range(size - 100, size)}:
        path.write_bytes(content[:cut])
        refuse(path)
    path.write_bytes(content + b"\0")
    refuse(path)


def test_flipped_bytes(tmp_path):
    """Its numbers have no checksum; in the table a flip is an error, or another name or shape."""
    rng = random.Random(0)
    content, path = SOURCE.read_bytes(), tmp_path / "flipped.safetensors"
    table = 8 + int.from_bytes(content[:8], "little")
    found = 0
    for place in (*range(8), *(rng.randrange(8, table) for _ in range(400))):
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        try:
            read_all(path)
        except ConversionError as error:
            assert "\n" not in str(error)
            found += 1
    assert found > 100


@pytest.mark.parametrize("length", [0, 1, 62, 64, 1000, 1 << 31, 1 << 40, 1 << 62, (1 << 64) - 1])
def test_table_length_that_lies(length, tmp_path):
    path = write(tmp_path / "bad.safetensors", {"a": entry()}, bytes(8), length)
    refuse(path)
    assert is_safetensors(path) == (length < 100)


@pytest.mark.parametrize(
    "table",
    [
        {"a": entry(offsets=(0, 16))},
        {"a": entry(offsets=(8, 16))},
        {"a": entry(offsets=(4, 8))},
        {"a": entry(offsets=(8, 0))},
        {"a": entry(offsets=(-8, 0))},
        {"a": entry(offsets=(0, 1 << 63))},
        {"a": entry(offsets=(0, 1 << 64))},
        {"a": entry(offsets=(0,))},
        {"a": entry(shape=(3,))},
        {"a": entry(shape=(-2,))},
        {"a": entry(shape=(1 << 62, 1 << 62))},
        {"a": entry(shape=(0, 1 << 62, 4), offsets=(0, 0)), "b": entry()},
        {"a": entry(dtype="F33")},
        {"a": entry(dtype=None)},
        {"a": {}},
        {"a": None},
        {"a": entry(), "b": entry()},
        {"a": entry(), "b": entry(offsets=(4, 12))},
        {},
        {"__metadata__": {"format": 5}, "a": entry()},
        {"__metadata__": [], "a": entry()},
        [],
        b"",
        b"{",
        b"null",
        b'{"a": ' * 100_000,
        b"[" * 100_000,
        b"\xff" * 9,
    ],
    ids=lambda table: str(table)[:60],
)
def test_table_that_lies(table, tmp_path):
    refuse(write(tmp_path / "bad.safetensors", table, bytes(8)))


def test_names_that_stand_twice(tmp_path):
    path = tmp_path / "bad.safetensors"
    one = json.dumps(entry())
    refuse(write(path, f'{{"a": {one}, "a": {one}}}'.encode(), bytes(8)), "'a' stands twice")
    other = json.dumps(entry(dtype="I32"))
    refuse(write(path, f'{{"a": {one}, "\\u0061": {other}}}'.encode(), bytes(8)), "'a' stands")
    metadata = '"__metadata__": {"format": "pt"}'
    table = f'{{{metadata}, {metadata}, "a": {one}}}'.encode()
    refuse(write(path, table, bytes(8)))


def test_bools_are_0_or_1(tmp_path):
    table = {"a": entry("BOOL", (4,), (0, 4))}
    found = read_all(write(tmp_path / "some.safetensors", table, b"\x00\x01\x02\xff"))["a"]
    assert found.view(torch.uint8).tolist() == [0, 1, 1, 1]


def test_other_files_are_no_safetensors(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_bytes(b"\1\0\0\0\0\0\0\0{")
    os.mkfifo(tmp_path / "pipe")
    paths = [tmp_path / "empty", tmp_path, tmp_path / "nothing"]
    for suffix in ("*.bin", "*.pt", "*.h5", "*.msgpack", "*.json", "*.index", "vocab.*", "*.npz"):
        paths += FIXTURES.rglob(suffix)
    assert [path for path in paths if is_safetensors(path)] == []
    for path in (*paths[:4], tmp_path / "short", tmp_path / "pipe"):
        with pytest.raises(ConversionError):
            SafetensorsReader(path)


EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 8), st.binary(max_size=8)), min_size=1, max_size=3
)


@settings(deadline=None, max_examples=300)
@given(edits=EDITS)
def test_fuzz(edits, tmp_path_factory):
    table = {"__metadata__": {"format": "pt"}, "a": entry(), "b": entry("I64", (1,), (8, 16))}
    path = write(tmp_path_factory.getbasetemp() / "fuzz.safetensors", table, bytes(16))
    content = path.read_bytes()
    for place, removed, added in edits:
        at = int(place * len(content))
        content = content[:at] + added + content[at + removed :]
    path.write_bytes(content)
    is_safetensors(path)
    try:
        read_all(path)
    except ConversionError as error:
        assert "\n" not in str(error)
