"""Checkpoints of torch.save: read as torch.load reads them, or refused, and nothing runs."""

import collections

import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers.torch_pickle import TorchReader, is_torch
from hf_bert_impl.conversion.tensors import DTYPES, TensorInfo
from hf_bert_impl.conversion.writers.torch_zip import write_torch
from hf_bert_impl.errors import InputError
from tests.conversion.cases import CONTAINERS, FIXTURES, FORMATS, assert_same
from tests.conversion.cases import save_torch as save

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
#: Of pickletools, for the strings of Python 2.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape")
#: What any dtype can hold.
NUMBERS = [[0, 1, 2], [3, 100, 5]]
read_all, refuse = FORMATS["torch"].read_all, FORMATS["torch"].refuse


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
