"""`hf-bert embed` from tables to Parquet, with ids, in parts and in smaller numbers."""

import json
import types

import numpy as np
import pytest

from hf_bert_impl.data import vector_file, vector_table
from tests.cli.embed.cases import LINES, WIDTH, expected

pytest.importorskip("pyarrow", reason="pip install -e '.[train]'")
from pyarrow.parquet import read_table


@pytest.fixture
def people(tmp_path):
    """A table whose texts are LINES."""
    file = tmp_path / "people.csv"
    rows = "".join(f'n{n},"{text}"\n' for n, text in enumerate(LINES))
    file.write_text("name,says\n" + rows)
    return file


def test_a_table_to_a_table(hf_bert, model, people, output):
    output = output.with_suffix(".parquet")
    command = ("embed", model, people, "-o", output, "--column", "says")
    assert hf_bert(*command, "--id-column", "name").status == 0
    table, right = read_table(output), expected(model)
    assert table.column_names == ["id", "vector"]
    assert table["id"].to_pylist() == [f"n{n}" for n in range(len(LINES))]
    assert str(table.schema.field("vector").type) == f"fixed_size_list<element: float>[{WIDTH}]"
    assert np.abs(np.array(table["vector"].to_pylist()) - right).max() < 1e-5
    assert [*output.parent.iterdir()] == [output]
    result = hf_bert(*command, "--overwrite", "--json")
    assert result.status == 0, result.err
    assert json.loads(result.out)["stored_as"] == "float32"
    assert read_table(output)["id"].to_pylist() == [*range(len(LINES))]


def test_in_parts(hf_bert, one_error_line, model, lines, output):
    output = output.with_suffix(".parquet")
    command = ("embed", model, lines, "-o", output)
    assert hf_bert(*command, "--part-size", 2).status == 0
    files = sorted(output.iterdir())
    assert [file.name for file in files] == [f"part-0000{n}.parquet" for n in range(3)]
    assert [read_table(file)["id"].to_pylist() for file in files] == [[0, 1], [2, 3], [4]]
    assert np.abs(np.array(read_table(output)["vector"].to_pylist()) - expected(model)).max() < 1e-5
    assert [*output.parent.iterdir()] == [output]
    one_error_line(hf_bert(*command, "--overwrite"), "is a folder")


def test_smaller_numbers(hf_bert, model, lines, output):
    right = expected(model)
    command = ("embed", model, lines, "--batch-invariant")
    assert hf_bert(*command, "-o", output, "--precision", "float16").status == 0
    found = np.load(output)
    assert found.dtype == np.float16 and np.allclose(found, right, rtol=1e-3, atol=1e-6)
    for kind, arrow_kind in (("float16", "halffloat"), ("int8", "int8")):
        output = output.with_name(f"{kind}.parquet")
        assert hf_bert(*command, "-o", output, "--precision", kind).status == 0
        table = read_table(output)
        assert str(table.schema.field("vector").type.value_type) == arrow_kind
        found = np.array(table["vector"].to_pylist(), np.float32)
        if kind == "int8":
            assert (np.abs(found).max(axis=1) == 127).all()
            scales = table["scale"].to_numpy()[:, None]
            assert (np.abs(found * scales - right) <= scales * 0.501).all()
        else:
            assert np.allclose(found, right, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e5])
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
    result = hf_bert(*command)
    assert result.status == 0, result.err
    assert json.loads(result.out)["resumed_from"] == len(LINES)
    assert read_table(output).num_rows == len(LINES)
    assert [*output.parent.iterdir()] == [output]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ('"a",1\n"b",1\n', ("line 3 of", "has the id '1', which text 1 has already")),
        ('"a",1\n"b",\n', ("line 3 of", "has no id", "--id-column")),
    ],
)
def test_wrong_ids(hf_bert, one_error_line, model, tmp_path, output, rows, words):
    (tmp_path / "a.csv").write_text("text,id\n" + rows)
    output = output.with_suffix(".parquet")
    command = ("embed", model, tmp_path / "a.csv", "-o", output)
    one_error_line(hf_bert(*command, "--column", "text", "--id-column", "id"), *words)
    assert list(output.parent.iterdir()) == []


def test_what_a_npy_cannot_hold(hf_bert, one_error_line, model, people, output):
    command = ("embed", model, people, "-o", output, "--column", "says")
    for option in (("--id-column", "name"), ("--part-size", 3), ("--precision", "int8")):
        one_error_line(hf_bert(*command, *option), option[0], "ends in .parquet")
    one_error_line(hf_bert(*command, "--precision", "binary"), "float32, float16, int8")
    assert list(output.parent.iterdir()) == []
