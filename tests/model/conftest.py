"""What several of the model's tests need of the machine."""

import pytest

from hf_bert_impl.model import prepared
from tests.model.cases import HAS_ONEDNN, all_by_onednn, random_config, random_model


@pytest.fixture
def needs_kernels():
    reason = prepared.why_not(random_model("BertModel", random_config(1)).encoder)
    if reason is not None:
        pytest.skip(f"prepared inference does not run here: {reason}")


@pytest.fixture
def by_onednn(monkeypatch):
    if not HAS_ONEDNN:
        pytest.skip("this torch comes without oneDNN")
    all_by_onednn(monkeypatch)
