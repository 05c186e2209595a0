"""Files of questions: what is asked in each line, and wrong lines by their number."""

import io
import sys

import pytest

from hf_bert_impl.inference.question_file import answer_records, read_questions

LINES = '\ufeff{"question": "river?", "id": 7}\n\n{"question": "you?", "context": "you 👍🏽"}\n'
RECORDS = [
    {"question": "river?", "id": 7, "context": "the river"},
    {"question": "you?", "context": "you 👍🏽"},  # its own context goes before
]


def test_one_record_a_line(tmp_path, monkeypatch):
    file = tmp_path / "q.jsonl"
    file.write_text(LINES, encoding="utf-8")
    assert list(read_questions(str(file), "the river")) == RECORDS
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES.encode())))
    assert list(read_questions("-", "the river")) == RECORDS


def test_answers_stand_beside_their_records():
    """A pipeline gives one answer as it is, and several as a list."""
    records = [{"id": 0}, {"id": 1}]
    answers = ["one", ["two", "three"]]
    found = answer_records(lambda given: (answers[it["id"]] for it in given), iter(records))
    assert list(found) == [({"id": 0}, ["one"]), ({"id": 1}, ["two", "three"])]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty; expected a question a line"),
        (b'{"question": "a", "context": "b"}\n{"question"', "line 2 of .* is not JSON"),
        (b'{"context": "b"}', "line 1 of .* has no 'question'"),
        (b'\n{"question": "a"}', "line 2 of .* has no 'context'; .*`context`"),
        (b'{"question": "a", "context": "\\ud83d"}', "half a surrogate pair in its 'context'"),
        (
            b'{"question": "a", "context": "b", "id": "\\ud83d"}',
            "the id in line 1 .* half a surro",
        ),
    ],
)
def test_wrong_lines(tmp_path, content, words):
    file = tmp_path / "q.jsonl"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        list(read_questions(str(file), None))
