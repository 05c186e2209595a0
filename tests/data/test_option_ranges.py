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


@pytest.mark.parametrize("options", MADE)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, 1e30, 10**400, "3", True])
def test_no_number_is_taken_unseen(options, value):
    """Whole numbers are no fractions, either; a field that is not listed would pass."""
    types = {field.name: str(field.type) for field in dataclasses.fields(options)}
    for name in types.keys() - {"seeds", "sizes"}:
        if "int" in types[name] or "float" in types[name]:
            with pytest.raises(ValueError, match=f"{name} is "):
                options(**MADE[options], **{name: value})
