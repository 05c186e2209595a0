"""Turns, products and the processor's name; how long anything took decides nothing."""

from hf_bert_impl.measuring import timing


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
