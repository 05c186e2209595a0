"""`hf-bert embed`: texts or a table in; a .npy or Parquet file out."""

import io
import json
import types

import numpy as np
import pytest

from hf_bert_impl.data import vector_file, vector_table
from tests.cli.embed.cases import LINES, WIDTH, assert_complete, expected, give_input, json_lines

pytest.importorskip("pyarrow", reason="pip install -e '.[train]'")
from pyarrow.parquet import read_table


def test_a_vector_a_line(hf_bert, model, lines, output):
    result = hf_bert("embed", model, lines, "--output", output)
    assert (result.status, result.err) == (0, "")
    assert f"{len(LINES)} vectors of {WIDTH} numbers" in " ".join(result.out.split())
    assert_complete(output, expected(model))
    options = ("--normalize", "--batch-tokens", 5, "--dtype", "float32", "--json", "--overwrite")
    report = json.loads(hf_bert("embed", model, lines, "-o", output, *options).out)
    assert (report["rows"], report["dimension"], report["resumed_from"]) == (len(LINES), WIDTH, 0)
    assert report["texts_per_second"] > 0
    assert_complete(output, expected(model, normalize_embeddings=True))
    assert hf_bert("embed", model, lines, "-o", output, "--overwrite", "--quiet") == (0, "", "")


@pytest.mark.parametrize("column", [None, "body"])
def test_json_lines(hf_bert, model, tmp_path, output, column):
    file = tmp_path / ("a.jsonl" if column is None else "a.txt")
    file.write_text(json_lines(LINES, column or "text"))
    chosen = () if column is None else ("--column", column)
    assert hf_bert("embed", model, file, "-o", output, *chosen).status == 0
    assert_complete(output, expected(model))


def test_standard_input(hf_bert, model, output, monkeypatch):
    """As an editor on Windows saves it. Other line ends are part of a text."""
    texts = ["\ufeffnice", "to\u2028meet\x0byou\x85river\r"]
    give_input(monkeypatch, texts)
    assert hf_bert("embed", model, "-", "-o", output).status == 0
    assert_complete(output, expected(model, ["nice", texts[1]]))


@pytest.mark.parametrize("shape", [(7, 384), (2**63, 2**31)])
def test_header_is_that_of_the_format(shape):
    header = vector_file.npy_header(*shape)
    file = io.BytesIO(header)
    assert np.lib.format.read_magic(file) == (1, 0)
    assert np.lib.format.read_array_header_1_0(file) == (shape, False, np.dtype("<f4"))
    assert file.tell() == len(header) == vector_file.HEADER


def test_a_table_to_a_table(hf_bert, model, tmp_path, output):
    people, output = tmp_path / "people.csv", output.with_suffix(".parquet")
    people.write_text("name,says\n" + "".join(f'n{n},"{text}"\n' for n, text in enumerate(LINES)))
    command = ("embed", model, people, "-o", output, "--column", "says")
    assert hf_bert(*command, "--id-column", "name").status == 0
    table, right = read_table(output), expected(model)
    assert table.column_names == ["id", "vector"]
    assert table["id"].to_pylist() == [f"n{n}" for n in range(len(LINES))]
    assert str(table.schema.field("vector").type) == f"fixed_size_list<element: float>[{WIDTH}]"
    assert np.abs(np.array(table["vector"].to_pylist()) - right).max() < 1e-5
    assert [*output.parent.iterdir()] == [output]
    assert hf_bert(*command, "--overwrite").status == 0
    assert read_table(output)["id"].to_pylist() == [*range(len(LINES))]


def test_in_files(hf_bert, model, lines, output):
    output = output.with_suffix(".parquet")
    assert hf_bert("embed", model, lines, "-o", output, "--part-size", 2).status == 0
    files = sorted(output.iterdir())
    assert [file.name for file in files] == [f"part-0000{n}.parquet" for n in range(3)]
    assert [read_table(file)["id"].to_pylist() for file in files] == [[0, 1], [2, 3], [4]]
    assert np.abs(np.array(read_table(output)["vector"].to_pylist()) - expected(model)).max() < 1e-5
    assert [*output.parent.iterdir()] == [output]


@pytest.mark.parametrize(
    ("name", "kind"), [("a.npy", "float16"), ("a.parquet", "halffloat"), ("a.parquet", "int8")]
)
def test_smaller_numbers(hf_bert, model, lines, output, name, kind):
    output, right = output.with_name(name), expected(model)
    precision = "int8" if kind == "int8" else "float16"
    command = ("embed", model, lines, "--batch-invariant", "-o", output, "--precision", precision)
    assert hf_bert(*command).status == 0
    if name == "a.npy":
        found = np.load(output)
        assert found.dtype == np.float16
    else:
        table = read_table(output)
        assert str(table.schema.field("vector").type.value_type) == kind
        found = np.array(table["vector"].to_pylist(), np.float32)
    if kind == "int8":
        assert (np.abs(found).max(axis=1) == 127).all()
        scales = table["scale"].to_numpy()[:, None]
        assert (np.abs(found * scales - right) <= scales * 0.501).all()
    else:
        assert np.allclose(found, right, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, 1e5])
def test_a_number_that_does_not_fit(tmp_path, bad):
    vectors = np.zeros((3, 2), np.float32)
    with vector_file.VectorFile(tmp_path / "a.npy", 2, {}, precision="float16") as file:
        file.append(["a", "b", "c"], vectors)
        vectors[1, 1] = bad
        with pytest.raises(ValueError, match=r"vector of text 5 has .* float16 can hold"):
            file.append(["d", "e", "f"], vectors)
        file.finish()
    assert np.array_equal(np.load(tmp_path / "a.npy"), np.zeros((3, 2), np.float16))


def test_int8_of_a_vector_of_zeros(tmp_path):
    with vector_file.VectorFile(tmp_path / "a.parquet", 3, {}, precision="int8") as file:
        file.append(["a", "b"], np.array([[0, 0, 0], [1, -2, 0.5]], np.float32))
        file.finish()
    table = read_table(tmp_path / "a.parquet")
    assert table["vector"].to_pylist() == [[0, 0, 0], [64, -127, 32]]
    assert table["scale"].to_pylist() == [0, np.float32(2 / 127)]


@pytest.mark.parametrize("parts", [(), ("--part-size", 2)])
def test_killed_while_the_table_is_made(hf_bert, model, lines, output, monkeypatch, parts):
    """Nothing half written is there, and the rows are not made again."""
    output = output.with_suffix(".parquet")
    command = ("embed", model, lines, "-o", output, *parts, "--json")
    with monkeypatch.context() as patch:
        # Killed without warning: nothing is cleaned up.
        nothing = types.SimpleNamespace(rmtree=lambda *given, **options: None)
        patch.setattr(vector_table, "shutil", nothing)
        patch.setattr(vector_table, "sync", lambda file: (_ for _ in ()).throw(KeyboardInterrupt))
        assert hf_bert(*command).status == 130
    assert not output.exists()
    assert any(file.name.endswith(".partial-table") for file in output.parent.iterdir())
    assert json.loads(hf_bert(*command).out)["resumed_from"] == len(LINES)
    assert read_table(output).num_rows == len(LINES)
    assert [*output.parent.iterdir()] == [output]
