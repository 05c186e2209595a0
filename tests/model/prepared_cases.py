"""What the tests of prepared models share."""

import pytest
import torch

from hf_bert_impl.model import prepared
from tests.model.cases import random_config, random_model

LM_HEADS = ["BertForMaskedLM", "BertForPreTraining"]


@pytest.fixture(autouse=True)
def needs_kernels():
    model = random_model("BertModel", random_config(1))
    reason = prepared.why_not(model.encoder)
    if reason is not None:
        pytest.skip(f"prepared inference does not run here: {reason}")


def outputs(model, batch, **options):
    with torch.inference_mode():
        return model(**batch, **options)


def is_prepared(model):
    return model.base_model.encoder.prepared is not None


def head_is_prepared(model):
    return model.cls.predictions.prepared is not None
