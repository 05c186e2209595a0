"""`hf-bert embed`, `answer` and `classify` of many texts: files and folders of parts."""

import json

import numpy as np
import pytest
from pyarrow.parquet import read_table

from hf_bert_impl import QuestionAnsweringPipeline
from hf_bert_impl.data.vector_table import as_stored
from hf_bert_impl.distributed import EmbedTexts
from tests.cli.cases import LINES, assert_complete, expected, give_input, one_error_line
from tests.distributed.cases import finished, rejects


def test_a_vector_a_line(hf_bert, model, lines, output):
    result = hf_bert("embed", model, lines, "--output", output)
    assert (result.status, result.err) == (0, "")
    assert f"{len(LINES)} rows in 1 part, 0 rejected" in " ".join(result.out.split())
    assert_complete(output, expected(model))
    options = ("--normalize", "--batch-tokens", 5, "--dtype", "float32", "--json", "--overwrite")
    report = hf_bert("embed", model, lines, "-o", output, *options).report
    assert (report["rows"], report["rejected"], report["resumed_from"]) == (len(LINES), 0, 0)
    assert report["precision"].startswith("float32")
    assert report["texts_per_second"] > 0
    assert_complete(output, expected(model, normalize_embeddings=True))


def test_standard_input(hf_bert, model, output, monkeypatch):
    """As an editor on Windows saves it. Other line ends are part of a text."""
    texts = ["\ufeffnice", "to\u2028meet\x0byou\x85river\r"]
    give_input(monkeypatch, texts)
    assert hf_bert("embed", model, "-", "-o", output, "-q") == (0, "", "")
    assert_complete(output, expected(model, ["nice", texts[1]]))


def test_a_table_to_a_file_a_folder_and_an_array(hf_bert, model, write, output):
    """Of the same parts: a name without an ending is that of their folder."""
    names = [f"n{n}" for n in range(len(LINES))]
    rows = (f'{name},"{text}"\n' for name, text in zip(names, LINES, strict=True))
    people = write("people.csv", "name,says\n" + "".join(rows))
    one, folder = output.with_suffix(".parquet"), output.with_suffix("")
    command = ("embed", model, people, "--column", "says", "--part-size", 2, "--output")
    for place in (one, folder, output):
        ids = [] if place == output else ["--id-column", "name"]
        assert hf_bert(*command, place, *ids).status == 0
    table, files = read_table(one), sorted(folder.glob("*.parquet"))
    assert table.column_names == ["id", "vector"]
    assert str(table.schema.field("vector").type) == "fixed_size_list<element: float>[30]"
    assert table["id"].to_pylist() == names
    parts = [read_table(file)["id"].to_pylist() for file in files]
    assert parts == [names[:2], names[2:4], names[4:]]
    vectors = [row["vector"] for file in files for row in read_table(file).to_pylist()]
    for found in (table["vector"].to_pylist(), vectors, np.load(output)):
        assert np.abs(np.array(found) - expected(model)).max() < 1e-5
    assert sorted(output.parent.iterdir()) == sorted((one, folder, output))
    assert hf_bert(*command, one, "--overwrite").status == 0
    assert read_table(one)["id"].to_pylist() == [*range(len(LINES))]


def test_in_an_array_they_are_nan(hf_bert, model, write, output, monkeypatch):
    """Row n stays that of line n. A later run without such rows removes the list of them."""
    compute = EmbedTexts.compute

    def huge(self, *texts):  # a vector that is too large for float16
        (vectors,) = compute(self, *texts)
        vectors[[text == "huge" for text in texts[0]]] = 1e7
        return (vectors,)

    monkeypatch.setattr(EmbedTexts, "compute", huge)
    file = write("a.txt", b"nice\ncaf\xe9\nhuge\nriver\n")
    command = ("embed", model, file, "-o", output, "--precision", "float16", "--json")
    report = hf_bert(*command).report
    assert (report["rows"], report["rejected"]) == (2, 2)
    found = np.load(output)
    assert found.dtype == np.float16
    assert np.isnan(found).all(axis=1).tolist() == [False, True, True, False]
    assert np.allclose(found[[0, 3]], expected(model, ["nice", "river"]), rtol=1e-3, atol=1e-6)
    reasons = output.with_name("vectors.npy.rejects.jsonl").read_text()
    assert "line 2 of" in reasons.splitlines()[0]
    file.write_text("nice\n")
    assert hf_bert(*command, "--overwrite").status == 0
    assert [*output.parent.iterdir()] == [output]


@pytest.mark.parametrize(("precision", "kind"), [("float16", "halffloat"), ("int8", "int8")])
def test_smaller_numbers_in_parquet(hf_bert, model, lines, output, precision, kind):
    output, right = output.with_suffix(".parquet"), expected(model)
    command = ("embed", model, lines, "--batch-invariant", "-o", output, "--precision", precision)
    assert hf_bert(*command).status == 0
    table = read_table(output)
    assert str(table.schema.field("vector").type.value_type) == kind
    found = np.array(table["vector"].to_pylist(), np.float32)
    if precision == "int8":
        assert (np.abs(found).max(axis=1) == 127).all()
        scales = table["scale"].to_numpy()[:, None]
        assert (np.abs(found * scales - right) <= scales * 0.501).all()
    else:
        assert np.allclose(found, right, rtol=1e-3, atol=1e-6)


def test_int8_of_a_vector_of_zeros():
    vectors = np.array([[0, 0, 0], [1, -2, 0.5]], np.float32)
    numbers, scales = as_stored(vectors, "int8")
    assert numbers.tolist() == [[0, 0, 0], [64, -127, 32]]
    assert scales.tolist() == [0, np.float32(2 / 127)]


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
    one_error_line(hf_bert(*to_folder), "out is finished", "--overwrite")
    assert hf_bert(*to_folder, "--resume") == (0, f"{out} is finished\n", "")
    note = f"note: 1 row(s) were rejected; the reasons are in {out / 'rejects.jsonl'}\n"
    assert hf_bert(*to_folder, "--overwrite", "-q") == (0, "", note)
    assert finished(out) == rows
    assert [row["id"] for row in rejects(out)] == ["k4"]
    assert hf_bert(*command, "-o", "new/out.parquet").status == 0
    assert read_table("new/out.parquet").to_pylist() == [*rows.values()]


def test_the_current_folder(hf_bert, place, monkeypatch):
    monkeypatch.chdir("new")
    assert hf_bert("embed", "../BertModel", "../labels.tsv", "--column", 0, "-o", ".").status == 0
    assert len(finished(place / "new")) == 12
    assert [*place.glob("*.parts")] == []


def test_answer(hf_bert, place):
    """The answers of the pipeline; an empty question is rejected."""
    model = "BertForQuestionAnswering"
    rows = [
        {"id": 0, "question": "the river", "context": "the night rose"},
        {"id": 1, "question": "who rose", "context": "the river rose over night"},
        {"id": 2, "question": " ", "context": "the river"},
    ]
    (place / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert hf_bert("answer", model, "asked.jsonl", "--id-column", "id", "-o", "new/a").status == 0
    pipe = QuestionAnsweringPipeline.from_pretrained(model, device="cpu", batch_invariant=True)
    found = finished(place / "new/a")
    for row in rows[:2]:
        answer = pipe(question=row["question"], context=row["context"])
        assert found[row["id"]].items() >= answer.items()
    assert [row["id"] for row in rejects(place / "new/a")] == [2]


def test_a_first_line_that_is_taken_as_a_text_is_said_once(hf_bert, model, write, tmp_path):
    """In one file and in parts, with names that are not UTF-8; also with a header."""
    file = write("odd\udcc9.csv", "text,id\nnice,7\nriver,8\n")
    for more in (["-o", tmp_path / "a.parquet"], ["-o", tmp_path / "\udcc9", "--resume"]):
        result = hf_bert("embed", model, file, "--column", 0, "--id-column", 1, *more)
        assert result.status == 0
        assert result.err.count("note: the first line of ") == 1
        assert "is read as a row ('text'), since column 0 is a number" in result.err
        result = hf_bert("embed", model, file, "--column", "text", *more, "--overwrite", "-q")
        assert (result.status, result.err) == (0, "")
    assert json.loads((tmp_path / "\udcc9" / "manifest.json").read_text())["rows"] == 2
