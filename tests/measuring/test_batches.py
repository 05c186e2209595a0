"""Operations as torch's own counter counts them."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hf_bert_impl.benchmark.models import Source
from hf_bert_impl.measuring.batches import forward_flops, training_flops
from hf_bert_impl.parity import reference_model

TINY = Source(random="tiny")


@pytest.mark.parametrize("rows", [1, 3])
def test_the_formula_counts_what_torch_counts(rows):
    model = reference_model(TINY.load())
    model.set_attn_implementation("eager")
    ids = torch.randint(5, 1000, (rows, 17))
    with FlopCounterMode(display=False) as counter:
        model(ids)
    assert forward_flops(model.config, [17] * rows) == counter.get_total_flops()


def test_the_training_formula_counts_what_torch_counts():
    model = reference_model(TINY.load("BertForMaskedLM"))
    model.set_attn_implementation("eager")
    ids = torch.randint(5, 1000, (2, 17))
    with FlopCounterMode(display=False) as counter:
        model(ids, labels=ids).loss.backward()
    # Upstream scores every position; so here every one is labelled.
    assert training_flops(model.config, [17, 17], 34) == counter.get_total_flops()
