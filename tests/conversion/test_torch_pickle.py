"""Checkpoints of torch.save: read as torch.load reads them, or refused, and nothing runs."""

import collections
import io
import os
import pickle
import struct
import tarfile
import zipfile
from functools import partial

import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers.torch_pickle import TorchReader, is_torch
from hf_bert_impl.conversion.tensors import DTYPES, TensorInfo
from hf_bert_impl.conversion.writers.torch_zip import write_torch
from hf_bert_impl.errors import InputError
from tests.conversion import cases
from tests.conversion.cases import FIXTURES, Runs, assert_same

STATE_DICTS = (
    "pytorch_pretrained_bert/pytorch_model.bin",
    "pytorch_pretrained_bert_classifier/pytorch_model.bin",
    "pytorch_pretrained_bert_squad/pytorch_model.bin",
    "pytorch_pretrained_bert_0.6.2/pytorch_model.bin",
    "hf_legacy/pytorch_model.bin",
    "hf_legacy_sharded/pytorch_model-00002-of-00003.bin",
    "hf_legacy_fp16_token_classifier/pytorch_model.bin",
    "codertimo/bert.state_dict.pt",
    "codertimo/bertlm.state_dict.pt",
    "codertimo/torch1.0/bert.state_dict.pt",
)
ZIP = FIXTURES / "hf_legacy" / "pytorch_model.bin"
LEGACY = FIXTURES / "pytorch_pretrained_bert" / "pytorch_model.bin"
#: Of pickletools, for the strings of Python 2.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape")
CONTAINERS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
#: What any dtype can hold.
NUMBERS = [[0, 1, 2], [3, 100, 5]]
read_all, refuse = (partial(check, TorchReader) for check in (cases.read_all, cases.refuse))


def save(path, value, zipped=True, **options):
    torch.save(value, path, _use_new_zipfile_serialization=zipped, **options)
    return path


def view(size, offset, shape, strides):
    """A tensor that torch would not make."""
    storage = torch.zeros(size)._typed_storage()
    rebuild = torch._utils._rebuild_tensor_v2
    return Runs(rebuild, storage, offset, shape, strides, False, collections.OrderedDict())


def entries(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(path, content, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


# --- the checkpoints of the original software ------------------------------------------------


@pytest.mark.parametrize("name", STATE_DICTS)
def test_equals_torch(name):
    path = FIXTURES / name
    assert is_torch(path)
    found, expected = read_all(path), torch.load(path, weights_only=True)
    assert_same(found, expected)
    assert list(found) == list(expected)


@pytest.mark.parametrize("folder", ["codertimo", "codertimo/torch1.0"])
def test_pickled_module(folder):
    path = FIXTURES / folder / "bert.model.ep0"
    assert is_torch(path)
    expected = torch.load(FIXTURES / folder / "bert.state_dict.pt", weights_only=True)
    assert_same(read_all(path), expected)
    with TorchReader(path) as reader:
        facts = reader.attributes
    assert (facts["hidden"], facts["n_layers"], facts["attn_heads"]) == (32, 2, 4)
    assert facts["transformer_blocks.1.attention.h"] == 4
    assert facts["transformer_blocks.0.attention.d_k"] == 8
    assert facts["transformer_blocks.0.dropout.p"] == 0.1
    assert facts["embedding.token.padding_idx"] == 0
    assert facts["training"] is True
    assert not [name for name in facts if "_parameters" in name or "_modules" in name]


def test_what_a_file_says_of_itself():
    with TorchReader(FIXTURES / "hf_legacy" / "pytorch_model.bin") as reader:
        assert reader.format == "torch"
        assert "zip container" in reader.software
        assert reader.attributes == {}
    with TorchReader(FIXTURES / "pytorch_pretrained_bert" / "pytorch_model.bin") as reader:
        assert "before torch 1.6" in reader.software


# --- all that a state dict may hold ----------------------------------------------------------


@CONTAINERS
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_dtypes_shapes_and_views(zipped, protocol, tmp_path):
    torch.manual_seed(0)
    whole = torch.randn(7, 5)
    tied = torch.randn(3, 2)
    state = {name: torch.tensor(NUMBERS).to(dtype) for name, dtype in DTYPES.items()}
    state |= {
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "empty of bools": torch.zeros(4, 0, dtype=torch.bool),
        "transposed": whole.T,
        "column": whole[:, 2],
        "row": whole[3],
        "steps": whole[1::2, ::3],
        "tied": tied,
        "also tied": tied,
        "one, expanded": torch.arange(4).expand(1, -1),
        "parameter": torch.nn.Parameter(torch.randn(2)),
        "frozen": torch.nn.Parameter(torch.randn(3), requires_grad=False),
    }
    path = save(tmp_path / "any.pt", state, zipped, pickle_protocol=protocol)
    assert is_torch(path)
    assert_same(read_all(path), state)


@CONTAINERS
def test_tensors_are_aligned_and_in_the_mapped_file(zipped, tmp_path):
    path = save(
        tmp_path / "any.pt", {"a": torch.zeros(5, dtype=torch.int8), "b": torch.ones(3)}, zipped
    )
    with TorchReader(path) as reader:
        twice = [reader.read("b") for _ in range(2)]
        assert all(tensor.data_ptr() % 4 == 0 for tensor in twice)
        assert not zipped or twice[0].data_ptr() == twice[1].data_ptr()
    assert torch.equal(twice[0], torch.ones(3))  # as long as it is held


@CONTAINERS
def test_nested_checkpoint(zipped, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    value = {
        "epoch": 7,
        "state_dict": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "best": np.float64(0.5),
        "random": {"numpy": np.arange(3), "torch": torch.arange(5, dtype=torch.uint8)},
        "name": "x" * 200,
        "device": torch.device("cpu"),
        "dtype": torch.float16,
        "sizes": torch.Size([3, 2]),
        "seen": {3, 4},
        "big": 3**5000,
        "none": None,
        5: {True: torch.ones(1)},
    }
    path = save(tmp_path / "checkpoint.pt", value, zipped)
    found = read_all(path)
    state = optimizer.state_dict()["state"]
    assert_same(
        found,
        {
            "state_dict.weight": model.weight.data,
            "state_dict.bias": model.bias.data,
            **{f"optimizer.state.0.{name}": tensor for name, tensor in state[0].items()},
            **{f"optimizer.state.1.{name}": tensor for name, tensor in state[1].items()},
            "random.torch": value["random"]["torch"],
            "5.True": torch.ones(1),
        },
    )
    with TorchReader(path) as reader:
        assert reader.attributes == {}


@CONTAINERS
def test_module_equals_its_state_dict(zipped, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        collections.OrderedDict(
            first=torch.nn.Linear(3, 5, bias=False),
            norm=torch.nn.BatchNorm1d(5),
            attention=torch.nn.MultiheadAttention(5, 1),
            list=torch.nn.ModuleList([torch.nn.LayerNorm(4, eps=0.5), torch.nn.Dropout(0.25)]),
        )
    )
    model.first.register_buffer("kept", torch.randn(2))
    model.first.register_buffer("left_out", torch.randn(2), persistent=False)
    model.tied = model.list[0]
    path = save(tmp_path / "model.pt", {"model": model}, zipped)
    expected = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    assert_same(read_all(path), expected)
    with TorchReader(path) as reader:
        assert reader.attributes["model.list.0.eps"] == 0.5
        assert reader.attributes["model.list.1.p"] == 0.25


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("sparse", lambda ones: ones.to_sparse()),
        ("sparse", lambda ones: ones.to_sparse_csr()),
        ("quantized", lambda ones: torch.quantize_per_tensor(ones, 0.5, 0, torch.qint8)),
        ("meta", lambda ones: ones.to("meta")),
        ("conjugated", lambda ones: ones.to(torch.complex64).conj()),
    ],
)
def test_tensors_of_other_kinds_are_refused_by_name(kind, make, tmp_path):
    state = {"fine": torch.ones(1), "layer": {"odd": make(torch.ones(2, 3))}}
    path = save(tmp_path / "some.pt", state)
    with pytest.raises(InputError, match=f"tensor 'layer.odd' of .* is .*{kind}"):
        TorchReader(path)


def test_file_without_checksums(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        path = save(tmp_path / "some.pt", {"a": torch.arange(5)})
    finally:
        torch.serialization.set_crc32_options(True)
    assert_same(read_all(path), {"a": torch.arange(5)})


def test_bools_are_0_or_1(tmp_path):
    """As in test_readers, with what torch.save writes: the writer here makes 0 and 1 of them."""
    stored = torch.tensor([0, 1, 2, 255], dtype=torch.uint8).view(torch.bool)
    path = save(tmp_path / "some.pt", {"a": stored})
    with TorchReader(path) as reader:
        assert reader.read("a").view(torch.uint8).tolist() == [0, 1, 1, 1]


# --- the old container, as older torch wrote it ----------------------------------------------


class _Storage:
    """Pickles as the persistent id of a storage of floats."""

    def __init__(self, key, size, view=None):
        self.identity = ("storage", torch.FloatStorage, key, "cuda:0", size, view)


class _Pickler(pickle.Pickler):
    def persistent_id(self, value):
        return value.identity if isinstance(value, _Storage) else None


def legacy(path, value, storages, little=True):
    """The stream that torch.save wrote before 1.6."""
    with path.open("wb") as file:
        pickle.dump(0x1950A86A20F9469CFC6C, file, protocol=2)
        pickle.dump(1001, file, protocol=2)
        sizes = {"short": 2, "int": 4, "long": 4}
        system = {"protocol_version": 1001, "little_endian": little, "type_sizes": sizes}
        pickle.dump(system, file, protocol=2)
        _Pickler(file, protocol=2).dump(value)
        pickle.dump(list(storages), file, protocol=2)
        for numbers in storages.values():
            file.write(struct.pack(f"<q{len(numbers)}f", len(numbers), *numbers))
    return path


def test_storages_that_are_views(tmp_path):
    """Until torch 0.4 a storage could be a part of another; and `_rebuild_tensor` had no hooks."""
    rebuild = torch._utils._rebuild_tensor
    value = {
        "part": Runs(rebuild, _Storage("k", 7, ("v", 2, 4)), 1, (3,), (1,)),
        "whole": Runs(rebuild, _Storage("k", 7), 0, (7,), (1,)),
    }
    path = legacy(tmp_path / "old.bin", value, {"k": [0, 1, 2, 3, 4, 5, 6]})
    found = read_all(path)
    assert_same(found, {"part": torch.arange(3.0, 6.0), "whole": torch.arange(7.0)})
    assert torch.equal(torch.load(path, map_location="cpu")["part"], found["part"])
    value["part"] = Runs(rebuild, _Storage("k", 7, ("v", 4, 4)), 0, (3,), (1,))
    with pytest.raises(InputError, match="a view that does not lie in storage 'k'"):
        TorchReader(legacy(path, value, {"k": [0.0] * 7}))


def test_legacy_list_of_storages(tmp_path):
    tensor = Runs(torch._utils._rebuild_tensor, _Storage("k", 3), 0, (3,), (1,))
    path = tmp_path / "old.bin"
    for storages in ({}, {"j": [1, 2, 3]}, {"k": [1, 2, 3], "j": [1]}):
        with pytest.raises(InputError, match="lists other storages than its pickle names"):
            TorchReader(legacy(path, {"a": tensor}, storages))
    with pytest.raises(InputError, match="gives storage 'k' two sizes"):
        TorchReader(legacy(path, {"a": tensor}, {"k": [1, 2, 3, 4]}))
    with pytest.raises(InputError, match="ends within storage 'k'"):
        TorchReader(legacy(path, {"a": tensor}, {"k": [1, 2]}))


def test_big_endian(tmp_path):
    with pytest.raises(InputError, match="another byte order"):
        TorchReader(legacy(tmp_path / "old.bin", {}, {}, little=False))
    source, path = save(tmp_path / "new.bin", {"a": torch.ones(3)}), tmp_path / "big.bin"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            big = info.filename.endswith("/byteorder")
            new.writestr(info.filename, b"big" if big else old.read(info))
    with pytest.raises(InputError, match="another byte order"):
        TorchReader(path)


def test_tar_of_torch_0_1(tmp_path):
    path = tmp_path / "old.pt"
    with tarfile.open(path, "w") as archive:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    assert is_torch(path)
    with pytest.raises(InputError, match=r"a tar file of torch 0\.1"):
        TorchReader(path)


def test_torchscript(tmp_path):
    path = tmp_path / "script.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("data.pkl", "constants.pkl", "code/__torch__.py"):
            archive.writestr(f"script/{name}", b"N.")
    with pytest.raises(InputError, match="TorchScript"):
        TorchReader(path)


# --- code ------------------------------------------------------------------------------------


def test_nothing_runs_in_any_pickle_of_the_old_container(tmp_path):
    marker, path = tmp_path / "marker", tmp_path / "model.bin"
    gadget = pickle.dumps(Runs(os.system, f"touch {marker}"), 2)
    content = LEGACY.read_bytes()
    starts = [0]
    for _ in range(4):
        starts.append(content.index(b".\x80\x02", starts[-1]) + 1)
    for start in starts:
        path.write_bytes(content[:start] + gadget + content[start:])
        refuse(path, r"(posix|nt)\.system")
        assert not marker.exists()


def test_class_with_a_reduce_of_its_own(tmp_path):
    """A module's class may say how it is made: by a function."""
    module = torch.nn.Linear(2, 3)
    module.hook = Runs(os.getcwd)
    refuse(save(tmp_path / "model.bin", module), r"(posix|nt)\.getcwd")


# --- damage ----------------------------------------------------------------------------------


def test_checksum_names_the_tensor(tmp_path):
    content = bytearray(ZIP.read_bytes())
    storage = torch.load(ZIP, weights_only=True)["bert.pooler.dense.weight"]
    content[content.index(storage.numpy().tobytes()) + 5] ^= 4
    path = tmp_path / "flipped.bin"
    path.write_bytes(content)
    with TorchReader(path) as reader:
        reader.read("bert.pooler.dense.bias")
        for _ in range(2):
            with pytest.raises(InputError, match=r"wrong crc32 in tensor 'bert\.pooler\.dense\.w"):
                reader.read("bert.pooler.dense.weight")


# --- lies ------------------------------------------------------------------------------------

CENTRAL = {"flags": 8, "method": 10, "crc": 16, "compressed": 20, "size": 24, "offset": 42}


def edit_directory(source, path, name, **fields):
    """Change an entry of the zip's directory."""
    content = bytearray(source.read_bytes())
    at = content.index(name, content.index(b"PK\x01\x02")) - 46
    assert content[at : at + 4] == b"PK\x01\x02"
    for field, value in fields.items():
        form = "<H" if field in ("flags", "method") else "<I"
        struct.pack_into(form, content, at + CENTRAL[field], value)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"size": 0xFFFFFFF0, "compressed": 0xFFFFFFF0}, "outside the file"),
        ({"size": 0xFFFFFFFF, "compressed": 0xFFFFFFFF, "offset": 0xFFFFFFFF}, "outside the file"),
        ({"size": 1 << 30, "compressed": 1 << 30}, "outside the file"),
        ({"size": 8}, "two sizes"),
        ({"size": 8, "compressed": 8}, "has 8 bytes in .*, and names 12 of float32"),
        ({"size": 0, "compressed": 0}, "has 0 bytes"),
        ({"offset": 0xFFFFFFF0}, "outside the file"),
        ({"offset": 5}, "outside the file"),
        ({"method": 8}, "compressed or encrypted"),
        ({"method": 99}, "compressed or encrypted"),
        ({"flags": 1}, "compressed or encrypted"),
        ({"crc": 5}, "wrong crc32 in tensor 'a'"),
    ],
)
def test_lying_directory(fields, match, tmp_path):
    source = save(tmp_path / "good.bin", {"a": torch.arange(12.0)})
    refuse(edit_directory(source, tmp_path / "bad.bin", b"good/data/0", **fields), match)


def test_lying_end_of_directory(tmp_path):
    source, path = save(tmp_path / "good.bin", {"a": torch.arange(12.0)}), tmp_path / "bad.bin"
    content = source.read_bytes()
    end = content.rindex(b"PK\x05\x06")
    for place in range(4, 20, 2):
        for value in (0, 1, 0xFF, 0xFFFE, 0xFFFF):
            lying = bytearray(content)
            struct.pack_into("<H", lying, end + place, value)
            path.write_bytes(lying)
            try:
                assert torch.equal(read_all(path)["a"], torch.arange(12.0))
            except InputError as error:
                assert "\n" not in str(error)


def test_compressed_entries(tmp_path):
    content = entries(save(tmp_path / "good.bin", {"a": torch.zeros(1000, 1000)}))
    path = pack(tmp_path / "bad.bin", content, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10_000  # four million bytes, were it unpacked
    refuse(path, "compressed or encrypted")
    assert torch.equal(read_all(pack(path, content))["a"], torch.zeros(1000, 1000))


@pytest.mark.parametrize("data", [bytes(52), bytes(44), b""])
def test_storages_of_another_size(data, tmp_path):
    content = entries(save(tmp_path / "good.bin", {"a": torch.arange(12.0)[3:5]}))
    path = pack(tmp_path / "bad.bin", content | {"good/data/0": data})
    refuse(path, f"has {len(data)} bytes in good/data/0, and names 12 of float32 there")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_entries_that_are_missing_or_twice(tmp_path):
    content = entries(save(tmp_path / "good.bin", {"a": torch.ones(3)}))
    path = tmp_path / "bad.bin"
    without = {name: data for name, data in content.items() if name != "good/data/0"}
    refuse(pack(path, without), "has no entry good/data/0")
    refuse(pack(path, content | {"evil/data.pkl": b"N."}), "holds 2 pickles")
    with zipfile.ZipFile(pack(path, content), "a") as archive:
        archive.writestr("good/data/0", b"\0" * 12)
    refuse(path, "an entry of its zip file twice")


@CONTAINERS
@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [
        (0, (7,), (1,)),
        (1, (6,), (1,)),
        (6, (1,), (1,)),
        (0, (2, 3), (4, 1)),
        (0, (2,), (6,)),
        (0, (7,), (0,)),
        (0, (1 << 40,), (0,)),
        (0, (1 << 31, 1 << 31), (0, 0)),
        (0, (1 << 62, 4), (0, 0)),
        (-1, (2,), (1,)),
        (0, (-2,), (1,)),
        (0, (-2, -3), (1, 1)),
        (5, (2,), (-1,)),
        (0, (2,), (1, 1)),
        (0, (2.0,), (1,)),
        (0, ("2",), (1,)),
        (0, (True,), (1,)),
        (0, (1 << 70,), (1,)),
        (1 << 70, (1,), (1,)),
        (0, (0, 1 << 62, 4), (1, 1, 1)),
        (0, (1,) * 40, (1,) * 40),
        (0, None, (1,)),
        (0, 6, 1),
    ],
)
def test_views_that_lie(zipped, offset, shape, strides, tmp_path):
    path = save(tmp_path / "bad.bin", {"a": view(6, offset, shape, strides)}, zipped)
    refuse(path, "its pickle has a tensor")


@CONTAINERS
def test_views_that_do_not_lie(zipped, tmp_path):
    value = {"a": view(6, 1, (2, 2), (3, 1)), "b": view(6, 6, (0, 5), (5, 1))}
    found = read_all(save(tmp_path / "good.bin", value, zipped))
    assert [tensor.shape for tensor in found.values()] == [(2, 2), (0, 5)]


def test_expanded_tensor(tmp_path):
    path = save(tmp_path / "bad.bin", {"a": torch.zeros(3).as_strided((1000, 1000), (0, 0))})
    refuse(path, r"a tensor of shape \(1000, 1000\) that storage '0' cannot hold")


@pytest.mark.parametrize("size", [13, 11, 0, 1 << 40, (1 << 63) - 1])
def test_storage_sizes_that_lie(size, tmp_path):
    content = entries(save(tmp_path / "good.bin", {"a": torch.arange(12.0)}))
    pickled = content["good/data.pkl"]
    number = b"K\x0ct"  # the end of the persistent id
    assert pickled.count(number) == 1
    content["good/data.pkl"] = pickled.replace(number, b"\x8a\x08" + struct.pack("<q", size) + b"t")
    refuse(pack(tmp_path / "bad.bin", content), "has 48 bytes in|cannot hold")


# --- bombs -----------------------------------------------------------------------------------


@CONTAINERS
def test_containers_without_end(zipped, tmp_path):
    path, value = tmp_path / "bomb.bin", {"tensor": torch.ones(1)}
    shared = value
    for _ in range(40):  # 2 ** 40 names
        shared = {"a": shared, "b": shared}
    refuse(save(path, shared, zipped), "nests its containers without end")
    value["self"] = value
    refuse(save(path, value, zipped), "nests its containers without end")
    deep = torch.ones(1)
    for _ in range(100):
        deep = {"a": deep}
    refuse(save(path, deep, zipped), "nests its containers without end")


def test_modules_without_end(tmp_path):
    path, module = tmp_path / "bomb.bin", torch.nn.Linear(2, 3)
    module._modules["self"] = module
    refuse(save(path, module), "nests its containers without end")
    # A state of many attributes, shared by many modules of many names.
    module = torch.nn.Linear(2, 3)
    module.__dict__.update({f"_{n}": None for n in range(20_000)})
    shared = {str(n): module for n in range(20_000)}
    refuse(save(path, shared), "nests its containers without end")
    module = torch.nn.Linear(2, 3)
    module._non_persistent_buffers_set = {str(n) for n in range(20_000)}
    refuse(save(path, {str(n): module for n in range(20_000)}), "nests its containers without end")


def test_names(tmp_path):
    path = tmp_path / "names.bin"
    refuse(save(path, {"a\nb": torch.ones(1)}), r"the name 'a\\nb'")
    refuse(save(path, {"x" * 2000: torch.ones(1)}), "the name 'xxx")
    refuse(save(path, {"a.b": torch.ones(1), "a": {"b": torch.ones(2)}}), r"tensor 'a\.b' twice")


@pytest.mark.parametrize("value", [[torch.ones(1)], torch.ones(1), "text", 5, None, {3}])
def test_no_state_dict(value, tmp_path):
    refuse(save(tmp_path / "other.bin", value), "a state dict or a module")


# --- the writer ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hf_legacy", "pytorch_pretrained_bert"])
def test_written_file_loads_in_torch(name, tmp_path):
    source = FIXTURES / name / "pytorch_model.bin"
    target = tmp_path / "pytorch_model.bin"
    with TorchReader(source) as reader:
        assert write_torch(target, reader.tensors, reader.read) == (target,)
    expected = torch.load(source, weights_only=True)
    found = torch.load(target, weights_only=True)
    assert type(found) is collections.OrderedDict
    assert_same(found, expected)
    assert_same(read_all(target), expected)
    other = tmp_path / "another name.bin"
    with TorchReader(source) as reader:
        write_torch(other, reader.tensors, reader.read)
    assert other.read_bytes() == target.read_bytes()


def test_writer_stores_no_more_than_the_tensor(tmp_path):
    whole = torch.zeros(1000, 1000)
    infos = {"row": TensorInfo("row", (1000,), "float32")}
    write_torch(tmp_path / "a.bin", infos, lambda name: whole[3])
    assert (tmp_path / "a.bin").stat().st_size < 8000
