"""`hf-bert embed`: texts in, a .npy file out."""

import io
import json
import sys

import numpy as np
import pytest

from hf_bert_impl.cli import embed
from hf_bert_impl.data import vector_file
from tests.cli.embed.cases import (
    LINES,
    WIDTH,
    assert_complete,
    expected,
    json_lines,
)


def test_a_vector_a_line(hf_bert, model, lines, output):
    result = hf_bert("embed", model, lines, "--output", output)
    assert result.status == 0, result.err
    assert result.err == ""
    assert f"{len(LINES)} vectors of {WIDTH} numbers" in " ".join(result.out.split())
    assert_complete(output, expected(model))
    mapped = np.load(output, mmap_mode="r")
    assert mapped.shape == (len(LINES), WIDTH)


def test_options(hf_bert, model, lines, output):
    options = ("--normalize", "--batch-tokens", 5, "--dtype", "float32", "--json")
    result = hf_bert("embed", model, lines, "-o", output, *options)
    assert result.status == 0, result.err
    report = json.loads(result.out)
    assert report["rows"] == len(LINES)
    assert report["dimension"] == WIDTH
    assert report["resumed_from"] == 0
    assert report["texts_per_second"] > 0
    assert_complete(output, expected(model, normalize_embeddings=True))
    assert hf_bert("embed", model, lines, "-o", output, "--overwrite", "--quiet") == (0, "", "")
    assert_complete(output, expected(model))


@pytest.mark.parametrize(
    ("name", "column"), [("a.jsonl", None), ("a.jsonl", "body"), ("a.txt", "body")]
)
def test_json_lines(hf_bert, model, tmp_path, output, name, column):
    (tmp_path / name).write_text(json_lines(LINES, column or "text"))
    chosen = () if column is None else ("--column", column)
    result = hf_bert("embed", model, tmp_path / name, "-o", output, *chosen)
    assert result.status == 0, result.err
    assert_complete(output, expected(model))


def test_standard_input(hf_bert, model, output, monkeypatch):
    data = "\ufeff" + "\r\n".join(LINES)  # as an editor on Windows saves it, without a last end
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data.encode())))
    assert hf_bert("embed", model, "-", "-o", output).status == 0
    assert_complete(output, expected(model))


def test_other_line_ends_are_part_of_a_text(hf_bert, model, tmp_path, output):
    (tmp_path / "x.txt").write_text("nice\u2028to\x0bmeet\x85you\nriver", encoding="utf-8")
    assert hf_bert("embed", model, tmp_path / "x.txt", "-o", output, "--quiet").status == 0
    assert len(np.load(output)) == 2


@pytest.mark.parametrize("shape", [(0, 1), (7, 384), (2**63, 2**31)])
def test_header_is_that_of_the_format(shape):
    header = vector_file.npy_header(*shape)
    assert len(header) == vector_file.HEADER
    file = io.BytesIO(header)
    assert np.lib.format.read_magic(file) == (1, 0)
    assert np.lib.format.read_array_header_1_0(file) == (shape, False, np.dtype("<f4"))
    assert file.tell() == vector_file.HEADER


def test_wrong_texts(hf_bert, one_error_line, model, tmp_path, output):
    """The rest stands in data/test_text_input.py."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a"}\n\n{"id": 1, "body": "b"}')
    result = hf_bert("embed", model, file, "-o", output)
    one_error_line(result, "line 3", "'body'", "--column")
    assert list(output.parent.iterdir()) == []


def test_wrong_arguments(hf_bert, one_error_line, model, lines, output, tmp_path, monkeypatch):
    def run(*options, where=output, what=lines, which=model):
        return hf_bert("embed", which, what, "--output", where, *options)

    one_error_line(run("--dtype", "float8"), "'float8'", "float32, bfloat16, float16, int8")
    one_error_line(run(where=tmp_path / "no" / "a.npy"), "there is no folder", "make it first")
    one_error_line(run(where=tmp_path / "a.txt"), "a name that ends in .npy or .parquet")
    one_error_line(run(what=tmp_path), "is a folder")
    one_error_line(run(which=tmp_path / "no"), "there is no folder")
    one_error_line(run(which=tmp_path), "no config.json")
    (tmp_path / "dir.npy").mkdir()
    one_error_line(run(where=tmp_path / "dir.npy"), "dir.npy is a folder")
    output.write_text("mine")
    # Said before anything is loaded.
    monkeypatch.setattr(embed.checkpoints, "load_encoder", None)
    one_error_line(run(), "exists", "--overwrite")
    assert output.read_text() == "mine"


def test_the_old_output_stays_until_the_new_one_is_complete(
    hf_bert, model, lines, output, monkeypatch
):
    output.write_text("old")

    def fail(self):
        assert output.read_text() == "old"
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(vector_file.VectorFile, "finish", fail)
        result = hf_bert("embed", model, lines, "-o", output, "--overwrite")
    assert result.status == 2
    assert "No space left" in result.err
    assert output.read_text() == "old"
    assert hf_bert("embed", model, lines, "-o", output, "--overwrite").status == 0
    assert_complete(output, expected(model))
