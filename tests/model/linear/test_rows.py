"""Kernels get few numbers of rows, since oneDNN keeps a primitive for each of them."""

import random

import pytest
import torch

from hf_bert_impl.model.linear import Product, rounded_up
from hf_bert_impl.model.preparing import prepared_kernels
from tests.model.cases import model_and_batch, outputs

pytestmark = pytest.mark.usefixtures("needs_kernels")


def batches(model, count):
    """Batches of random sizes, one sentence among them."""
    draw = random.Random(3)
    for _ in range(count):
        rows, length = draw.randint(1, 7), draw.randint(2, 13)
        ids = torch.randint(1, model.config.vocab_size, (rows, length))
        mask = torch.ones_like(ids)
        for row in range(1, rows):
            mask[row, draw.randint(1, length) :] = 0
        yield {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("dtype", [False, None, "bfloat16", "int8"])
def test_kernels_get_few_numbers_of_rows(dtype, by_onednn, monkeypatch):
    model, _ = model_and_batch("BertForMaskedLM", 4)
    if dtype is not False:
        model.prepare_for_inference(dtype)
        assert prepared_kernels(model)
    kinds, seen, calls = [Product], set(), []

    def watch(kind, own):
        def call(self, states, *rest):
            calls.append(states)
            before = len(calls)
            output = own(self, states, *rest)
            if len(calls) == before:  # it called no other, so a kernel computed these rows
                seen.add(len(states))
            return output

        monkeypatch.setattr(kind, "__call__", call)

    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if "__call__" in vars(kind):
            watch(kind, kind.__call__)
    tokens = set()
    for batch in batches(model, 60):
        tokens.add(int(batch["attention_mask"].sum()))
        outputs(model, batch)
    assert seen == {rounded_up(size) for size in seen} and len(tokens) > 20
    assert len(seen) <= 24
