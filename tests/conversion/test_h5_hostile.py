"""Damaged and lying HDF5: one clear error each, at once, whatever HDF5's own library would do."""

import struct
from functools import partial

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_bert_impl.conversion.readers import hdf5
from hf_bert_impl.conversion.readers.h5 import H5Reader, is_h5
from hf_bert_impl.errors import InputError
from tests.conversion import cases

SOURCE = cases.FIXTURES / "tf2_h5_sharded" / "tf_model-00003-of-00007.h5"
read_all, refuse = (partial(check, H5Reader) for check in (cases.read_all, cases.refuse))


def metadata(path):
    """The places of a file's bytes that are no tensor's."""
    with H5Reader(path) as reader:
        (shard,) = {id(shard): shard for shard in reader._homes.values()}.values()
        tensors = [(start, end) for start, end, _ in shard._ranges]
    inside = {place for start, end in tensors for place in range(start, end)}
    return [place for place in range(path.stat().st_size) if place not in inside]


@pytest.fixture
def make(tmp_path):
    """Write a file by h5py."""

    def make(fill, **options):
        path = tmp_path / "bad.h5"
        with h5py.File(path, "w", **options) as file:
            file["layer/good:0"] = np.arange(6.0).reshape(2, 3)
            fill(file)
        return path

    return make


def test_truncated_behind_a_block_of_the_user(tmp_path):
    path = tmp_path / "cut.h5"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["layer/a:0"] = np.arange(400.0)
    content = path.read_bytes()
    for cut in range(512, len(content), 37):
        path.write_bytes(content[:cut])
        refuse(path)


EDITS = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(["<B", "<H", "<I", "<Q"]),
        st.sampled_from([0, 1, 8, 24, 96, 136, 255, 680, 800]) | st.integers(0, (1 << 64) - 1),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=500)
@given(edits=EDITS)
def test_fuzz(edits, tmp_path_factory):
    """Numbers of every width are written over the lists: addresses, sizes, counts, kinds."""
    path = tmp_path_factory.getbasetemp() / "fuzz.h5"
    content, places = bytearray(SOURCE.read_bytes()), fuzzed_places()
    for place, form, value in edits:
        at = places[int(place * len(places))]
        width = struct.calcsize(form)
        content[at : at + width] = struct.pack(form, value % (1 << 8 * width))
    path.write_bytes(content)
    try:
        found = read_all(path)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert sum(tensor.nbytes for tensor in found.values()) <= len(content)


def fuzzed_places(cache=[]):  # noqa: B006
    return cache or cache.extend(metadata(SOURCE)) or cache


@settings(deadline=None, max_examples=100)
@given(content=st.binary(max_size=300))
def test_fuzz_behind_the_signature(content, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "noise.h5"
    path.write_bytes(hdf5.SIGNATURE + content)
    assert is_h5(path)
    refuse(path)


# What h5py can write and Keras does not


def test_links(make, tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["weights"] = np.arange(3)
    refuse(make(lambda f: f.update(soft=h5py.SoftLink("/layer/good:0"))), "soft link")
    link = h5py.ExternalLink("secret.h5", "/weights")
    refuse(make(lambda f: f.update(out=link)), "links to other files")
    refuse(make(lambda f: f["layer"].update({"out": link})), "links to other files, at 'layer'")
    refuse(make(lambda f: f.update(again=f["layer/good:0"])), "second name for one object")
    refuse(make(lambda f: f.update({"layer/circle": f["layer"]})), "second name for one object")
    refuse(make(lambda f: f.update({"layer/circle": f["/"]})), "second name for one object")


def test_other_storage(make, tmp_path):
    rows = np.arange(600.0).reshape(30, 20)
    (tmp_path / "raw").write_bytes(rows.tobytes())
    outside = [(str(tmp_path / "raw"), 0, rows.nbytes)]
    virtual = h5py.VirtualLayout((6,), "f8")
    virtual[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (6,))
    cases = {
        "in another file": lambda f: f.create_dataset("out", (30, 20), "f8", external=outside),
        "compressed": lambda f: f.create_dataset("zip", data=rows, compression="gzip"),
        "compressed|in chunks": lambda f: f.create_dataset("s", data=rows, shuffle=True),
        "in chunks": lambda f: f.create_dataset("chunks", data=rows, chunks=(7, 3)),
        "never written": lambda f: f.create_dataset("hole", (1 << 40, 5), "f4"),
        "more than any file holds": lambda f: f.create_dataset("hole", (1 << 50, 5), "f4"),
        "in chunks or elsewhere": lambda f: f.create_virtual_dataset("virtual", virtual),
        "without a shape": lambda f: f.create_dataset("null", data=h5py.Empty("f4")),
        "share a type": lambda f: (
            f.update(type=np.dtype("f4")),
            f.create_dataset("shared", (3,), f["type"]),
        ),
        "neither group nor dataset": lambda f: f.update(type=np.dtype("f4")),
    }
    for match, fill in cases.items():
        refuse(make(fill), match)


def test_a_bomb_is_not_unpacked(make):
    """A petabyte in chunks, none of which is there, and a gigabyte of zeros in a few kilobytes."""
    options = {"chunks": (1 << 20,), "compression": "gzip"}
    refuse(make(lambda f: f.create_dataset("bomb", (1 << 48,), "f4", **options)), "compressed")
    path = make(lambda f: f.create_dataset("bomb", data=np.zeros(1 << 22, "i1"), **options))
    assert path.stat().st_size < 1 << 16
    refuse(path, "compressed")


def test_newer_layouts(make):
    refuse(make(lambda f: None, libver="latest"), "HDF5 1.8 or later")
    refuse(make(lambda f: None, libver=("v108", "v108")), "HDF5 1.8 or later")
    refuse(make(lambda f: None, track_order=True), "groups of HDF5 1.8|headers of HDF5 1.8")
    refuse(make(lambda f: f.create_group("g", track_order=True)), "groups of HDF5 1.8|headers of")
    refuse(make(lambda f: f.update({"naïve": [1.0]})), "groups of HDF5 1.8")


def test_too_deep(make):
    refuse(make(lambda f: f.create_group("/".join("g" * 70))), "groups in one another")


# Lies that h5py does not write


def patched(path, old, new, count=None):
    content = path.read_bytes()
    assert count is None or content.count(old) == count
    path.write_bytes(content.replace(old, new, 1))
    return path


def test_a_shape_that_lies(make):
    shape = struct.pack("<2Q", 2, 3)
    for sizes in ((3, 3), (2, 1 << 40), (1 << 63, 2), (0, 3), (1, 3)):
        path = patched(make(lambda f: None), shape, struct.pack("<2Q", *sizes))
        if 0 in sizes:
            assert read_all(path)["layer/good:0"].shape == (0, 3)
        else:
            refuse(path, "layer/good:0")


def test_tensors_that_share_bytes(make):
    """A thousand of one megabyte in a file of one megabyte would be a gigabyte of weights."""
    path = make(lambda f: f.update({"layer/other:0": np.arange(6.0).reshape(2, 3) + 7}))
    with H5Reader(path) as reader:
        good, other = (reader._homes[n]._datasets[n].offset for n in reader.tensors)
    patched(path, struct.pack("<2Q", other, 48), struct.pack("<2Q", good, 48), 1)
    refuse(path, "'layer/good:0' and 'layer/other:0' share bytes")


def test_addresses_beyond_the_file(make):
    path = make(lambda f: None)
    with H5Reader(path) as reader:
        offset = reader._homes["layer/good:0"]._datasets["layer/good:0"].offset
    content = path.read_bytes()
    for address in (len(content) - 47, len(content), 1 << 40, (1 << 64) - 49, (1 << 64) - 2):
        path.write_bytes(content)
        refuse(patched(path, struct.pack("<2Q", offset, 48), struct.pack("<2Q", address, 48), 1))


def test_circles_end(make):
    """A node that is its own child, and a header that goes on in itself."""
    path = make(lambda f: [f.create_group(f"g/{number}") for number in range(300)])
    content = path.read_bytes()
    nodes = [at for at in range(0, len(content), 8) if content[at : at + 6] == b"TREE\0\1"]
    assert nodes
    for at in nodes:
        changed = bytearray(content)
        changed[at + 32 : at + 40] = struct.pack("<Q", at)
        path.write_bytes(changed)
        refuse(path)
    path = make(lambda f: [f.attrs.update({f"a{n}": n}) for n in range(30)])
    content = path.read_bytes()
    found = 0
    for at in range(0, len(content) - 24, 8):
        if content[at : at + 4] == b"\x10\0\x10\0":
            changed = bytearray(content)
            place = struct.unpack_from("<Q", content, at + 8)[0]
            changed[at + 8 : at + 24] = struct.pack("<2Q", at, 24)
            path.write_bytes(changed)
            refuse(path)
            changed[at + 8 : at + 24] = struct.pack("<2Q", place, 1 << 40)
            path.write_bytes(changed)
            refuse(path, "bytes at")
            found += 1
    assert found


@pytest.mark.parametrize("name", [b"", b".", b"a/b:0", b"good:0", b"\xff\xfe:0"])
def test_names_that_lie(name, make):
    path = make(lambda f: f.update({"layer/twin_x:0": [1.0]}))
    refuse(patched(path, b"twin_x:0", name.ljust(8, b"\0")), "has the name|no UTF-8")


def test_few_bytes_of_headers(make, monkeypatch):
    path = make(lambda f: None)
    monkeypatch.setattr(hdf5, "_MAX_METADATA", 700)
    refuse(path, "more bytes than")


def test_attributes_that_lie(make):
    """What a file says of its writer is shown in one line, or not at all."""
    path = make(lambda f: f.attrs.update(keras_version="2\n1", backend="x"))
    with H5Reader(path) as reader:
        assert reader.software is None
    path = make(lambda f: f.attrs.update(keras_version="2" * 900, backend="\x1b[2J"))
    with H5Reader(path) as reader:
        assert reader.software == "Keras " + "2" * 40
    path = make(lambda f: f.attrs.update(keras_version=np.float32(2), backend=["a", "b"]))
    with H5Reader(path) as reader:
        assert reader.software is None
        assert torch.equal(reader.read("layer/good:0"), torch.arange(6.0).double().reshape(2, 3))
    path = make(lambda f: f.attrs.update(keras_version="2.18.0"))
    refuse(patched(path, b"GCOL", b"GCOM", 1), "no strings")
