"""Numbers that options may have: what is refused, before any work."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from hf_bert_impl.data.examples import ExampleOptions
from hf_bert_impl.data.masking import MaskingOptions
from hf_bert_impl.data.option_ranges import COUNT, RANGES, Range
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from hf_bert_impl.training.pretraining_options import PretrainingOptions

MADE = {
    ExampleOptions: {},
    MaskingOptions: {},
    FinetuningOptions: {"model": "m", "output": Path("out")},
    PretrainingOptions: {"files": ("f",), "output": Path("out")},
}
NUMBERS = [
    (options, field)
    for options in MADE
    for field in dataclasses.fields(options)
    if "int" in str(field.type) or "float" in str(field.type)
    if field.name not in ("seeds", "sizes")
]


def test_no_number_is_taken_unseen(subtests):
    """Whole numbers are no fractions, either; a field that is not listed would pass."""
    for options, field in NUMBERS:
        for value in (math.nan, math.inf, -math.inf, -1, 1e30, 10**400, "3", True):
            with (
                subtests.test(field=field.name, value=str(value)[:9]),
                pytest.raises(ValueError, match=f"{field.name} is "),
            ):
                options(**MADE[options], **{field.name: value})


def test_whole_numbers_only():
    for name, allowed in RANGES.items():
        for options, field in NUMBERS:
            if field.name == name and allowed.whole:
                with pytest.raises(ValueError, match=f"{name} is 1.5; expected a whole number"):
                    options(**MADE[options], **{name: 1.5})


@pytest.mark.parametrize("options", MADE)
def test_the_ends_of_every_range_are_taken(options):
    made = options(**MADE[options])
    for name, allowed in RANGES.items():
        for end, is_out in ((allowed.low, allowed.above), (allowed.high, allowed.below)):
            if hasattr(made, name) and not is_out and (name != "warmup" or end == 0):
                smaller = {"max_length": 512} if name == "max_length" else {name: end}
                dataclasses.replace(made, **smaller)


def test_ends_of_a_range():
    inside = Range(0, 1, above=True, below=True)
    assert 0.5 in inside and 0 not in inside and 1 not in inside
    assert 1 in COUNT and 0 not in COUNT and 2.0 not in COUNT and None not in COUNT
    assert np.float32(0.5) in inside and np.int64(3) in COUNT
    assert str(Range(0, 1, below=True)) == "a number from 0 to below 1"
