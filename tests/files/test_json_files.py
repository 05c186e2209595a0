"""The readers of text and JSON."""

import json
import math
from pathlib import Path

import pytest

from hf_bert_impl import BertForMaskedLM
from hf_bert_impl.files.json_files import check_text, parse_json, to_json
from hf_bert_impl.files.text import read_text
from hf_bert_impl.parity import ParityRow


def test_what_cannot_be_read():
    """tests/cli/snapshots has the other ways of being wrong."""
    digits = "9" * 5000  # more than Python reads
    for content, words in (
        (b" \n", "x is empty. It should be a list: restore"),
        (digits, "x is not JSON"),
    ):
        with pytest.raises(ValueError, match=words):
            parse_json(content, "x", "a list", list)


def test_what_can_be_read(write):
    file = write("a.txt", "\ufeffone\r\n\ufefftwo")
    assert read_text(file) == "one\r\n\ufefftwo"  # only the first byte-order mark goes
    assert parse_json('\ufeff{"a": [1]}'.encode(), "x") == {"a": [1]}
    assert parse_json("3", "x", kind=(int, str)) == 3
    check_text({"a": ["\U0001f600", None, 3.5]}, "x")
    for value in (["\udc00"], {"\ud800": 1}):
        with pytest.raises(ValueError, match=r"x has half a surrogate pair \(\\ud"):
            check_text(value, "x")


def test_what_json_lacks():
    value = {"a": [math.inf, 1.5, {2: math.nan}], "b": Path("c")}
    assert to_json(value) == '{"a": [null, 1.5, {"2": null}], "b": "c"}'
    assert json.loads(to_json(ParityRow.failure("case", "name", "why")))["max_abs"] is None


def test_a_bug_in_the_package_is_not_taken_for_a_damaged_file(save_tiny, monkeypatch):
    def fail(*arguments, **options):
        raise TypeError("a slip")

    folder = save_tiny("BertForMaskedLM")
    monkeypatch.setattr(BertForMaskedLM, "__init__", fail)
    with pytest.raises(TypeError, match="a slip"):
        BertForMaskedLM.from_pretrained(folder)
