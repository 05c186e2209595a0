"""Checkpoints of torch.save are read as by torch.load, or refused; no code runs."""

import os
import pickle

import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers.torch import is_torch, read_torch
from hf_bert_impl.conversion.tensors import DTYPES
from tests.conversion.cases import FIXTURES, FORMATS, Runs, assert_same

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
    for has_checksums in (True, False):
        torch.serialization.set_crc32_options(has_checksums)
        try:
            path = save(tmp_path / "any.pt", state, zipped, pickle_protocol=protocol)
        finally:
            torch.serialization.set_crc32_options(True)
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


LEGACY = FIXTURES / "pytorch_pretrained_bert" / "pytorch_model.bin"


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
