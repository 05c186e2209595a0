"""The contract of all writers: the same bits come back, and one tensor is held at a time.

Details of one format (how Keras groups weights, how safetensors are sharded) are tested in that
format's file.
"""

import sys
import weakref

import pytest
import torch

from hf_bert_impl.conversion.tensors import DTYPES, TensorInfo
from hf_bert_impl.errors import InputError
from tests.conversion.cases import EVERY_FORMAT, FIXTURES, FORMATS, Memory, bits

ONES = torch.ones(3)

#: Fixtures that the software wrote, and that are written again byte for byte. HDF5 may lay the same
#: datasets out in many ways: test_h5 compares by h5py.
SAME_BYTES = (
    *(("safetensors", name) for name in ("hf_safetensors", "hf_mlm_no_pooler")),
    *(("safetensors", "hf_bf16_classifier"), ("flax", "flax"), ("flax", "flax_classifier")),
    *(("tf1", "tf1_squad"), ("tf1", "tf1_classifier")),
)
#: Names that cannot stand in one file.
WRONG_NAMES = {
    "safetensors": (("__metadata__",), ("\ud800",)),
    "flax": (("a", "a/b"), ("a/b", "a"), ("a/b", "a/b/c"), ("a/\udc80",)),
    "tf1": (("", "a"), ("\ud800", "a"), ("\0x", "a")),
    "h5": (
        *(("kernel:0",), ("/layer/kernel:0",), ("layer/",), ("layer//kernel:0",), ("",)),
        *(("a/./b",), ("a/b\0c",), ("layer/\udc80",)),
        *(("layer/a", "layer/a/b"), ("layer/a/b", "layer/a")),
        tuple(f"a/{number}:0" for number in range(5000)),  # more than a header can list
    ),
}


def assert_comes_back(form, folder, tensors):
    """By our reader, and by the format's own library where there is one."""
    given = Memory(tensors)
    files = form.write_to(folder, given.tensors, given.read)
    assert sorted(files) == sorted(path for path in folder.iterdir() if path.is_file())
    with form.reader(folder / form.file) as reader:
        assert dict(reader.tensors) == given.tensors
        for name, tensor in tensors.items():
            found = reader.read(name)
            assert bits(found) == bits(tensor), name
            assert found.data_ptr() % found.itemsize == 0, name
    if form is not FORMATS["tf1"]:
        expected = form.library(folder / form.file)
        assert expected.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert expected[name].shape == tensor.shape, name
            assert bits(expected[name].to(tensor.dtype)) == bits(tensor), name


@EVERY_FORMAT
def test_every_dtype_shape_and_view_comes_back(form, tmp_path):
    generator = torch.Generator().manual_seed(7)
    whole = torch.randn(7, 5, generator=generator)
    tensors = {
        f"{dtype}/of_{'x'.join(map(str, shape))}": torch.randint(
            -100, 100, shape, generator=generator
        ).to(DTYPES[dtype])
        for dtype in DTYPES
        for shape in ((), (3,), (0, 4), (2, 3, 5), (5, 0))
    }
    tensors |= {
        "view/transposed": whole.T,
        "view/column": whole[:, 2],
        "view/steps": whole[1::2, ::3].bfloat16(),
        "view/same": whole[:1].expand(3, 5),
        "odd/numbers": torch.tensor([float("nan"), -0.0, float("inf")]),
        "learned/weight": torch.nn.Parameter(whole[3]),
    }
    if form is not FORMATS["h5"]:  # where such names are a layout of its own
        tensors |= {"zażółć/東京": torch.arange(11), 'a/"\\': ONES}
    assert_comes_back(form, tmp_path, tensors)


@pytest.mark.parametrize(("kind", "fixture"), SAME_BYTES)
def test_written_as_the_software_does(kind, fixture, tmp_path):
    form = FORMATS[kind]
    with form.reader(FIXTURES / fixture / form.file) as reader:
        files = form.write_to(tmp_path, reader.tensors, reader.read)
        assert [file.name for file in files] == [file.name for file in reader.files]
        for written, original in zip(files, reader.files, strict=True):
            assert written.read_bytes() == original.read_bytes()


@EVERY_FORMAT
def test_one_tensor_at_a_time(form, tmp_path):
    if form is FORMATS["torch"]:
        pytest.skip("torch.save wants all tensors at once")
    alive = []

    def read(name):
        held = sum(watch() is not None for watch in alive)
        assert held <= 1  # the one before, until this one is there
        tensor = torch.full((300, 7), float(len(alive)))
        alive.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    names = [f"layer/weight_{number}:0" for number in range(5)]
    form.write_to(tmp_path, {n: TensorInfo(n, (300, 7), "float32") for n in names}, read)
    assert len(alive) == 5


def test_a_view_does_not_take_its_storage_along(tmp_path):
    form, whole = FORMATS["torch"], torch.zeros(1000, 1000)
    infos = {"row": TensorInfo("row", (1000,), "float32")}
    (file,) = form.write_to(tmp_path, infos, lambda name: whole[3])
    assert file.stat().st_size < 8000


@EVERY_FORMAT
@pytest.mark.parametrize(
    ("dtype", "folder", "tensor", "match"),
    [
        ("float32", "", torch.ones(4), r"'a/b' came as .*; expected float32 \[3\]"),
        ("float32", "", torch.ones(3, 1), r"'a/b' came as .*; expected float32 \[3\]"),
        ("float32", "", ONES.half(), r"'a/b' came as .*; expected float32 \[3\]"),
        ("string", "", ONES, r"'a/b'.* string"),
        ("float32", "nowhere", ONES, "nowhere"),
    ],
    ids=["size", "axes", "dtype", "no number", "folder"],
)
def test_what_cannot_be_written(form, dtype, folder, tensor, match, tmp_path):
    infos = {"a/b": TensorInfo("a/b", (3,), dtype)}
    with pytest.raises((InputError, OSError), match=match):
        form.write_to(tmp_path / folder, infos, lambda name: tensor)


@pytest.mark.parametrize("kind", WRONG_NAMES)
def test_names_that_cannot_be_written(kind, tmp_path, subtests):
    for names in WRONG_NAMES[kind]:
        given = Memory(dict.fromkeys(names, ONES))
        with subtests.test(ascii(names[:3])), pytest.raises(InputError):
            FORMATS[kind].write_to(tmp_path, given.tensors, given.read)


@pytest.mark.parametrize(("kind", "library"), [("h5", "h5py"), ("tf1", "google_crc32c")])
def test_a_missing_library_is_named(kind, library, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    given = Memory({"a/b": ONES})
    with pytest.raises(ValueError, match=r"pip install -e '\.\[convert\]'"):
        FORMATS[kind].write_to(tmp_path, given.tensors, given.read)
