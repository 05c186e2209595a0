"""The contract of all readers: the tensors of the format's own library, or one clear error.

The checkpoints were written by the original software. They are read here, cut, changed and mixed
up. test_damages has files that lie, and test_convert compares what the models compute.
"""

import json
import random
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.formats import FORMATS, format_of, matches
from hf_bert_impl.conversion.tensors import DTYPES
from hf_bert_impl.errors import InputError
from tests.conversion.cases import FIXTURES, assert_same, read, read_all, refuse

# --- whole files -----------------------------------------------------------------------------


def test_equals_tensorflow():
    """The tensors that TensorFlow's own reader gave, bfloat16 as uint16."""
    path = FIXTURES / "tf2_checkpoint/ckpt-1.index"
    found = read_all("tf1", path)
    with np.load(path.with_name("expected.npz")) as arrays:
        assert list(found) == sorted(arrays)
        for name, array in arrays.items():
            numbers = found[name]
            if array.dtype == np.uint16:
                assert numbers.dtype == torch.bfloat16
                numbers = numbers.view(torch.uint16)
            assert_same({name: numbers}, {name: torch.from_numpy(array)})


@pytest.mark.parametrize("form", FORMATS)
def test_signatures(form):
    """Every file of the format is known by its content, and none of another one."""
    files = [path for path in FIXTURES.rglob("*") if path.is_file()]
    known = FORMATS[form]
    named = [path for path in files if matches(path.suffix, known.suffixes)]
    assert [path for path in files if known.is_file(path)] == named


# --- damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "damaged", "unprotected"),
    [
        ("safetensors", "hf_mlm_no_pooler/model.safetensors", 4000),
        ("torch", "hf_legacy/pytorch_model.bin", 0),
        ("torch", "pytorch_pretrained_bert/pytorch_model.bin", 14_000),
        ("flax", "flax_sharded/flax_model-00002-of-00002.msgpack", 300),
        ("h5", "tf2_h5_sharded/tf_model-00003-of-00007.h5", 2000),
        ("tf1", "tf1_sharded/bert_model.ckpt.data-00001-of-00002", 0),
        ("tf1", "tf2_checkpoint/ckpt-1.index", 0),
    ],
)
def test_flipped_bits_and_cut_files(form, damaged, unprotected, tmp_path):
    """A flipped bit is an error, or has no effect; without checksums it may change a number.

    `unprotected` is the number of bytes of names, shapes and places; 0 with checksums.
    """
    file = shutil.copytree((FIXTURES / damaged).parent, tmp_path / "copy") / Path(damaged).name
    opened = file.with_name("bert_model.ckpt.index") if ".data-" in file.name else file
    rng = random.Random(0)
    expected, content, refusals = read_all(form, opened), file.read_bytes(), 0
    for _ in range(40):
        flipped = bytearray(content)
        flipped[rng.randrange(unprotected or len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(flipped)
        try:
            tensors = read_all(form, opened)
        except InputError as error:
            assert "\n" not in str(error)
            refusals += 1
        else:
            if not unprotected:
                assert_same(tensors, expected)
    assert refusals >= (2 if unprotected else 20)
    size = len(content)
    for end in {*range(20), *range(0, size, max(1, size // 13)), size - 5, size - 1}:
        file.write_bytes(content[:end])
        refuse(form, opened)
    file.unlink()
    line = refuse(form, opened)
    assert opened == file or f"{file} is missing. Download all" in line


def test_a_partitioned_variable():
    """By tf.compat.v1's Saver(sharded=True) of TensorFlow 2.21 with fixed_size_partitioner."""
    words = "is a partitioned variable; save it again"
    refuse("tf1", FIXTURES / "tf1_partitioned/model.ckpt-7.index", words)


# --- several files ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "index"),
    [
        ("safetensors", "hf_safetensors_sharded/model.safetensors.index.json"),
        ("torch", "hf_legacy_sharded/pytorch_model.bin.index.json"),
        ("flax", "flax_sharded/flax_model.msgpack.index.json"),
        ("h5", "tf2_h5_sharded/tf_model.h5.index.json"),
    ],
)
def test_shards_that_do_not_fit_their_index(form, index, tmp_path):
    path = FIXTURES / index
    path = shutil.copytree(path.parent, tmp_path / "shards") / path.name
    table = json.loads(path.read_text())
    weight_map = table["weight_map"]

    def expect(match):
        path.write_text(json.dumps(table))
        return refuse(form, path, match)

    shards = sorted({*weight_map.values()})
    assert read(form, path).files == (path, *map(path.with_name, shards))
    name = next(iter(weight_map))
    stored = name.partition("/")[2] if form == "h5" else name
    home = weight_map.pop(name)
    expect(f"differ on 1 tensors .'{stored}'")
    other = next(file for file in weight_map.values() if file != home)
    weight_map[name] = other
    expect(f"differ on .*'{stored}'")
    weight_map[name] = home
    shutil.copy(path.parent / home, path.parent / other)
    expect("both .* have ")
    (path.parent / other).unlink()
    expect(other)


# --- HDF5 as any option of h5py writes it ----------------------------------------------------

ROWS = np.arange(600, dtype="f4").reshape(30, 20)
DATASETS = {
    "gzip": {"compression": "gzip", "compression_opts": 9, "shuffle": True},
    "lzf": {"compression": "lzf"},
    "sums": {"fletcher32": True},
    "growing": {"chunks": True, "maxshape": (None, 20)},
    "scaled": {"scaleoffset": 3},
}
KINDS = ("f2", "f4", "f8", "i1", "i4", "i8", "u1", "?", ">f4", ">f8", ">i2")
VALUES = {
    "naïve": np.array([1.0]),
    "kinds/nan": np.array([np.nan, np.inf, -0.0], "f4"),
    "kinds/none": np.zeros((0, 7), "f4"),
    "kinds/scalar": np.float32(-0.0),
    **{f"kinds/{kind}": (ROWS[:3] % 9).astype(kind) for kind in KINDS},
}


@pytest.mark.parametrize(
    "options",
    [
        {"libver": "latest"},
        {"libver": "earliest", "userblock_size": 512},
        {"track_order": True},
        {"fs_strategy": "page", "fs_persist": True},
    ],
    ids=str,
)
def test_every_option_of_h5py(options, tmp_path):
    path = tmp_path / "some.bin"  # the content tells the format
    with h5py.File(path, "w", **options) as file:
        file.attrs.update(keras_version=np.bytes_(b"2.1.6" * 99), backend="\x1b[2J")
        for name, given in DATASETS.items():
            file.create_dataset(f"layer/{name}:0", data=ROWS, **given)
        for name, value in VALUES.items():
            file[name] = value
    assert format_of(path) == "h5"
    assert read("h5", path).software == "Keras " + ("2.1.6" * 8)  # cut, and on one line
    expected = {f"layer/{name}:0": ROWS for name in DATASETS} | VALUES
    native = {x: np.array(value, value.dtype.newbyteorder("=")) for x, value in expected.items()}
    tensors = {name: torch.from_numpy(value) for name, value in native.items()}
    assert_same(read_all("h5", path), tensors)


# --- files of torch.save, of which no code is run --------------------------------------------


@pytest.mark.parametrize(("zipped", "protocol"), [(True, 2), (True, 5), (False, 2), (False, 4)])
def test_views_ties_and_parameters(zipped, protocol, tmp_path):
    torch.manual_seed(0)
    whole = torch.randn(7, 5)
    tied = torch.randn(3, 2)
    state = {name: torch.tensor([[0, 1], [3, 100]]).to(dtype) for name, dtype in DTYPES.items()}
    state |= {
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "transposed": whole.T,
        "column": whole[:, 2],
        "steps": whole[1::2, ::3],
        "tied": tied,
        "also tied": tied,
        "one, expanded": torch.arange(4).expand(1, -1),
        "frozen": torch.nn.Parameter(torch.randn(3), requires_grad=False),
    }
    path = tmp_path / "any.pt"
    for has_checksums in (True, False):
        torch.serialization.set_crc32_options(has_checksums)
        try:
            torch.save(state, path, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
        finally:
            torch.serialization.set_crc32_options(True)
        assert format_of(path) == "torch"
        assert_same(read_all("torch", path), state)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_checkpoint_of_a_module_and_its_optimizer(zipped, tmp_path):
    layers = torch.nn.ModuleList([torch.nn.LayerNorm(2, eps=0.5), torch.nn.Dropout(0.25)])
    model = torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False), torch.nn.BatchNorm1d(2), *layers)
    model.register_buffer("kept", torch.randn(2))
    model.register_buffer("left_out", torch.randn(2), persistent=False)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    model.tied, model.list = model[2], layers
    value = {
        "model": model,
        "optimizer": optimizer.state_dict(),
        "random": {"numpy": np.arange(3), "torch": torch.arange(5, dtype=torch.uint8)},
        "others": [torch.device("cpu"), torch.float16, torch.Size([3, 2]), {3, 4}, 3**5000, None],
        5: {True: torch.ones(1), "best": np.float64(0.5)},
    }
    expected = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        expected |= {f"optimizer.state.{number}.{name}": state[name] for name in state}
    expected |= {"random.torch": value["random"]["torch"], "5.True": torch.ones(1)}
    path = tmp_path / "checkpoint.pt"
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    assert_same(read_all("torch", path), expected)
    attributes = read("torch", path).attributes
    assert attributes["model.list.0.eps"] == 0.5
    assert attributes["model.list.1.p"] == 0.25
    assert not [name for name in attributes if "_parameters" in name or "_modules" in name]
