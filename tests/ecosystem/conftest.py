"""Shared by the ecosystem's tests: libraries that CI requires, and small models."""

import importlib
import os

import pytest
import torch

import hf_bert_impl
from tests.support.checkpoints import tiny_config
from tests.support.lowered import WHY_NO_OPENVINO

LENGTHS = (11, 7, 4)


@pytest.fixture(scope="session")
def library():
    """Imports a library. Where it is missing the test skips; in CI it fails."""

    def load(name):
        if name == "openvino" and WHY_NO_OPENVINO:
            pytest.skip(WHY_NO_OPENVINO)
        if os.environ.get("CI"):
            return importlib.import_module(name)
        return pytest.importorskip(name, reason="pip install -e '.[ecosystem]'")

    return load


@pytest.fixture
def model():
    """A small random model of a class, in eval mode."""

    def make(name, **fields):
        torch.manual_seed(1)
        return getattr(hf_bert_impl, name)(tiny_config(vocab_size=61, **fields)).eval()

    return make


@pytest.fixture
def batch():
    """Ids and mask of three rows of unequal lengths."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, 61, (3, max(LENGTHS)), generator=generator)
    mask = torch.tensor([[int(place < n) for place in range(max(LENGTHS))] for n in LENGTHS])
    return {"input_ids": ids * mask, "attention_mask": mask}
