"""`hf-bert answer`: a question at the prompt, and files of them."""

import io
import json
import sys

import pytest

from hf_bert_impl import QuestionAnsweringPipeline
from tests.damage import fields

CONTEXT = "Nice to meet you, the river rose over night."
ANSWERS = {"score", "start", "end", "answer"}


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


# --- one question or a few -------------------------------------------------------------------


def test_json(hf_bert, model):
    result = hf_bert("answer", model, "--question", "river?", "--context", CONTEXT, "--json")
    assert result.status == 0, result.err
    assert result.err == ""
    expected = pipe(model)(question="river?", context=CONTEXT)
    assert lines(result.out) == [{"question": "river?", "answers": [expected]}]
    assert set(expected) == ANSWERS


def test_options_reach_the_pipeline(hf_bert, model):
    options = {
        "top_k": 4,
        "max_answer_len": 3,
        "max_question_len": 5,
        "max_seq_len": 14,
        "doc_stride": 2,
        "null_score_diff_threshold": 0.25,
    }
    flags = [x for key, value in options.items() for x in (f"--{key.replace('_', '-')}", value)]
    flags += ["--handle-impossible-answer", "--no-align-to-words"]
    asked = ("--question", "river, you?", "--question", "night?", "--context", CONTEXT)
    result = hf_bert("answer", model, *asked, *flags, "--json")
    assert result.status == 0, result.err
    expected = pipe(model)(
        question=["river, you?", "night?"],
        context=CONTEXT,
        handle_impossible_answer=True,
        align_to_words=False,
        **options,
    )
    found = lines(result.out)
    assert [record["question"] for record in found] == ["river, you?", "night?"]
    assert [record["answers"] for record in found] == expected


def test_table(hf_bert, model):
    result = hf_bert("answer", model, "--question", "a\nb?", "--context", CONTEXT, "--top-k", 2)
    assert result.status == 0, result.err
    assert "a b?" in result.out
    assert "characters" in result.out
    best, second = pipe(model)(question="a\nb?", context=CONTEXT, top_k=2)
    assert f"{best['start']}–{best['end']}" in result.out
    assert f"{second['score']:.4f}" in result.out


def test_no_answer(hf_bert, model):
    asked = ("answer", model, "--question", "river?", "--context", CONTEXT)
    flags = ("--handle-impossible-answer", "--null-score-diff-threshold", -99)
    assert "no answer" in hf_bert(*asked, *flags).out
    fields("config.json", null_score_diff_threshold=-99)(model)
    assert "no answer" in hf_bert(*asked).out
    assert "no answer" not in hf_bert(*asked, "--always-answer").out
    [record] = lines(hf_bert(*asked, "--json").out)
    assert record["answers"][0]["answer"] == ""


def test_context_from_a_file(hf_bert, model, tmp_path, monkeypatch):
    file = tmp_path / "context.txt"
    file.write_bytes(b"\xef\xbb\xbf" + CONTEXT.encode())
    asked = ("answer", model, "--question", "river?", "--json")
    expected = hf_bert(*asked, "--context", CONTEXT).out
    assert hf_bert(*asked, "--context-file", file).out == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CONTEXT.encode())))
    assert hf_bert(*asked, "--context-file", "-").out == expected


def test_a_cut_question_is_said(hf_bert, model):
    asked = ("--question", "you " * 9, "--context", CONTEXT, "--max-question-len", 4)
    result = hf_bert("answer", model, *asked, "--json")
    assert result.status == 0
    assert result.err.startswith("note: questions cut after max_question_len=4 tokens: 1 of 1")
    assert result.err.count("\n") == 1


# --- files of questions ----------------------------------------------------------------------


def expected_of(model, **options):
    first, second = pipe(model)(
        question=["river?", "you?"],
        context=["the river rose", "nice to meet you 👍🏽"],
        **options,
    )
    return [
        {"id": 7, "question": "river?", "answers": [first]},
        {"question": "you?", "answers": [second]},
    ]


def test_file(hf_bert, model, questions, tmp_path):
    result = hf_bert("answer", model, questions)
    assert result.status == 0, result.err
    assert lines(result.out) == expected_of(model)
    assert "👍🏽" in result.out or "\\u" not in result.out
    output = tmp_path / "answers.jsonl"
    written = hf_bert("answer", model, questions, "--output", output)
    assert written == (0, "", "")
    assert output.read_text(encoding="utf-8") == result.out
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == [
        "answers.jsonl",
        "questions.jsonl",
    ]


def test_standard_input(hf_bert, model, questions, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(questions.read_bytes())))
    assert lines(hf_bert("answer", model, "-").out) == expected_of(model)


def test_one_context_for_all_lines(hf_bert, model, tmp_path):
    file = tmp_path / "q.jsonl"
    file.write_text('{"question": "river?"}\n{"question": "you?", "context": "you"}\n')
    first, second = lines(hf_bert("answer", model, file, "--context", CONTEXT).out)
    assert first["answers"] == [pipe(model)(question="river?", context=CONTEXT)]
    assert second["answers"][0]["answer"] == "you"  # its own context goes before


def test_the_old_output_stays_until_the_new_one_is_complete(
    hf_bert, one_error_line, model, questions, tmp_path, monkeypatch
):
    output = tmp_path / "answers.jsonl"
    output.write_text("old")
    one_error_line(hf_bert("answer", model, questions, "-o", output), "exists", "--overwrite")

    def fail(self, *args, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(QuestionAnsweringPipeline, "__call__", fail)
        result = hf_bert("answer", model, questions, "-o", output, "--overwrite")
    assert result.status == 2
    assert output.read_text() == "old"
    assert not list(tmp_path.glob(".*"))
    assert hf_bert("answer", model, questions, "-o", output, "--overwrite").status == 0
    assert len(lines(output.read_text(encoding="utf-8"))) == 2


def test_wrong_lines_are_said_before_any_work(
    hf_bert, one_error_line, model, tmp_path, monkeypatch
):
    """The rest stands in inference/test_question_file.py."""
    monkeypatch.setattr("hf_bert_impl.checkpoints.open_checkpoint", None)
    file = tmp_path / "q.jsonl"
    file.write_text('\n{"question": "a"}')
    one_error_line(hf_bert("answer", model, file), "line 2 of", "has no 'context'", "--context")


# --- wrong arguments -------------------------------------------------------------------------


def test_wrong_arguments(hf_bert, one_error_line, model, questions, tmp_path, monkeypatch):
    def run(*arguments):
        return hf_bert("answer", model, *arguments)

    asked = ("--question", "river?", "--context", CONTEXT)
    one_error_line(run(*asked, "--dtype", "float8"), "'float8'", "bfloat16")
    one_error_line(run(*asked, "--max-seq-len", 32), "--max-seq-len is 32", "1 to 31")
    one_error_line(run(*asked, "--max-seq-len", 9, "--doc-stride", 9), "--doc-stride=9", "window")
    monkeypatch.setattr("hf_bert_impl.checkpoints.open_checkpoint", None)
    one_error_line(run(), "neither FILE nor --question is given")
    one_error_line(run(questions, *asked), "FILE and --question are given")
    one_error_line(run("--question", "river?"), "no context is given", "--context TEXT")
    one_error_line(run("--question", " ", "--context", "b"), "an empty 'question'")
    one_error_line(run("--question", "a", "--context", ""), "--context is empty")
    one_error_line(run(*asked, "--context-file", "x"), "--context and --context-file are given")
    one_error_line(run("--question", "a", "--context-file", tmp_path), "is a folder")
    one_error_line(run("--question", "a", "--context-file", tmp_path / "x"), "there is no file")
    one_error_line(run("-", "--context-file", "-"), "are both -")
    one_error_line(run(tmp_path / "none.jsonl"), "there is no file")
    one_error_line(run(tmp_path), "is a folder")
    one_error_line(run(questions, "-o", tmp_path / "no" / "a.jsonl"), "there is no folder")
    one_error_line(run(questions, "-o", tmp_path), "is a folder", "the name of a file")
    (tmp_path / "empty.txt").write_text(" ")
    (tmp_path / "latin.txt").write_bytes(b"\xe9")
    one_error_line(run("--question", "a", "--context-file", tmp_path / "empty.txt"), "is empty")
    one_error_line(run("--question", "a", "--context-file", tmp_path / "latin.txt"), "not UTF-8")


def test_wrong_models(hf_bert, one_error_line, save_tiny, tmp_path):
    asked = ("--question", "a", "--context", "b")
    one_error_line(
        hf_bert("answer", save_tiny("BertForMaskedLM"), *asked),
        "lacks 2 weights of BertForQuestionAnswering",
        "fine-tuned for question answering",
    )
    model = save_tiny("BertForQuestionAnswering", tokenizer=False)
    one_error_line(hf_bert("answer", model, *asked), "has no tokenizer")
    one_error_line(hf_bert("answer", tmp_path / "none", *asked), "there is no folder")


def test_the_questions_are_no_output(hf_bert, one_error_line, model, questions, tmp_path):
    """By whatever name; and what lies where answers could grow is not written to."""
    text = questions.read_text()
    for make in (None, "symlink_to", "hardlink_to"):
        output = questions if make is None else tmp_path / make
        if make is not None:
            getattr(output, make)(questions)
        result = hf_bert("answer", model, questions, "-o", output, "--overwrite")
        one_error_line(result, "the input is in")
        assert questions.read_text() == text
    (tmp_path / ".answers.jsonl.part").symlink_to(questions)
    assert hf_bert("answer", model, questions, "-o", tmp_path / "answers.jsonl").status == 0
    assert questions.read_text() == text


def test_batch_invariant(hf_bert, model, tmp_path):
    """A line with its answer is the same alone and in a file, in any order."""
    words = ["nice", "river", "meet you", "over night", "the river rose over night, and you"]
    asked = [json.dumps({"question": f"{word}?", "context": CONTEXT * 3}) for word in words]

    def answers(lines):
        file = tmp_path / "asked.jsonl"
        file.write_text("\n".join(lines), encoding="utf-8")
        result = hf_bert("answer", model, file, "--batch-invariant", "--top-k", 4)
        assert result.status == 0, result.err
        return result.out.splitlines()

    together = answers(asked)
    assert answers(asked[::-1]) == together[::-1]
    assert [answers([line])[0] for line in asked] == together
