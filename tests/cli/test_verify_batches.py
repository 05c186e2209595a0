"""`hf-bert verify --batch-invariant`: promises kept, a broken one, and what cannot be promised."""

import json

import pytest
import torch

from hf_bert_impl.model import cpu_kernels

HAS_KERNELS = cpu_kernels.why_no_kernels(torch.float32) is None
pytestmark = [
    pytest.mark.skipif(not HAS_KERNELS, reason="this torch comes without oneDNN"),
]


@pytest.fixture
def broken_kernel(monkeypatch):
    """Products that depend on how many rows there are, and a probe that does not find it."""
    multiply = cpu_kernels._multiply

    def broken(states, *arguments):
        return multiply(states, *arguments) * (1 + 1e-6 * (len(states) > 40))

    monkeypatch.setattr(cpu_kernels, "_multiply", broken)
    monkeypatch.setattr(cpu_kernels, "_agrees", lambda probe, rows: True)


def test_a_broken_promise(hf_bert, save_tiny, broken_kernel):
    result = hf_bert("verify", save_tiny("BertModel"), "--batch-invariant", "--json")
    assert result.status == 1
    report = json.loads(result.out)
    assert report["passed"] is False
    failed = [row for row in report["rows"] if not row["passed"]]
    assert failed[0]["way"] == "unchanged" and failed[0]["promised"]
    assert failed[0]["texts"]["70"] > 0 and failed[0]["numbers"] > 0


def test_the_table(hf_bert, save_tiny):
    result = hf_bert("verify", save_tiny("BertModel"), "--batch-invariant")
    assert (result.status, result.err) == (0, "")
    assert "prepared float32, batch_invariant" in result.out
    assert "what was promised was kept" in result.out


def test_what_cannot_be_promised(hf_bert, one_error_line, save_tiny):
    result = hf_bert("verify", save_tiny("BertLMHeadModel", is_decoder=True), "--batch-invariant")
    one_error_line(result, "does not go with a decoder")
