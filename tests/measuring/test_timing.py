"""Turns, products and the processor's name; how long anything took decides nothing."""

import pytest
import torch

from hf_bert_impl.benchmark.models import Source
from hf_bert_impl.measuring import beside, timing
from hf_bert_impl.measuring.batches import Case
from hf_bert_impl.model import cpu_kernels


def test_turns_alternate_and_swap():
    heard = []
    times = timing.in_turns(
        [lambda: heard.append("a") or sum(range(20000)), lambda: heard.append("b")], rounds=3
    )
    assert [len(side) for side in times] == [3, 3]
    order = [x for x, before in zip(heard[2:], ["", *heard[2:]], strict=False) if x != before]
    assert "".join(order) == "abab"  # a b, b a, a b


def test_products_are_measured_by_kernel():
    for dtype in ("float32", "bfloat16", "int8"):
        rates = timing.best_product(30, 44, dtype)
        assert all(rate > 0 for rate in rates.values())
        assert set(rates) <= {"linear", "packed", "int_mm"}
    # What bounds a model in int8 is no slower than its own kernels.
    assert ("packed" in rates) == (cpu_kernels.why_no_kernels(torch.int8) is None)


def test_a_model_beside_another_runner(monkeypatch):
    def once(calls, rounds):
        for call in calls:
            call()
        return [0.002, 0.004, 0.005][:rounds], [0.006, 0.004, 0.01][:rounds]

    monkeypatch.setattr(beside, "in_turns", once)
    batches = []
    model, case = Source(random="tiny").load(), Case("x", (5, 13, 2), 13)
    row = beside.time_case(model, lambda batch: batches.append(batch["attention_mask"]), case, 3)
    assert (row.rows, row.tokens, row.padding) == (3, 20, 1 - 20 / 39)
    assert (row.model_ms, row.other_ms) == pytest.approx((4, 6))
    assert (row.least, row.ratio, row.greatest) == pytest.approx((1, 2, 3))
    assert [mask.sum(dim=1).tolist() for mask in batches] == [[5, 13, 2]]
