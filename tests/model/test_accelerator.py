"""The routes of CUDA, MPS and XPU, on an emulated device: see `emulated.py`."""

import json
import subprocess
import sys

import pytest
import torch

from hf_bert_impl.model import attention
from hf_bert_impl.model.attention import takes_varlen


@pytest.fixture(scope="module")
def results():
    command = [sys.executable, "-W", "ignore", "-m", "tests.model.emulated"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_every_head_computes_as_on_the_cpu(results):
    assert len(results) > 80
    wrong = {case: found["error"] for case, found in results.items() if not found["error"] < 1e-5}
    assert not wrong


def test_nothing_waits_for_the_device_after_the_first_layer(results):
    for case, found in results.items():
        # Where column 0 is padding, a wait at the end leaves its states out.
        is_first_read = any(word in case for word in ("right", "none", "packed"))
        assert not found["waits"] or not is_first_read, (case, found["waits"])


def test_the_kernel_computes_what_has_padding(results):
    for case, found in results.items():
        head, padding, *_, route = case.split(", ")
        is_served = route == "varlen" and padding != "none" and head != "BertLMHeadModel"
        assert bool(found["kernels"]) == is_served, case


@pytest.mark.parametrize(
    ("dtype", "head_size", "dropout", "capability", "expected"),
    [
        (torch.bfloat16, 64, 0, (9, 0), True),
        (torch.float16, 32, 0, (8, 0), True),
        (torch.float16, 256, 0, (8, 9), True),
        (torch.float32, 64, 0, (9, 0), False),
        (torch.float16, 60, 0, (9, 0), False),
        (torch.float16, 264, 0, (9, 0), False),
        (torch.float16, 64, 0.1, (9, 0), False),
        (torch.float16, 64, 0, (7, 5), False),
    ],
)
def test_when_the_kernel_serves(dtype, head_size, dropout, capability, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(attention, "varlen_attn", object())
    assert takes_varlen(torch.device("cuda", 0), dtype, head_size, dropout) == expected
    assert not takes_varlen(torch.device("mps"), dtype, head_size, dropout)
