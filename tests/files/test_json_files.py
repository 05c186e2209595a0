"""The reader of JSON: each way of being wrong has its words, and nothing else comes out."""

import json
import math
from pathlib import Path

import pytest

from hf_bert_impl import BertForMaskedLM, BertTokenizer
from hf_bert_impl.files.json_files import check_text, parse_json, read_json, to_json
from hf_bert_impl.parity import ParityRow


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "x is empty; expected a list; mend it"),
        (b" \n", "x is empty"),
        (b"{", "x is not JSON"),
        (b"{}\0", "x is not JSON"),
        (b'"caf\xe9"', "x is not UTF-8"),
        (b"null", "x holds null; expected a list"),
        (b'{"a": 1}', "x holds a dict"),
        (b"9" * 5000, "x is not JSON"),
        (b"[" * 50_000, "nested too deeply"),
        (b'{"a": ' * 50_000, "nested too deeply"),
    ],
)
def test_what_cannot_be_read(tmp_path, content, words):
    with pytest.raises(ValueError, match=words):
        parse_json(content, "x", "a list", list)
    file = tmp_path / "x"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=words.removesuffix("mend it")):
        read_json(file, "a list", list)


def test_what_can_be_read(tmp_path):
    assert parse_json('\ufeff{"a": [1]}'.encode(), "x") == {"a": [1]}
    assert parse_json("3", "x", kind=(int, str)) == 3
    with pytest.raises(ValueError, match="there is no file"):
        read_json(tmp_path / "none")
    with pytest.raises(ValueError, match="is a folder"):
        read_json(tmp_path)
    check_text({"a": ["\U0001f600", None, 3.5]}, "x")
    for value in ("a\ud83d", ["\udc00"], {"\ud800": 1}):
        with pytest.raises(ValueError, match=r"x has half a surrogate pair \(\\ud|\\udc"):
            check_text(value, "x")


@pytest.mark.parametrize("cls", [BertForMaskedLM, BertTokenizer])
def test_a_bug_in_the_package_is_not_taken_for_a_damaged_file(save_tiny, monkeypatch, cls):
    folder = save_tiny("BertForMaskedLM")

    def fail(*arguments, **options):
        raise TypeError("a slip")

    monkeypatch.setattr(cls, "__init__", fail)
    with pytest.raises(TypeError, match="a slip"):
        cls.from_pretrained(folder)


def test_what_json_lacks():
    value = {
        "a": [math.inf, 1.5, {2: math.nan}],
        "b": Path("c"),
        "d": ParityRow.failure("", "", ""),
    }
    assert json.loads(to_json(value))["d"]["max_abs"] is None
    assert to_json({name: value[name] for name in "ab"}) == (
        '{"a": [null, 1.5, {"2": null}], "b": "c"}'
    )
