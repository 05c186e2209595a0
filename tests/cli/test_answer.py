"""`hf-bert answer`: a question at the prompt, and files of them."""

import json

import pytest

from hf_bert_impl import QuestionAnsweringPipeline
from tests.cli.cases import give_input
from tests.support.checkpoints import assert_same_answers
from tests.support.damage import fields

CONTEXT = "Nice to meet you, the river rose over night."


@pytest.fixture
def model(save_tiny):
    return save_tiny("BertForQuestionAnswering")


@pytest.fixture
def pipe(model):
    return QuestionAnsweringPipeline.from_pretrained(model, device="cpu")


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_options_reach_the_pipeline(hf_bert, model, pipe, write):
    options = {"top_k": 4, "max_answer_len": 3, "max_question_len": 5}
    options |= {"max_seq_len": 14, "doc_stride": 2, "null_score_diff_threshold": 0.25}
    settings = options | {"top_k": 1, "align_to_words": False}
    file = write("a.yaml", "".join(f"{name}: {json.dumps(it)}\n" for name, it in settings.items()))
    flags = ("--config", file, "--handle-impossible-answer", "--top-k", 4)  # which goes before
    questions = ["river, you?", "night?"]
    asked = ("--question", questions[0], "--question", questions[1], "--context", CONTEXT)
    settings |= options | {"handle_impossible_answer": True}
    expected = pipe(question=questions, context=CONTEXT, **settings)
    given = zip(questions, expected, strict=True)
    found = lines(hf_bert("answer", model, *asked, *flags, "--json").printed)
    assert found == [{"question": it, "answers": answers} for it, answers in given]
    [record] = lines(hf_bert("answer", model, *asked[2:], "--json").out)
    assert record["answers"] == [pipe(question="night?", context=CONTEXT)]


def test_table(hf_bert, model, pipe, write, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    short = write("short.yaml", "max_question_len: 1")
    context = f"{CONTEXT} {CONTEXT}"
    asked = ("--question", "a\nb?", "--context", context, "--config", short, "--top-k", 2)
    result = hf_bert("answer", model, *asked)
    assert result.err.startswith("note: questions cut after max_question_len=1 tokens: 1 of 1")
    best, second = pipe(question="a\nb?", context=context, top_k=2, max_question_len=1)
    for words in ("a b?", f"{best['start']}–{best['end']}", f"{second['score']:.4f}"):
        assert words in result.out
    for start, end in ((it["start"], it["end"]) for it in (best, second)):
        assert f" {context[max(start - 24, 0) : end + 24].strip()} " in result.out.replace("…", " ")


def test_no_answer(hf_bert, model, write):
    none = write("none.yaml", "null_score_diff_threshold: -99")
    asked = ("answer", model, "--question", "river?", "--context", CONTEXT)
    assert "no answer" in hf_bert(*asked, "--handle-impossible-answer", "--config", none).out
    fields("config.json", null_score_diff_threshold=-99)(model)
    assert "no answer" in hf_bert(*asked).out
    assert "no answer" not in hf_bert(*asked, "--always-answer").out
    [record] = lines(hf_bert(*asked, "--json").out)
    assert record["answers"][0]["answer"] == ""


def test_files(hf_bert, model, pipe, write, tmp_path, monkeypatch):
    """Of questions and of a context, or both by standard input."""
    content = (
        '\ufeff{"id": 7, "question": "river?", "context": "the river rose"}\n\n'
        '{"question": "you?", "context": "nice to meet you 👍🏽"}\r\n'
    )
    questions, output = write("questions.jsonl", content), tmp_path / "answers.jsonl"
    asked, contexts = ["river?", "you?"], ["the river rose", "nice to meet you 👍🏽"]
    first, second = pipe(question=asked, context=contexts)
    expected = [
        {"id": 7, "question": "river?", "answers": [first]},
        {"question": "you?", "answers": [second]},
    ]
    (tmp_path / ".answers.jsonl.part").symlink_to(questions)  # is not written to
    assert hf_bert("answer", model, questions, "--output", output) == (0, "", "")
    assert lines(output.read_text(encoding="utf-8")) == expected
    give_input(monkeypatch, [content])
    assert lines(hf_bert("answer", model, "-").out) == expected
    assert questions.read_bytes() == content.encode()

    context = write("context.txt", b"\xef\xbb\xbf" + CONTEXT.encode())
    one = ("answer", model, "--question", "river?", "--json")
    expected = hf_bert(*one, "--context", CONTEXT).printed
    assert hf_bert(*one, "--context-file", context).out == expected
    give_input(monkeypatch, [CONTEXT])
    assert hf_bert(*one, "--context-file", "-").out == expected

    file = write("q.jsonl", '{"question": "river?"}\n{"question": "you?", "context": "you"}\n')
    first, second = lines(hf_bert("answer", model, file, "--context", CONTEXT).out)
    assert_same_answers(first["answers"], json.loads(expected)["answers"])  # both asked at once
    assert second["answers"][0]["answer"] == "you"  # its own context goes before
