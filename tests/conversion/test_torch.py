"""Checkpoints of torch.save are read as by torch.load, or refused; no code runs."""

import collections
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers.torch import is_torch, read_torch
from hf_bert_impl.conversion.tensors import DTYPES
from hf_bert_impl.errors import InputError
from tests.conversion.cases import FIXTURES, FORMATS, Runs, assert_same, zipped

#: The two forms of torch.save's files.
CONTAINERS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
read_all, refuse = FORMATS["torch"].read_all, FORMATS["torch"].refuse


def save(path, value, zipped=True, **options):
    torch.save(value, path, _use_new_zipfile_serialization=zipped, **options)
    return path


# --- the checkpoints of the original software ------------------------------------------------


@pytest.mark.parametrize("folder", ["codertimo", "codertimo/torch1.0"])
def test_pickled_module(folder):
    path = FIXTURES / folder / "bert.model.ep0"
    assert is_torch(path)
    expected = torch.load(FIXTURES / folder / "bert.state_dict.pt", weights_only=True)
    assert_same(read_all(path), expected)
    attributes = read_torch(path).attributes
    assert attributes["attn_heads"] == attributes["transformer_blocks.1.attention.h"] == 4
    assert attributes["transformer_blocks.0.dropout.p"] == 0.1
    assert not [name for name in attributes if "_parameters" in name or "_modules" in name]


# --- all that a state dict may hold ----------------------------------------------------------


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
    path = save(tmp_path / "any.pt", state, zipped, pickle_protocol=protocol)
    assert is_torch(path)
    assert_same(read_all(path), state)


@CONTAINERS
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
    path = save(tmp_path / "checkpoint.pt", value, zipped)
    assert_same(read_all(path), expected)
    attributes = read_torch(path).attributes
    assert attributes["model.list.0.eps"] == 0.5
    assert attributes["model.list.1.p"] == 0.25


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("sparse", lambda ones: ones.to_sparse()),
        ("qtensor", lambda ones: torch.quantize_per_tensor(ones, 0.5, 0, torch.qint8)),
        ("meta", lambda ones: ones.to("meta")),
    ],
)
def test_tensors_of_other_kinds_are_refused_by_name(kind, make, tmp_path):
    state = {"fine": torch.ones(1), "layer": {"odd": make(torch.ones(2, 3))}}
    path = save(tmp_path / "some.pt", state)
    with pytest.raises(InputError, match=f"tensor 'layer.odd' is .*{kind}"):
        read_torch(path)


def test_file_without_checksums(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        path = save(tmp_path / "some.pt", {"a": torch.arange(5)})
    finally:
        torch.serialization.set_crc32_options(True)
    assert_same(read_all(path), {"a": torch.arange(5)})


# --- bombs -----------------------------------------------------------------------------------


def shared_containers():
    value = torch.ones(1)
    for _ in range(40):  # 2 ** 40 names
        value = {"a": value, "b": value}
    return value


def in_itself(value, names):
    names["self"] = value
    return value


def shared_modules():
    """A state of many attributes, shared by many modules of many names."""
    module = torch.nn.Linear(2, 3)
    module.__dict__.update({f"_{number}": None for number in range(20_000)})
    return {str(number): module for number in range(20_000)}


BOMBS = {
    "shared": shared_containers(),
    "in itself": in_itself(value := {"tensor": torch.ones(1)}, value),
    "module in itself": in_itself(module := torch.nn.Linear(2, 3), module._modules),
    "shared modules": shared_modules(),
}


def test_many_tensors_of_the_same_numbers(tmp_path):
    whole = torch.zeros(1 << 20)
    state = {f"layer.{number}": whole.view(1 << 10, 1 << 10) for number in range(1000)}
    refuse(save(tmp_path / "bomb.bin", state), "repeat the same few numbers")


@pytest.mark.parametrize("value", BOMBS.values(), ids=BOMBS)
def test_bombs(value, tmp_path):
    refuse(save(tmp_path / "bomb.bin", value), "nests its containers without end")


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ({"a\nb": torch.ones(1)}, r"the name 'a\\nb'"),
        ({"x" * 2000: torch.ones(1)}, "the name 'xxx"),
        ({"a.b": torch.ones(1), "a": {"b": torch.ones(2)}}, r"tensor 'a\.b' twice"),
        (torch.ones(1), "neither a state dict nor a module"),
    ],
    ids=["two lines", "long", "twice", "tensor"],
)
def test_no_state_dict(value, match, tmp_path):
    refuse(save(tmp_path / "other.bin", value), match)


LEGACY = FIXTURES / "pytorch_pretrained_bert" / "pytorch_model.bin"


def view(size, offset, shape, strides):
    """A tensor that torch would not make."""
    storage = torch.zeros(size)._typed_storage()
    rebuild = torch._utils._rebuild_tensor_v2
    return Runs(rebuild, storage, offset, shape, strides, False, collections.OrderedDict())


def entries(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(path, content, method=zipfile.ZIP_STORED):
    path.write_bytes(zipped(*content.items(), method=method))
    return path


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


# --- lies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        (20, b"\xf0\xff\xff\xff\xf0\xff\xff\xff", "more bytes than it has"),  # the sizes
        (24, b"\x08\0\0\0", "wrong crc32"),
        (42, b"\x05\0\0\0", "a damaged"),  # where it starts
        (8, b"\x01", "compressed or encrypted"),
        (16, b"\x05\0\0\0", "wrong crc32"),
    ],
)
def test_lying_directory(place, value, match, tmp_path):
    path = save(tmp_path / "bad.bin", {"a": torch.arange(12.0)})
    content = bytearray(path.read_bytes())
    at = content.rindex(b"bad/data/0") - 46 + place
    content[at : at + len(value)] = value
    path.write_bytes(content)
    refuse(path, match)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"good/data/0": bytes(52)}, "names 48 bytes in an entry of 52"),
        ({"good/data/0": b""}, "names 48 bytes in an entry of 0"),
        ({"good/data/0": None}, "has no entry good/data/0"),
        ({"evil/data.pkl": b"N."}, "holds 2 pickles"),
        ({"good/byteorder": b"big"}, "another byte order"),
        ({"good/constants.pkl": b"N.", "good/code/__torch__.py": b""}, "TorchScript"),
    ],
)
def test_entries_that_lie(changes, match, tmp_path):
    content = entries(save(tmp_path / "good.bin", {"a": torch.arange(12.0)[3:5]}))
    changed = {name: data for name, data in (content | changes).items() if data is not None}
    refuse(pack(tmp_path / "bad.bin", changed), match)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_entries_that_are_twice_or_compressed(tmp_path):
    content = entries(save(tmp_path / "good.bin", {"a": torch.zeros(1000, 1000)}))
    path = pack(tmp_path / "bad.bin", content, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10_000  # four million bytes, were it unpacked
    refuse(path, "compressed or encrypted")
    with zipfile.ZipFile(pack(path, content), "a") as archive:
        archive.writestr("good/data/0", b"\0" * 12)
    refuse(path, "zip directory has an entry twice")


@CONTAINERS
@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [
        (0, (7,), (1,)),
        (0, (2, 3), (4, 1)),
        (0, (7,), (0,)),
        (0, (1 << 62, 4), (0, 0)),
        (-1, (2,), (1,)),
        (0, (-2, -3), (1, 1)),
        (5, (2,), (-1,)),
        (0, None, (1,)),
    ],
)
def test_views_that_lie(zipped, offset, shape, strides, tmp_path):
    path = save(tmp_path / "bad.bin", {"a": view(6, offset, shape, strides)}, zipped)
    refuse(path, "a damaged PyTorch file")


def test_a_tensor_is_no_storage_and_no_dict(tmp_path):
    rebuild = torch._utils._rebuild_tensor_v2
    lie = Runs(rebuild, torch.zeros(2, 3), 0, (2,), (1,), False, collections.OrderedDict())
    refuse(save(tmp_path / "bad.bin", {"a": lie}), "a damaged")
    lie = view(6, 0, (6,), (1,))
    lie.call += (None, None, iter([(0, 1.0)]))  # by which a long tensor could be filled for ever
    refuse(save(tmp_path / "bad.bin", {"a": lie}), "twice, or of an unusual type")


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


@pytest.mark.parametrize(
    ("storages", "little", "match"),
    [
        ({"k": [1, 2, 3], "j": [1]}, True, "list of storages does not match its pickle"),
        ({"k": [1, 2, 3, 4]}, True, "gives storage 'k' two sizes"),
        ({"k": [1, 2]}, True, "two sizes"),
        ({"k": [1, 2, 3]}, False, "another byte order"),
    ],
)
def test_legacy_storages_that_lie(storages, little, match, tmp_path):
    tensor = Runs(torch._utils._rebuild_tensor_v2, _Storage("k", 3), 0, (3,), (1,), False, None)
    refuse(legacy(tmp_path / "old.bin", {"a": tensor}, storages, little), match)
