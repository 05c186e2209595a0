"""Files of questions: wrong lines by their number. Right ones: tests/data/test_text_input.py."""

import pytest

from hf_bert_impl.inference.question_file import read_questions


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty. Write one question"),
        (b'{"context": "b"}', "line 1 of .* has no 'question'"),
        (b'\n{"question": "a"}', "line 2 of .* has no 'context'.*`context`"),
        (b'{"question": "a", "context": "\\ud83d"}', "half a surrogate pair"),
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
