"""`hf-bert answer`: a question at the prompt, and files of them."""

import json

import pytest

from hf_bert_impl import QuestionAnsweringPipeline
from tests.cli.embed.cases import give_input
from tests.support.checkpoints import assert_same_answers
from tests.support.damage import fields

CONTEXT = "Nice to meet you, the river rose over night."


@pytest.fixture
def model(save_tiny):
    return save_tiny("BertForQuestionAnswering")


@pytest.fixture
def questions(tmp_path):
    file = tmp_path / "questions.jsonl"
    file.write_text(
        '\ufeff{"id": 7, "question": "river?", "context": "the river rose"}\n\n'
        '{"question": "you?", "context": "nice to meet you 👍🏽"}\r\n',
        encoding="utf-8",
    )
    return file


def pipe(model, **options):
    return QuestionAnsweringPipeline.from_pretrained(model, device="cpu", **options)


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_options_reach_the_pipeline(hf_bert, model, tmp_path):
    options = {
        "top_k": 4,
        "max_answer_len": 3,
        "max_question_len": 5,
        "max_seq_len": 14,
        "doc_stride": 2,
        "null_score_diff_threshold": 0.25,
    }
    file = tmp_path / "answers.yaml"
    settings = options | {"top_k": 1, "align_to_words": False}
    file.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
    flags = ("--config", file, "--handle-impossible-answer", "--top-k", 4)  # which goes before
    questions = ["river, you?", "night?"]
    asked = ("--question", questions[0], "--question", questions[1], "--context", CONTEXT)
    result = hf_bert("answer", model, *asked, *flags, "--json")
    assert result.status == 0, result.err
    expected = pipe(model)(
        question=questions,
        context=CONTEXT,
        handle_impossible_answer=True,
        align_to_words=False,
        **options,
    )
    given = zip(questions, expected, strict=True)
    assert lines(result.out) == [{"question": it, "answers": answers} for it, answers in given]
    [record] = lines(hf_bert("answer", model, *asked[2:], "--json").out)
    assert record["answers"] == [pipe(model)(question="night?", context=CONTEXT)]


def test_table(hf_bert, model, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "short.yaml").write_text("max_question_len: 1")
    asked = ("--question", "a\nb?", "--context", CONTEXT, "--config", tmp_path / "short.yaml")
    result = hf_bert("answer", model, *asked, "--top-k", 2)
    assert result.err.startswith("note: questions cut after max_question_len=1 tokens: 1 of 1")
    best, second = pipe(model)(question="a\nb?", context=CONTEXT, top_k=2, max_question_len=1)
    for words in ("a b?", f"{best['start']}–{best['end']}", f"{second['score']:.4f}"):
        assert words in result.out
    for start, end in ((it["start"], it["end"]) for it in (best, second)):
        assert f" {CONTEXT[max(start - 24, 0) : end + 24].strip()}" in result.out.replace("…", " ")


def test_no_answer(hf_bert, model, tmp_path):
    (tmp_path / "none.yaml").write_text("null_score_diff_threshold: -99")
    asked = ("answer", model, "--question", "river?", "--context", CONTEXT)
    flags = ("--handle-impossible-answer", "--config", tmp_path / "none.yaml")
    assert "no answer" in hf_bert(*asked, *flags).out
    fields("config.json", null_score_diff_threshold=-99)(model)
    assert "no answer" in hf_bert(*asked).out
    assert "no answer" not in hf_bert(*asked, "--always-answer").out
    [record] = lines(hf_bert(*asked, "--json").out)
    assert record["answers"][0]["answer"] == ""


def test_context_from_a_file(hf_bert, model, write, monkeypatch):
    file = write("context.txt", b"\xef\xbb\xbf" + CONTEXT.encode())
    asked = ("answer", model, "--question", "river?", "--json")
    expected = hf_bert(*asked, "--context", CONTEXT).out
    assert hf_bert(*asked, "--context-file", file).out == expected
    give_input(monkeypatch, [CONTEXT])
    assert hf_bert(*asked, "--context-file", "-").out == expected


def test_file(hf_bert, model, questions, tmp_path, monkeypatch):
    first, second = pipe(model)(
        question=["river?", "you?"], context=["the river rose", "nice to meet you 👍🏽"]
    )
    expected = [
        {"id": 7, "question": "river?", "answers": [first]},
        {"question": "you?", "answers": [second]},
    ]
    output = tmp_path / "answers.jsonl"
    (tmp_path / ".answers.jsonl.part").symlink_to(questions)  # is not written to
    assert hf_bert("answer", model, questions, "--output", output) == (0, "", "")
    assert lines(output.read_text(encoding="utf-8")) == expected
    text = questions.read_bytes()
    give_input(monkeypatch, [text.decode()])
    assert lines(hf_bert("answer", model, "-").out) == expected
    assert questions.read_bytes() == text


def test_one_context_for_all_lines(hf_bert, model, write):
    file = write("q.jsonl", '{"question": "river?"}\n{"question": "you?", "context": "you"}\n')
    first, second = lines(hf_bert("answer", model, file, "--context", CONTEXT).out)
    expected = [pipe(model)(question="river?", context=CONTEXT)]
    assert_same_answers(first["answers"], expected)  # the command asks both at once
    assert second["answers"][0]["answer"] == "you"  # its own context goes before
