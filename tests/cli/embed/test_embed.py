"""`hf-bert embed`: texts or a table in; a .npy, a Parquet file or a folder of parts out."""

import numpy as np
import pytest
from pyarrow.parquet import read_table

from hf_bert_impl.data.vector_table import as_stored
from hf_bert_impl.distributed import EmbedTexts
from tests.cli.embed.cases import LINES, WIDTH, assert_complete, expected, give_input


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
    assert hf_bert("embed", model, lines, "-o", output, "--overwrite", "--quiet") == (0, "", "")


def test_standard_input(hf_bert, model, output, monkeypatch):
    """As an editor on Windows saves it. Other line ends are part of a text."""
    texts = ["\ufeffnice", "to\u2028meet\x0byou\x85river\r"]
    give_input(monkeypatch, texts)
    assert hf_bert("embed", model, "-", "-o", output).status == 0
    assert_complete(output, expected(model, ["nice", texts[1]]))


def test_a_table_to_a_file_a_folder_and_an_array(hf_bert, model, tmp_path, output):
    """Of the same parts: a name without an ending is that of their folder."""
    people, names = tmp_path / "people.csv", [f"n{n}" for n in range(len(LINES))]
    rows = zip(names, LINES, strict=True)
    people.write_text("name,says\n" + "".join(f'{name},"{text}"\n' for name, text in rows))
    one, folder, ids = output.with_suffix(".parquet"), output.with_suffix(""), "--id-column"
    command = ("embed", model, people, "--column", "says", "--part-size", 2, "--output")
    for options in ([one, ids, "name"], [folder, ids, "name"], [output]):
        assert hf_bert(*command, *options).status == 0
    table, files = read_table(one), sorted(folder.glob("*.parquet"))
    assert table.column_names == ["id", "vector"]
    assert str(table.schema.field("vector").type) == f"fixed_size_list<element: float>[{WIDTH}]"
    assert table["id"].to_pylist() == names
    parts = [read_table(file)["id"].to_pylist() for file in files]
    assert parts == [names[:2], names[2:4], names[4:]]
    vectors = [row["vector"] for file in files for row in read_table(file).to_pylist()]
    for found in (table["vector"].to_pylist(), vectors, np.load(output)):
        assert np.abs(np.array(found) - expected(model)).max() < 1e-5
    assert sorted(output.parent.iterdir()) == sorted((one, folder, output))
    assert hf_bert(*command, one, "--overwrite").status == 0
    assert read_table(one)["id"].to_pylist() == [*range(len(LINES))]


def test_in_an_array_they_are_nan(hf_bert, model, tmp_path, output, monkeypatch):
    """Row n stays that of line n. A later run without such rows removes the list of them."""
    compute = EmbedTexts.compute

    def huge(self, *texts):  # a vector that is too large for float16
        (vectors,) = compute(self, *texts)
        vectors[[text == "huge" for text in texts[0]]] = 1e7
        return (vectors,)

    monkeypatch.setattr(EmbedTexts, "compute", huge)
    file, rejects = tmp_path / "a.txt", output.with_name("vectors.npy.rejects.jsonl")
    file.write_bytes(b"nice\ncaf\xe9\nhuge\nriver\n")
    command = ("embed", model, file, "-o", output, "--precision", "float16", "--json")
    report = hf_bert(*command).report
    assert (report["rows"], report["rejected"]) == (2, 2)
    found = np.load(output)
    assert np.isnan(found).all(axis=1).tolist() == [False, True, True, False]
    assert np.allclose(found[[0, 3]], expected(model, ["nice", "river"]), rtol=1e-3, atol=1e-6)
    assert "line 2 of" in rejects.read_text().splitlines()[0]
    file.write_text("nice\n")
    assert hf_bert(*command, "--overwrite").status == 0
    assert [*output.parent.iterdir()] == [output]


@pytest.mark.parametrize(
    ("name", "precision"), [("a.npy", "float16"), ("a.parquet", "float16"), ("a.parquet", "int8")]
)
def test_smaller_numbers(hf_bert, model, lines, output, name, precision):
    output, right = output.with_name(name), expected(model)
    command = ("embed", model, lines, "--batch-invariant", "-o", output, "--precision", precision)
    assert hf_bert(*command).status == 0
    if name == "a.npy":
        found = np.load(output)
        assert found.dtype == np.float16
    else:
        table = read_table(output)
        kind = str(table.schema.field("vector").type.value_type)
        assert kind == {"float16": "halffloat"}.get(precision, precision)
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
    with pytest.raises(ValueError, match=r"vector is nan, which float16 cannot hold"):
        as_stored(vectors * np.nan, "float16")
