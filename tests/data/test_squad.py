"""SQuAD's files: what is read, what is refused, and what a model learns from them."""

import json

import pytest

from hf_bert_impl.data.squad import (
    Answer,
    Question,
    questions_from_rows,
    read_squad,
    training_features,
)
from tests.support.checkpoints import tokenizer_of

CONTEXT = "Anna's cat naps in Café Müller; 我爱北京. Anna's dog works."
WORDS = "who where naps works ? . ; ' anna s cat dog in cafe mu ##ller 我 爱 北 京"
TOKENIZER = tokenizer_of(WORDS.split())


def entry(identity, question="Who naps?", answers=(("cat", 7),), **more):
    given = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": identity, "question": question, "answers": given, **more}


def content(*entries, **more):
    paragraph = {"context": CONTEXT, "qas": list(entries)}
    return {"data": [{"title": "t", "paragraphs": [paragraph]}], **more}


# --- reading ---------------------------------------------------------------------------------


def test_a_file_and_rows_of_a_data_set(write):
    entries = (
        entry("a", answers=[("Anna's cat", 0), ("cat", 7)], is_impossible=False),
        entry("b", "Who barks?", answers=[], is_impossible=True),
    )
    expected = (
        Question("a", "Who naps?", CONTEXT, (Answer("Anna's cat", 0), Answer("cat", 7))),
        Question("b", "Who barks?", CONTEXT, ()),
    )
    assert read_squad(write("a.json", json.dumps(content(*entries)))).questions == expected
    answers = [{"text": ["Anna's cat", "cat"], "answer_start": [0, 7]}]
    answers.append({"text": [], "answer_start": []})
    given = zip(entries, answers, strict=True)
    rows = [one | {"context": CONTEXT, "answers": columns} for one, columns in given]
    assert (*questions_from_rows(rows),) == expected


@pytest.mark.parametrize(
    ("version", "more", "expected"),
    [
        ({"version": "v1.1"}, {"is_impossible": False}, 1),
        ({"version": "v2.0"}, {}, 2),
        ({}, {}, 1),
        ({}, {"is_impossible": False}, 2),
        ({"version": "my own"}, {"answers": ()}, 2),
    ],
)
def test_versions(write, version, more, expected):
    file = write("a.json", json.dumps(content(entry("a", **more), **version)))
    assert read_squad(file).version == expected


# --- rows of a data set ----------------------------------------------------------------------


def test_bad_rows():
    row = {"id": "a", "question": "Who naps?", "context": CONTEXT}
    row["answers"] = {"text": ["cat"], "answer_start": [7]}
    for rows, words in (
        ([{"id": "a"}], "'context' of row 0 is not there"),
        ([row, row], "the id 'a' is there twice in the data set"),
        ([row | {"answers": {"text": ["cat"], "answer_start": [8]}}], "not at its answer_start 8"),
        ([row | {"answers": {"text": []}}], "'answer_start' of the answers of row 0"),
        ([row | {"answers": {"text": ["a", "b"], "answer_start": [1]}}], "2 texts and 1 places"),
    ):
        with pytest.raises(ValueError, match=words):
            questions_from_rows(rows)


# --- training --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("cat", ["cat"]),
        ("Anna's cat", ["anna", "'", "s", "cat"]),
        ("Café Müller", ["cafe", "mu", "##ller"]),
        ("afé", ["cafe"]),  # a part of a word: the token that holds it
        ("爱北", ["爱", "北"]),
        ("Müller;", ["mu", "##ller", ";"]),
        (" dog ", ["dog"]),
    ],
)
def test_positions_are_those_of_the_answer(text, tokens):
    question = Question("a", "Who naps?", CONTEXT, (Answer(text, CONTEXT.index(text)),))
    [feature] = training_features(TOKENIZER, [question])
    expected = TOKENIZER("Who naps?", CONTEXT)
    assert feature["input_ids"] == expected["input_ids"]
    assert feature["token_type_ids"] == expected["token_type_ids"]
    inside = slice(feature["start_positions"], feature["end_positions"] + 1)
    assert TOKENIZER.convert_ids_to_tokens(feature["input_ids"][inside]) == tokens


def test_windows_without_the_whole_answer_point_to_cls():
    answers = (Answer("cat naps", CONTEXT.index("cat naps")),)
    questions = [Question("a", "Who naps?", CONTEXT, given) for given in (answers, ())]
    found = [*training_features(TOKENIZER, questions, max_seq_len=10, doc_stride=3)]
    both, half = {*TOKENIZER.convert_tokens_to_ids(["cat", "naps"])}, len(found) // 2
    held = [both <= {*feature["input_ids"][5:]} for feature in found[:half]]
    assert 0 < sum(held) < half
    for feature, is_held in zip(found, held + [False] * half, strict=True):
        inside = slice(feature["start_positions"], feature["end_positions"] + 1)
        tokens = TOKENIZER.convert_ids_to_tokens(feature["input_ids"][inside])
        assert tokens == (["cat", "naps"] if is_held else ["[CLS]"])
