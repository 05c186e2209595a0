"""Numbers that options may have: what is refused, before any work."""

import dataclasses
import math
from pathlib import Path

import pytest

from hf_bert_impl.data.examples import ExampleOptions
from hf_bert_impl.data.masking import MaskingOptions
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


@pytest.mark.parametrize(("options", "field"), NUMBERS)
def test_no_number_is_taken_unseen(options, field):
    """Whole numbers are no fractions, either; a field that is not listed would pass."""
    for value in (math.nan, math.inf, -math.inf, -1, 1e30, 10**400, "3", True):
        with pytest.raises(ValueError, match=f"{field.name} is "):
            options(**MADE[options], **{field.name: value})
