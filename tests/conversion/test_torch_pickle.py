"""Checkpoints of torch.save: read as torch.load reads them, or refused, and nothing runs."""

import collections

import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers.torch_pickle import TorchReader, is_torch
from hf_bert_impl.conversion.tensors import DTYPES
from hf_bert_impl.errors import InputError
from tests.conversion.cases import CONTAINERS, FIXTURES, FORMATS, assert_same
from tests.conversion.cases import save_torch as save

#: Of pickletools, for the strings of Python 2.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape")
read_all, refuse = FORMATS["torch"].read_all, FORMATS["torch"].refuse


# --- the checkpoints of the original software ------------------------------------------------


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
    with TorchReader(path) as reader:
        twice = [reader.read("int64") for _ in range(2)]
        assert all(tensor.data_ptr() % 8 == 0 for tensor in twice)
        assert not zipped or twice[0].data_ptr() == twice[1].data_ptr()  # in the mapped file


@CONTAINERS
def test_nested_checkpoint(zipped, tmp_path):
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
        "others": [torch.device("cpu"), torch.float16, torch.Size([3, 2]), {3, 4}, 3**5000, None],
        5: {True: torch.ones(1)},
    }
    expected = {f"state_dict.{name}": tensor for name, tensor in model.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        expected |= {f"optimizer.state.{number}.{name}": state[name] for name in state}
    expected |= {"random.torch": value["random"]["torch"], "5.True": torch.ones(1)}
    assert_same(read_all(save(tmp_path / "checkpoint.pt", value, zipped)), expected)


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


@pytest.mark.parametrize("value", BOMBS.values(), ids=BOMBS)
def test_bombs(value, tmp_path):
    refuse(save(tmp_path / "bomb.bin", value), "nests its containers without end")


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ({"a\nb": torch.ones(1)}, r"the name 'a\\nb'"),
        ({"x" * 2000: torch.ones(1)}, "the name 'xxx"),
        ({"a.b": torch.ones(1), "a": {"b": torch.ones(2)}}, r"tensor 'a\.b' twice"),
        ([torch.ones(1)], "a state dict or a module"),
        (torch.ones(1), "a state dict or a module"),
        (None, "a state dict or a module"),
    ],
    ids=["two lines", "long", "twice", "list", "tensor", "nothing"],
)
def test_no_state_dict(value, match, tmp_path):
    refuse(save(tmp_path / "other.bin", value), match)
