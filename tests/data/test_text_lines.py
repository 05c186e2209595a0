"""Texts out of a file or standard input: one a line, and wrong lines by their number."""

import io
import json
import sys

import pytest

from hf_bert_impl.data.text_input import TextInput

TEXTS = ["nice to meet you", "", "the river rose over night, and you.", "a\u2028b\x0bc\rd", "ż 🙂"]


def texts_of(file, column=None):
    with TextInput(str(file), column) as texts:
        return list(texts)


@pytest.mark.parametrize("end", ["\n", ""])
def test_lines(tmp_path, end):
    """A line ends at a line feed and nowhere else; row n is that of line n."""
    file = tmp_path / "a.txt"
    file.write_bytes(("\n".join(TEXTS) + end).encode())
    assert texts_of(file) == TEXTS
    file.write_bytes(b"\xef\xbb\xbfnice\r\nto\n")
    assert texts_of(file) == ["nice", "to"]


@pytest.mark.parametrize(
    ("name", "column", "given"),
    [("a.jsonl", "text", None), ("a.ndjson", "text", None), ("a.dat", "body", "body")],
)
def test_fields_of_json_lines(tmp_path, name, column, given):
    file = tmp_path / name
    lines = [json.dumps({"id": n, column: text}) for n, text in enumerate(TEXTS)]
    file.write_text("\n\n".join(lines) + "\n\n")
    assert texts_of(file, given) == TEXTS


def test_standard_input_and_what_was_read_of_it(monkeypatch, tmp_path):
    content = "\n".join(TEXTS).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    texts = TextInput("-")
    assert (texts.name, texts.size) == ("standard input", None)
    assert list(texts) == TEXTS
    assert texts.done == len(content)
    (tmp_path / "a.txt").write_bytes(content)
    with TextInput(str(tmp_path / "a.txt")) as texts:
        assert texts.size == len(content)
        assert next(texts) == TEXTS[0]
        assert texts.done == len(TEXTS[0]) + 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.txt", None, "there is no file .*; check the path"),
        ("empty.txt", b"", "is empty; expected one text a line"),
        ("empty.jsonl", b"\n\n", "is empty"),
        ("latin.txt", "caf\xe9".encode("latin-1"), r"line 1 of .*latin\.txt is not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"line 2 of .*a\.jsonl is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n\n{"id": 1, "body": "b"}', "line 3 .* 'body'; .*`column`"),
        ("a.jsonl", b"{}", "has no 'text', only no fields"),
        ("a.jsonl", b'{"text": 3}', "line 1 of .* has a int for a text"),
        ("a.jsonl", b'["a"]', "line 1 of .* holds a list"),
        ("a.jsonl", b'{"text": "\\ud800"}', "line 1 of .* surrogate"),
    ],
)
def test_wrong_texts(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        texts_of(tmp_path / name)
    with pytest.raises(ValueError, match="is a folder"):
        texts_of(tmp_path)
