"""The readers of text and JSON: each way of being wrong has its words."""

import json
import math
from pathlib import Path

import pytest

from hf_bert_impl import BertForMaskedLM
from hf_bert_impl.files.json_files import check_text, parse_json, read_json, to_json
from hf_bert_impl.files.text import read_text
from hf_bert_impl.parity import ParityRow


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b" \n", "x is empty. It should be a list: restore"),
        (b'"caf\xe9"', "x is not UTF-8"),
        (b"null", "x holds null. It should be a list"),
        (b"9" * 5000, "x is not JSON"),
        (None, "There is no file"),
    ],
)
def test_what_cannot_be_read(tmp_path, content, words):
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_json(tmp_path / "x", "a list", list)


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
