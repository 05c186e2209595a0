"""What the tests of prepared models share."""

import copy
import io

import pytest
import torch

from hf_bert_impl.model import prepared
from tests.model.cases import outputs, random_config, random_model


@pytest.fixture(autouse=True)
def needs_kernels():
    model = random_model("BertModel", random_config(1))
    reason = prepared.why_not(model.encoder)
    if reason is not None:
        pytest.skip(f"prepared inference does not run here: {reason}")


def is_prepared(model):
    return model.base_model.encoder.prepared is not None


def head_is_prepared(model):
    return model.cls.predictions.prepared is not None


def pickled(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def assert_not_stale(model, batch):
    """The model is prepared no more, and computes with the weights that it has; gives its states.

    A copy of a model is not prepared.
    """
    found = outputs(model, batch)[0]
    assert not is_prepared(model)
    assert torch.equal(found, outputs(copy.deepcopy(model), batch)[0])
    return found
