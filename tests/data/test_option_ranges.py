"""Numbers that options may have: what is refused, before any work."""

import dataclasses
import math
from pathlib import Path

import pytest

from hf_bert_impl.data.examples import ExampleOptions
from hf_bert_impl.data.masking import MaskingOptions
from hf_bert_impl.data.option_ranges import RANGES
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
