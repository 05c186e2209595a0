"""What every writer keeps: the same bits come back, and one tensor is held at a time.

What is one format's own (how Keras groups weights, how safetensors are sharded) stands in the
format's file.
"""

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_bert_impl.conversion.readers.h5 import H5Reader
from hf_bert_impl.conversion.tensors import DTYPES, TensorInfo
from hf_bert_impl.errors import InputError
from tests.conversion.cases import FIXTURES, FORMATS, Memory, bits

ONES = torch.ones(3)


#: Fixtures that the software wrote, and that are written again byte for byte. HDF5 may lay the same
#: datasets out in many ways: test_h5 compares by h5py.
SAME_BYTES = {
    "safetensors": (
        "hf_safetensors",
        "hf_base_no_prefix",
        "hf_mlm_no_pooler",
        "hf_bf16_classifier",
    ),
    "flax": ("flax", "flax_classifier"),
    "tf1": ("tf1_squad", "tf1_classifier"),
}
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
EVERY = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
#: Memory holds what it holds: `torch.save` wants all tensors at once.
STREAMING = pytest.mark.parametrize(
    "form", [f for name, f in FORMATS.items() if name != "torch"], ids=lambda f: f.file
)


def assert_comes_back(form, folder, tensors):
    given = Memory(tensors)
    form.write_to(folder, given.tensors, given.read)
    with form.reader(folder / form.file) as reader:
        assert dict(reader.tensors) == given.tensors
        for name, tensor in tensors.items():
            found = reader.read(name)
            assert bits(found) == bits(tensor.detach()), name
            assert found.data_ptr() % found.itemsize == 0, name


@EVERY
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
    if form.reader is not H5Reader:  # where such names are a layout of its own
        tensors["zażółć/東京"] = torch.arange(11)
    assert_comes_back(form, tmp_path, tensors)


@EVERY
@settings(deadline=None, max_examples=40)
@given(
    kinds=st.lists(
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=4)),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 9),
)
def test_round_trip(form, kinds, seed, tmp_path_factory):
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        f"layer_{number % 2}/inner/{number}:0": (torch.randn(shape, generator=generator) * 9).to(
            DTYPES[dtype]
        )
        for number, (dtype, shape) in enumerate(kinds)
    }
    assert_comes_back(form, tmp_path_factory.mktemp("round"), tensors)


@pytest.mark.parametrize(
    ("form", "fixture"),
    [(FORMATS[name], fixture) for name, fixtures in SAME_BYTES.items() for fixture in fixtures],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_written_as_the_software_does(form, fixture, tmp_path):
    with form.reader(FIXTURES / fixture / form.file) as reader:
        files = form.write_to(tmp_path, reader.tensors, reader.read)
        assert [file.name for file in files] == [file.name for file in reader.files]
        for written, original in zip(files, reader.files, strict=True):
            assert written.read_bytes() == original.read_bytes()
    assert sorted(tmp_path.iterdir()) == sorted(files)


@STREAMING
def test_one_tensor_at_a_time(form, tmp_path):
    alive = []

    def read(name):
        gc.collect()
        held = sum(watch() is not None for watch in alive)
        assert held <= 1  # the one before, until this one is there
        tensor = torch.full((300, 7), float(len(alive)))
        alive.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    names = [f"layer/weight_{number}:0" for number in range(5)]
    form.write_to(tmp_path, {n: TensorInfo(n, (300, 7), "float32") for n in names}, read)
    assert len(alive) == 5


@EVERY
@pytest.mark.parametrize(
    "tensor", [torch.ones(4), torch.ones(3, 1), torch.ones(3).half()], ids=["size", "axes", "dtype"]
)
def test_a_tensor_that_is_not_as_announced(form, tensor, tmp_path):
    infos = {"a/b": TensorInfo("a/b", (3,), "float32")}
    with pytest.raises(InputError, match=r"'a/b' came as .*; expected float32 \[3\]"):
        form.write_to(tmp_path, infos, lambda name: tensor)


@EVERY
def test_dtypes_and_folders_that_there_are_not(form, tmp_path):
    with pytest.raises(InputError, match=r"'a/b'.* string"):
        form.write_to(tmp_path, {"a/b": TensorInfo("a/b", (3,), "string")}, lambda name: ONES)
    with pytest.raises((InputError, OSError), match="nowhere"):
        infos = {"a/b": TensorInfo("a/b", (3,), "float32")}
        form.write_to(tmp_path / "nowhere", infos, lambda name: ONES)


@pytest.mark.parametrize(
    ("form", "names"),
    [(FORMATS[name], names) for name, wrong in WRONG_NAMES.items() for names in wrong],
    ids=lambda value: ascii(value)[:30] if isinstance(value, tuple) else value.file,
)
def test_names_that_cannot_be_written(form, names, tmp_path):
    given = Memory(dict.fromkeys(names, ONES))
    with pytest.raises(InputError):
        form.write_to(tmp_path, given.tensors, given.read)
