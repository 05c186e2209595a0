"""Safetensors with false tables are refused."""

import json
import struct

import pytest

from hf_bert_impl.conversion.readers.safetensors import is_safetensors, read_safetensors
from tests.conversion.cases import FORMATS

refuse = FORMATS["safetensors"].refuse


# --- lies ------------------------------------------------------------------------------------


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


ONE = json.dumps(entry())
#: The table, and its false length or None; eight bytes of numbers follow.
LIES = {
    "length of one more": ({"a": entry()}, 64),
    "vast length": ({"a": entry()}, (1 << 64) - 1),
    "beyond the file": ({"a": entry(offsets=(0, 16))}, None),
    "hole": ({"a": entry(offsets=(4, 8), shape=(1,))}, None),
    "negative": ({"a": entry(offsets=(-8, 0))}, None),
    "overflow": ({"a": entry(offsets=(0, 1 << 64))}, None),
    "other shape": ({"a": entry(shape=(3,))}, None),
    "vast shape": ({"a": entry(shape=(1 << 62, 1 << 62))}, None),
    "vast and 0": ({"a": entry(shape=(0, 1 << 62, 4), offsets=(0, 0)), "b": entry()}, None),
    "dtype": ({"a": entry(dtype="F33")}, None),
    "twice the same bytes": ({"a": entry(), "b": entry()}, None),
    "metadata": ({"__metadata__": {"format": 5}, "a": entry()}, None),
    "nested": (b'{"a": ' * 100_000, None),
    "no UTF-8": (b"\xff" * 9, None),
    "name twice": (f'{{"a": {ONE}, "\\u0061": {ONE}}}'.encode(), None),
}


@pytest.mark.parametrize(("table", "length"), LIES.values(), ids=LIES)
def test_table_that_lies(table, length, tmp_path):
    header = table if isinstance(table, bytes) else json.dumps(table).encode()
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header)
    with path.open("ab") as file:
        file.write(bytes(8))
    line = refuse(path)
    assert "twice" in line or b"\\u0061" not in header
    assert length is None or is_safetensors(path) == (length < 100)


@pytest.mark.parametrize("spaces", range(8))
def test_numbers_anywhere(spaces, tmp_path):
    """Tables of old files have any length."""
    header = json.dumps({"a": entry()}).encode() + b" " * spaces
    path = tmp_path / "old.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1, 2))
    assert read_safetensors(path).tensors["a"].tolist() == [1, 2]
