"""Operations as torch's own counter counts them, and turns that alternate."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hf_bert_impl.benchmark.peers import Source
from hf_bert_impl.measuring import beside, timing
from hf_bert_impl.measuring.batches import forward_flops
from hf_bert_impl.parity import reference_model

TINY = Source(random="tiny")


def test_the_formulas_count_what_torch_counts():
    ids = torch.randint(5, 1000, (2, 17))
    base, masked_lm = (
        reference_model(TINY.load(head)) for head in ("BertModel", "BertForMaskedLM")
    )
    for one in (base, masked_lm):
        one.set_attn_implementation("eager")
    # Upstream scores every position.
    for model, options in ((base, {}), (masked_lm, {"pooler": False, "scored": 34})):
        with FlopCounterMode(display=False) as counter:
            model(ids)
        assert forward_flops(model.config, [17, 17], **options) == counter.get_total_flops()


def test_turns_alternate_and_swap(monkeypatch):
    monkeypatch.setattr(timing, "TURN_SECONDS", 0)
    heard = []
    times = timing.in_turns([lambda: heard.append("a"), lambda: heard.append("b")], rounds=3)
    assert [len(side) for side in times] == [3, 3]
    assert "".join(heard) == "ab" + "aabb" + "bbaa" + "aabb"  # untimed, and before each turn


def test_a_model_beside_another_runner(monkeypatch):
    def once(calls, rounds):
        for call in calls:
            call()
        return [0.002, 0.004, 0.005][:rounds], [0.006, 0.004, 0.01][:rounds]

    monkeypatch.setattr(beside, "in_turns", once)
    monkeypatch.setattr(beside, "MEASURED", {"x": [5, 13, 2]})
    masks = []
    (row,) = beside.time_beside(TINY.load(), lambda b: masks.append(b["attention_mask"]), 3)
    assert (row.rows, row.tokens, row.padding) == (3, 20, 1 - 20 / 39)
    assert (row.model_ms, row.other_ms) == pytest.approx((4, 6))
    assert (row.least, row.ratio, row.greatest) == pytest.approx((1, 2, 3))
    assert [mask.sum(dim=1).tolist() for mask in masks] == [[5, 13, 2]]


def test_a_lowered_instruction_set_is_called_emulated(monkeypatch):
    for name in timing.LOWERED_BY:
        monkeypatch.delenv(name, raising=False)
    own = timing.instruction_set()
    assert own == torch.backends.cpu.get_cpu_capability()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert timing.instruction_set() == f"{own}, emulated by ONEDNN_MAX_CPU_ISA=AVX2"
    assert timing.instruction_set() in timing.cpu_name()
