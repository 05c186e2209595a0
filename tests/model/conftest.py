"""Fixtures for tests that need certain machines."""

import pytest
import torch

from hf_bert_impl.model import kernels, steady
from tests.model.cases import HAS_ONEDNN, all_by_onednn


@pytest.fixture
def needs_kernels(request):
    """Skips where there are none for float32, or for the `kernels` of a class of tests."""
    reason = kernels.why_no_kernels(getattr(request.cls, "kernels", torch.float32))
    if reason is not None:
        pytest.skip(f"prepared inference does not run here: {reason}")


@pytest.fixture
def by_onednn(monkeypatch):
    if not HAS_ONEDNN:
        pytest.skip("this torch comes without oneDNN")
    all_by_onednn(monkeypatch)


@pytest.fixture
def fresh_kernels(monkeypatch):
    """Patches under which kernels are measured and probed again."""

    def forget():
        for value in (*vars(kernels).values(), *vars(steady).values()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()

    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()
