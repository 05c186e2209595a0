"""`hf-bert embed`, `answer` and `classify` in parts, without Ray."""

import json

import pytest
from pyarrow.parquet import read_table

from hf_bert_impl.distributed.job import Job
from tests.cli.cases import one_error_line
from tests.distributed.results import finished, rejects


def test_classify(hf_bert, place):
    out, keys = place / "new/out", ["k0", "k1", "k2", "k3"]
    rows = [{"key": key, "text": f"the river {key}"} for key in keys]
    rows.append({"key": "k4", "text": None})
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("classify", "BertForSequenceClassification", "rows.jsonl", "--id-column", "key")
    to_folder = (*command, "-o", out)
    assert "4 rows in 1 part, 1 rejected" in hf_bert(*to_folder).out
    rows = finished(out)
    assert list(rows) == keys
    assert {row["label"] for row in rows.values()} <= {"a", "b"}
    assert all(1 / 2 <= row["score"] <= 1 for row in rows.values())
    one_error_line(hf_bert(*to_folder), "out is finished", "--overwrite")
    assert hf_bert(*to_folder, "--resume") == (0, f"{out} is finished\n", "")
    note = f"note: 1 row(s) were rejected; the reasons are in {out / 'rejects.jsonl'}\n"
    assert hf_bert(*to_folder, "--overwrite", "-q") == (0, "", note)
    assert finished(out) == rows
    assert [row["id"] for row in rejects(out)] == ["k4"]
    to_file = (*command, "-o", "new/out.parquet")
    assert hf_bert(*to_file, "-q").status == 0
    assert read_table("new/out.parquet").to_pylist() == [*rows.values()]
    assert hf_bert(*to_file, "--resume") == (0, "new/out.parquet is finished\n", "")


@pytest.mark.parametrize("removed", [0, 2, 9])
def test_killed_after_the_output_was_written(hf_bert, interrupt, place, monkeypatch, removed):
    """While it removed its parts: the same command removes the rest, and computes nothing."""
    out = place / "new/o.parquet"
    command = ("classify", "BertForSequenceClassification", "texts.txt", "-o", out)
    command += ("--part-size", "2")

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
    interrupt(2, *command, "--overwrite")
    one_error_line(hf_bert(*command), "exists", "--overwrite")
    assert hf_bert(*command, "--overwrite").status == 0 and out.read_bytes() == before


def test_the_current_folder(hf_bert, place, monkeypatch):
    monkeypatch.chdir("new")
    assert hf_bert("embed", "../BertModel", "../labels.tsv", "--column", 0, "-o", ".").status == 0
    assert len(finished(place / "new")) == 12
    assert [*place.glob("*.parts")] == []


def test_answer(hf_bert, place):
    """The answers of the same command on lines; an empty question is rejected."""
    rows = [
        {"id": 0, "question": "the river", "context": "the night rose"},
        {"id": 1, "question": "who rose", "context": "the river rose over night"},
        {"id": 2, "question": " ", "context": "the river"},
    ]
    lines = [json.dumps(row) + "\n" for row in rows]
    command = ("answer", "BertForQuestionAnswering", "asked.jsonl")
    (place / "asked.jsonl").write_text("".join(lines[:2]))
    printed = hf_bert(*command, "--batch-invariant", "-q").printed.splitlines()
    (place / "asked.jsonl").write_text("".join(lines))
    assert hf_bert(*command, "--id-column", "id", "-o", "new/parts").status == 0
    rows = finished(place / "new/parts")
    for line in map(json.loads, printed):
        (answer,) = line["answers"]
        assert rows[line["id"]].items() >= answer.items()
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
