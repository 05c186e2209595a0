"""Damaged and lying MessagePack: one clear error each."""

from functools import partial

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_bert_impl.conversion.readers import flax
from hf_bert_impl.conversion.readers.flax import CHUNKED, FlaxReader, is_flax
from hf_bert_impl.errors import InputError
from tests.conversion import cases

read_all, refuse = (partial(check, FlaxReader) for check in (cases.read_all, cases.refuse))


def array(shape=(2,), dtype="float32", content=bytes(8), code=1):
    return msgpack.ExtType(code, msgpack.packb((shape, dtype, content)))


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
        array((3,)),
        array((1,)),
        array((2, 1 << 40)),
        array((1 << 62, 1 << 62)),
        array((0, 1 << 62, 4), content=b""),
        array((0, 1 << 49), content=b""),
        array((1,) * 40, content=bytes(4)),
        array((1,) * 5000, content=bytes(4)),
        array((-2,)),
        array((2.0,)),
        array((True, 2)),
        array(("2",)),
        array(((2,),)),
        array(2),
        array(None),
        array({}),
        array(dtype=4),
        array(dtype=b"float32"),
        array(dtype=None),
        array(content="\0" * 8),
        array(content=[0] * 8),
        array(content=8),
        array((), content=bytes(8)),
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
    refuse(make({"good": array(), "other": leaf}))


def test_a_dtype_of_no_number(make):
    for dtype in ("object", "V8", "no such type", "float32\n", "x" * 5000):
        path = make({"bad": array(dtype=dtype)})
        with FlaxReader(path) as reader:
            assert reader.tensors["bad"].dtype == dtype
            with pytest.raises(InputError, match=r"'bad' of .* is of dtype") as raised:
                reader.read("bad")
            assert "\n" not in str(raised.value)


ONE = array((4,), content=bytes(16))


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
        {CHUNKED: True, "shape": {"0": 4}, "chunks": {"0": array((2, 2), content=bytes(16))}},
        {CHUNKED: True, "shape": {"0": 2}, "chunks": {"0": array(dtype="complex64")}},
        {CHUNKED: True, "shape": {"0": 6}, "chunks": {"0": ONE, "1": array(dtype="int32")}},
    ],
    ids=str,
)
def test_pieces_that_lie(table, make):
    refuse(make({"good": array(), "bad": table}), "'bad'")


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


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.text(max_size=3)
    | st.floats()
    | st.binary(max_size=9)
    | st.builds(
        array,
        st.lists(st.integers(-1, 3), max_size=3).map(tuple),
        st.sampled_from(["float32", "bool", "bfloat16", "uint16"]),
        st.integers(0, 16).map(bytes),
        st.integers(1, 3),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([CHUNKED, "shape", "chunks", "0", "1"]), inner, max_size=4
        )
    ),
    max_leaves=10,
)


@settings(deadline=None, max_examples=300)
@given(tree=st.dictionaries(st.text(max_size=2), VALUES, max_size=4))
def test_fuzz_of_trees(tree, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "fuzz.msgpack"
    path.write_bytes(msgpack.packb(tree))
    is_flax(path)
    try:
        read_all(path)
    except InputError as error:
        assert "\n" not in str(error)
