"""Fixtures for tests that need certain machines."""

import pytest
import torch

from hf_bert_impl.model.kernels import why_no_kernels
from tests.model.cases import HAS_ONEDNN, all_by_onednn


@pytest.fixture
def needs_kernels():
    reason = why_no_kernels(torch.float32)
    if reason is not None:
        pytest.skip(f"prepared inference does not run here: {reason}")


@pytest.fixture
def by_onednn(monkeypatch):
    if not HAS_ONEDNN:
        pytest.skip("this torch comes without oneDNN")
    all_by_onednn(monkeypatch)
