"""Damaged and lying safetensors: one clear error each."""

import json
import struct
from functools import partial

import pytest
import torch

from hf_bert_impl.conversion.readers.safetensors import SafetensorsReader, is_safetensors
from tests.conversion import cases

read_all, refuse = (partial(check, SafetensorsReader) for check in (cases.read_all, cases.refuse))


def write(path, table, numbers=b"", length=None):
    header = table if isinstance(table, bytes) else json.dumps(table).encode()
    length = len(header) if length is None else length
    path.write_bytes(struct.pack("<Q", length) + header + numbers)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize("length", [0, 1, 62, 64, 1000, 1 << 31, 1 << 40, 1 << 62, (1 << 64) - 1])
def test_table_length_that_lies(length, tmp_path):
    path = write(tmp_path / "bad.safetensors", {"a": entry()}, bytes(8), length)
    refuse(path)
    assert is_safetensors(path) == (length < 100)


def test_more_numbers_than_the_table_has(tmp_path):
    refuse(write(tmp_path / "bad.safetensors", {"a": entry()}, bytes(9)))


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
    refuse(write(path, f'{{"a": {one}, "a": {one}}}'.encode(), bytes(8)), "its table has 'a' twice")
    other = json.dumps(entry(dtype="I32"))
    refuse(write(path, f'{{"a": {one}, "\\u0061": {other}}}'.encode(), bytes(8)), "'a' twice")
    metadata = '"__metadata__": {"format": "pt"}'
    table = f'{{{metadata}, {metadata}, "a": {one}}}'.encode()
    refuse(write(path, table, bytes(8)))


def test_bools_are_0_or_1(tmp_path):
    table = {"a": entry("BOOL", (4,), (0, 4))}
    found = read_all(write(tmp_path / "some.safetensors", table, b"\x00\x01\x02\xff"))["a"]
    assert found.view(torch.uint8).tolist() == [0, 1, 1, 1]
