"""`hf-bert embed`, `answer` and `classify` in parts, without Ray."""

import json

import pytest
from pyarrow.parquet import read_table

from hf_bert_impl.distributed.job import Job
from tests.distributed.results import finished, rejects

TEXTS = ["nice to meet you", "the river rose", "", "over night ."]
KEYS = ["k0", "k1", "k2", "k3"]


@pytest.fixture
def lines(tmp_path):
    file = tmp_path / "lines.jsonl"
    rows = [{"key": f"k{n}", "text": text} for n, text in enumerate(TEXTS)]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"key": "k4", "text": None}]))
    return file


def test_classify(hf_bert, one_error_line, save_tiny, lines, tmp_path):
    model, out = save_tiny("BertForSequenceClassification", num_labels=3), tmp_path / "out"
    command = ("classify", model, lines, "-o", out, "--id-column", "key")
    assert "4 rows in 1 part, 1 rejected" in hf_bert(*command).out
    rows = finished(out)
    assert list(rows) == KEYS
    assert {row["label"] for row in rows.values()} <= {f"LABEL_{n}" for n in range(3)}
    assert all(1 / 3 <= row["score"] <= 1 for row in rows.values())
    one_error_line(hf_bert(*command), "out is finished", "--overwrite")
    assert hf_bert(*command, "--resume") == (0, f"{out} is finished\n", "")
    note = f"note: 1 row(s) were rejected; the reasons are in {out / 'rejects.jsonl'}\n"
    assert hf_bert(*command, "--overwrite", "-q") == (0, "", note)
    assert finished(out) == rows
    assert [row["id"] for row in rejects(out)] == ["k4"]
    file = out.with_suffix(".parquet")
    command = (*command[:4], file, *command[5:])
    assert hf_bert(*command, "-q").status == 0
    assert read_table(file).to_pylist() == [*rows.values()]
    assert hf_bert(*command, "--resume") == (0, f"{file} is finished\n", "")


@pytest.mark.parametrize("removed", [0, 2, 9])
def test_killed_after_the_output_was_written(
    hf_bert, one_error_line, save_tiny, lines, tmp_path, monkeypatch, removed
):
    """While it removed its parts: the same command removes the rest, and computes nothing."""
    model, out = save_tiny("BertForSequenceClassification", num_labels=3), tmp_path / "o.parquet"
    command = ("classify", model, lines, "-o", out, "--column", "text", "--part-size", "2")

    def killed(job, *_):
        for file in sorted(job.folder.glob("part-*"))[:removed]:
            file.unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Job, "discard", killed)
        assert hf_bert(*command, "-q").status == 130
    before = out.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Job, "compute", None)
        assert hf_bert(*command) == (0, f"{out} is finished\n", "")
    assert out.read_bytes() == before and not out.with_name("o.parquet.parts").exists()
    # What an interrupted --overwrite has left is no reason to replace the older output.
    make = Job.compute
    with monkeypatch.context() as patch:
        calls = iter([make, make, killed])
        patch.setattr(Job, "compute", lambda *arguments: next(calls)(*arguments))
        assert hf_bert(*command, "--overwrite").status == 130
    one_error_line(hf_bert(*command), "exists", "--overwrite")
    assert hf_bert(*command, "--overwrite").status == 0 and out.read_bytes() == before


def test_the_current_folder(hf_bert, place, monkeypatch):
    monkeypatch.chdir("new")
    assert hf_bert("embed", "../BertModel", "../labels.tsv", "--column", 0, "-o", ".").status == 0
    assert len(finished(place / "new")) == 12
    assert [*place.glob("*.parts")] == []


def test_answer(hf_bert, place):
    """The answers of the same command on lines; an empty question is rejected."""
    pairs = [("the river", "the night rose"), ("who rose", "the river rose over night")]
    lines = [
        json.dumps({"id": number, "question": question, "context": context}) + "\n"
        for number, (question, context) in enumerate([*pairs, (" ", "the river")])
    ]
    command = ("answer", "BertForQuestionAnswering", "asked.jsonl")
    (place / "asked.jsonl").write_text("".join(lines[:2]))
    printed = hf_bert(*command, "--json", "--batch-invariant", "-q").printed.splitlines()
    (place / "asked.jsonl").write_text("".join(lines))
    assert hf_bert(*command, "--id-column", "id", "-o", "new/parts").status == 0
    rows = finished(place / "new/parts")
    for line in map(json.loads, printed):
        found = rows[line["id"]]
        assert [{name: found[name] for name in line["answers"][0]}] == line["answers"]
    assert [row["id"] for row in rejects(place / "new/parts")] == [2]


def test_a_first_line_that_is_taken_as_a_text_is_said_once(hf_bert, save_tiny, tmp_path):
    """In one file and in parts, with names that are not UTF-8; also with a header."""
    model, file = save_tiny("BertModel"), tmp_path / "odd\udcc9.csv"
    file.write_text("text,id\nnice,7\nriver,8\n")
    for more in (["-o", tmp_path / "a.parquet"], ["-o", tmp_path / "\udcc9", "--resume"]):
        result = hf_bert("embed", model, file, "--column", 0, "--id-column", 1, *more)
        assert result.status == 0
        assert result.err.count("note: the first line of ") == 1
        assert "is read as a row ('text'), since column 0 is a number" in result.err
        result = hf_bert("embed", model, file, "--column", "text", *more, "--overwrite", "-q")
        assert (result.status, result.err) == (0, "")
    assert json.loads((tmp_path / "\udcc9" / "manifest.json").read_text())["rows"] == 2
