"""Flax weights: what Flax wrote is read bit by bit and written again, and lies are refused."""

import msgpack
import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers import flax
from hf_bert_impl.conversion.readers.flax import CHUNKED, FlaxReader, is_flax
from hf_bert_impl.conversion.tensors import DTYPES, TensorInfo
from hf_bert_impl.conversion.writers import flax as writer
from hf_bert_impl.conversion.writers.flax import write_flax
from hf_bert_impl.errors import InputError
from tests.conversion.cases import FIXTURES, FORMATS, bits, infos_of

WHOLE = ("flax", "flax_classifier")
refuse = FORMATS["flax"].refuse


def lying(shape=(2,), dtype="float32", content=bytes(8), code=1):
    """An array of whatever is given."""
    return msgpack.ExtType(code, msgpack.packb((shape, dtype, content)))


def array(values, code=1):
    """An array as flax.serialization packs it."""
    return lying(values.shape, values.dtype.name, values.tobytes(), code)


def unpack(content):
    """A file by MessagePack's own library: its arrays by name, as (shape, dtype, bytes)."""

    def flat(tree, prefix=""):
        for key, value in tree.items():
            if isinstance(value, dict):
                yield from flat(value, f"{prefix}{key}/")
            else:
                yield prefix + key, value

    def leaf(code, data):
        return msgpack.unpackb(data) if code in (1, 3) else msgpack.ExtType(code, data)

    return dict(flat(msgpack.unpackb(content, ext_hook=leaf)))


def write(path, tree):
    path.write_bytes(msgpack.packb(tree))
    return path


@pytest.mark.parametrize("name", WHOLE)
def test_reads_what_flax_wrote(name):
    path = FIXTURES / name / "flax_model.msgpack"
    expected = unpack(path.read_bytes())
    with FlaxReader(path) as reader:
        assert list(reader.tensors) == list(expected)
        for key, (shape, dtype, content) in expected.items():
            assert reader.tensors[key] == TensorInfo(key, tuple(shape), dtype)
            assert reader.read(key).shape == tuple(shape)
            assert bits(reader.read(key)) == content
        assert reader.files == (path,)
        assert (reader.format, reader.software) == ("flax", None)


def test_recognised(tmp_path):
    late = write(tmp_path / "late", {"step": 7, "none": {}, "params": {"a": array(np.ones(3))}})
    assert is_flax(late)
    others = {
        "pickle": b"\x80\x02}q\x00.",
        "text": "ޖ ގ މ\n".encode() * 20,
        "numbers": msgpack.packb({"a": 1, "b": [2.5, "x"]}),
        "keys": msgpack.packb({1: array(np.ones(3))}),
        "list": msgpack.packb([array(np.ones(3))]),
        "type": msgpack.packb({"a": msgpack.ExtType(1, b"\x80")}),
        "empty": b"",
        "end": b"\x81",
    }
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
        assert not is_flax(tmp_path / name), name


def test_every_kind_of_value(tmp_path):
    values = np.arange(15).reshape(3, 5) - 7
    kinds = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
    tree = {kind: array(values.astype(kind)) for kind in kinds}
    tree["scalar"] = array(np.array(2.5, "f4"))
    tree["numpy"] = array(np.array(-3, "i4"), code=3)
    tree["none"] = array(np.zeros((0, 7), "f2"))
    half = torch.tensor([[1.0, -2.5, 3.140625], [float("inf"), -0.0, 1e-30]]).bfloat16()
    tree["bfloat16"] = lying((2, 3), "bfloat16", bits(half))
    plain = {
        "half": 2.5,
        "small": 5,
        "minus": -1,
        "large": 1 << 40,
        "deep": -(1 << 40),
        "yes": True,
    }
    tree["plain"] = plain | {"no": False, "list": [1, -70, 70_000], "empty": {}, "nothing": []}
    with FlaxReader(write(tmp_path / "kinds.msgpack", tree)) as reader:
        for kind in kinds:
            assert np.array_equal(reader.read(kind).numpy(), values.astype(kind))
            assert reader.tensors[kind] == TensorInfo(kind, (3, 5), kind)
        assert reader.read("scalar").item() == 2.5
        assert reader.read("numpy").dtype == torch.int32
        assert reader.read("numpy").item() == -3
        assert reader.tensors["none"].shape == reader.read("none").shape == (0, 7)
        assert reader.tensors["bfloat16"].dtype == "bfloat16"
        assert bits(reader.read("bfloat16")) == bits(half)
        for name, value in plain.items():
            assert reader.read(f"plain/{name}").item() == value
            assert reader.tensors[f"plain/{name}"].shape == ()
            assert reader.tensors[f"plain/{name}"].dtype in ("int64", "float64", "bool")
        assert reader.read("plain/no").item() is False
        assert [reader.read(f"plain/list/{place}").item() for place in range(3)] == [1, -70, 70_000]
        assert len(reader.tensors) == len(kinds) + 4 + len(plain) + 4


def test_other_kinds_are_listed_and_not_read(tmp_path):
    tree = {
        "uint16": array(np.arange(3, dtype="u2")),
        "complex64": array(np.ones(2, "c8")),
        "complex": msgpack.ExtType(2, msgpack.packb((1.0, 2.0))),
        "extension 9": msgpack.ExtType(9, b"abcde"),
        "string": "word",
        "bytes": b"word",
        "null": None,
        "uint64": (1 << 64) - 1,
    }
    with FlaxReader(write(tmp_path / "kinds.msgpack", tree)) as reader:
        for name in tree:
            assert reader.tensors[name].dtype == name
            with pytest.raises(InputError, match=f"'{name}' of .* is of dtype '{name}'"):
                reader.read(name)


def test_pieces(tmp_path):
    values = np.arange(35, dtype="f4").reshape(5, 7)
    pieces = {str(n): array(values.reshape(-1)[12 * n : 12 * n + 12]) for n in range(3)}
    tree = {CHUNKED: True, "shape": {"0": 5, "1": 7}, "chunks": pieces}
    shuffled = dict(reversed(tree.items())) | {"chunks": dict(reversed(pieces.items()))}
    path = write(tmp_path / "pieces.msgpack", {"a": {"b": tree, "c": shuffled}, "d": tree})
    with FlaxReader(path) as reader:
        assert list(reader.tensors) == ["a/b", "a/c", "d"]
        for name, info in reader.tensors.items():
            assert info == TensorInfo(name, (5, 7), "float32")
            assert np.array_equal(reader.read(name).numpy(), values)


def test_nothing_is_read_before_it_is_asked_for(tmp_path):
    """A gigabyte of zeros that the disk does not hold is listed at once."""
    path, size = tmp_path / "large.msgpack", 1 << 30
    head = b"\x93" + msgpack.packb((size // 4,)) + msgpack.packb("float32")
    head += b"\xc6" + size.to_bytes(4, "big")
    extension = b"\xc9" + (len(head) + size).to_bytes(4, "big") + b"\x01"
    with path.open("wb") as file:
        file.write(b"\x81" + msgpack.packb("kernel") + extension + head)
        file.truncate(file.tell() + size)
    with FlaxReader(path) as reader:
        assert reader.tensors == {"kernel": TensorInfo("kernel", (1 << 28,), "float32")}


# --- lies ------------------------------------------------------------------------------------


@pytest.fixture
def make(tmp_path):
    """Write a file: packed, or as the bytes are."""

    def make(content):
        path = tmp_path / "bad.msgpack"
        path.write_bytes(content if isinstance(content, bytes) else msgpack.packb(content))
        return path

    return make


@pytest.mark.parametrize(
    "leaf",
    [
        lying((3,)),
        lying((1,)),
        lying((2, 1 << 40)),
        lying((1 << 62, 1 << 62)),
        lying((0, 1 << 62, 4), content=b""),
        lying((0, 1 << 49), content=b""),
        lying((1,) * 40, content=bytes(4)),
        lying((1,) * 5000, content=bytes(4)),
        lying((-2,)),
        lying((2.0,)),
        lying((True, 2)),
        lying(("2",)),
        lying(((2,),)),
        lying(2),
        lying(None),
        lying({}),
        lying(dtype=4),
        lying(dtype=b"float32"),
        lying(dtype=None),
        lying(content="\0" * 8),
        lying(content=[0] * 8),
        lying(content=8),
        lying((), content=bytes(8)),
        msgpack.ExtType(1, b""),
        msgpack.ExtType(1, b"\x93"),
        msgpack.ExtType(3, b"\x93\x91\x02"),
        msgpack.ExtType(1, msgpack.packb(((2,), "float32"))),
        msgpack.ExtType(1, msgpack.packb(((2,), "float32", bytes(8), 1))),
        msgpack.ExtType(1, msgpack.packb(((2,), "float32", bytes(8))) + b"\0"),
        msgpack.ExtType(1, msgpack.packb({"shape": (2,)})),
        msgpack.ExtType(1, msgpack.packb(((2,), "float32", bytes(8)))[:-1]),
        msgpack.ExtType(1, b"\x93\xdd\xff\xff\xff\xff"),
        msgpack.ExtType(1, b"\x93\x91\x02\xa7float32\xc6\xff\xff\xff\xff"),
        msgpack.ExtType(1, b"\x93\x91\x02\xa7floa\xff32\xc4\x08" + bytes(8)),
    ],
    ids=lambda leaf: str(leaf.data)[:50],
)
def test_an_array_that_lies(leaf, make):
    refuse(make({"good": lying(), "other": leaf}))


def test_a_dtype_of_no_number(make):
    for dtype in ("object", "V8", "no such type", "float32\n", "x" * 5000):
        path = make({"bad": lying(dtype=dtype)})
        with FlaxReader(path) as reader:
            assert reader.tensors["bad"].dtype == dtype
            with pytest.raises(InputError, match=r"'bad' of .* is of dtype") as raised:
                reader.read("bad")
            assert "\n" not in str(raised.value)


ONE = lying((4,), content=bytes(16))


@pytest.mark.parametrize(
    "table",
    [
        {CHUNKED: True},
        {CHUNKED: True, "shape": {"0": 4}},
        {CHUNKED: True, "chunks": {"0": ONE}},
        {CHUNKED: True, "shape": {"0": 4}, "chunks": {}},
        {CHUNKED: True, "shape": {"0": 5}, "chunks": {"0": ONE}},
        {CHUNKED: True, "shape": {}, "chunks": {"0": ONE}},
        {CHUNKED: True, "shape": {"0": 4}, "chunks": {"1": ONE}},
        {CHUNKED: True, "shape": {"1": 4}, "chunks": {"0": ONE}},
        {CHUNKED: True, "shape": {"0": -4}, "chunks": {"0": ONE}},
        {CHUNKED: True, "shape": {"0": "4"}, "chunks": {"0": ONE}},
        {CHUNKED: True, "shape": {"0": 4.0}, "chunks": {"0": ONE}},
        {CHUNKED: True, "shape": {"0": {"0": 4}}, "chunks": {"0": ONE}},
        {CHUNKED: True, "shape": {"0": ONE}, "chunks": {"0": ONE}},
        {CHUNKED: True, "shape": {"0": 1 << 62, "1": 1 << 62}, "chunks": {"0": ONE}},
        {CHUNKED: True, "shape": {"0": 4}, "chunks": {"0": 4}},
        {CHUNKED: True, "shape": {"0": 4}, "chunks": ONE},
        {CHUNKED: True, "shape": {"0": 8}, "chunks": {"0": ONE, "2": ONE}},
        {CHUNKED: True, "shape": {"0": 4}, "chunks": {"0": lying((2, 2), content=bytes(16))}},
        {CHUNKED: True, "shape": {"0": 2}, "chunks": {"0": lying(dtype="complex64")}},
        {CHUNKED: True, "shape": {"0": 6}, "chunks": {"0": ONE, "1": lying(dtype="int32")}},
    ],
    ids=str,
)
def test_pieces_that_lie(table, make):
    refuse(make({"good": lying(), "bad": table}), "'bad'")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"\x82\xa1a\x01\xa1a\x02", "'a' is twice"),
        (b"\x82\xa1a\x81\xa1b\x01\xa3a/b\x02", "'a/b' is there twice"),
        (b"\x81\x01\x02", "a key at 1 is int64"),
        (b"\x81\xc4\x01a\x02", "a key at 1 is bytes"),
        (b"\x81\xa2\xff\xfe\x02", "no UTF-8"),
        (b"\x81\xa1a\xc1", "starts no value"),
        (b"\x81\xa1a", "ends within a value"),
        (b"\x81\xa1a\x01\x00", "1 bytes follow"),
        (b"\x81\xa1a\xcb\0\0", "ends within a value"),
        (b"\x8f\xa1a\x01", "table of 15 at 0 ends beyond"),
        (b"\xdf\xff\xff\xff\xff\xa1a\x01", "table of 4294967295 at 0 ends beyond"),
        (b"\x81\xdb\xff\xff\xff\xffa\x01", "text of 4294967295 at 1 ends beyond"),
        (b"\x81\xa1a\xc9\xff\xff\xff\xff\x01", "ext of 4294967295 at 3 ends beyond"),
        (b"\x81\xa1a\xdd\xff\xff\xff\xff", "list of 4294967295 at 3 ends beyond"),
        (b"\x93\x01\x02\x03", "starts with list"),
        (b"\x05", "starts with int64"),
        (b"\x81\xa1a" * 1000 + b"\x01", "more than 64 tables"),
        (b"\x81\xa1a" + b"\x91" * 100_000 + b"\x01", "more than 64 tables"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_no_such_file(content, match, make):
    refuse(make(content), match)


def test_too_many_values(make, monkeypatch):
    monkeypatch.setattr(flax, "_MAX_VALUES", 40)
    refuse(make({"a": {str(number): 1 for number in range(45)}}), "more than 40 values")


def test_names_longer_than_the_file(make):
    """A long key in front of many short ones would be that many long names."""
    tree = {"k" * 60_000: {str(number): 1 for number in range(2000)}}
    refuse(make(tree), "names are longer than itself")


# --- writing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(), (1,), (0, 3), (3,), (5, 7), (2, 3, 4, 5), (300, 70), (70_000,)]
)
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_heads_of_every_length(shape, dtype, tmp_path):
    values = torch.ones(shape, dtype=DTYPES[dtype])
    tensors = {f"{'k' * length}/b": values for length in (1, 31, 32, 255, 256, 70_000)}
    path = tmp_path / "heads.msgpack"
    write_flax(path, infos_of(tensors), tensors.__getitem__)
    tree = {name.split("/")[0]: {"b": array(values.numpy())} for name in tensors}
    assert path.read_bytes() == msgpack.packb(tree)


@pytest.mark.parametrize("count", [1, 15, 16, 70_000])
def test_tables_of_every_length(count, tmp_path):
    one, path = torch.tensor([1], dtype=torch.uint8), tmp_path / "tables.msgpack"
    infos = infos_of({f"a/{number}": one for number in range(count)})
    write_flax(path, infos, lambda name: one)
    tree = {"a": {str(number): array(one.numpy()) for number in range(count)}}
    assert path.read_bytes() == msgpack.packb(tree)
    with FlaxReader(path) as reader:
        assert reader.tensors == infos


def test_written_in_pieces(tmp_path, monkeypatch):
    """As flax.serialization cuts: flat, as many elements as fit, the last piece shorter."""
    monkeypatch.setattr(writer, "MAX_PIECE_BYTES", 50)
    values = np.arange(35, dtype="f4").reshape(5, 7)
    pieces = {str(n): array(values.reshape(-1)[12 * n : 12 * n + 12]) for n in range(3)}
    tree = {CHUNKED: True, "shape": {"0": 5, "1": 7}, "chunks": pieces}
    whole = values[0, :5].astype("f8")
    tensors = {"a/b": torch.from_numpy(values), "a/c": torch.from_numpy(whole)}
    path = tmp_path / "pieces.msgpack"
    write_flax(path, infos_of(tensors), tensors.__getitem__)
    assert path.read_bytes() == msgpack.packb({"a": {"b": tree, "c": array(whole)}})
    with FlaxReader(path) as reader:
        assert torch.equal(reader.read("a/b"), tensors["a/b"])
