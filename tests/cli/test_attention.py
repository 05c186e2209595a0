"""`hf-bert attention`: pages and pictures, or why there are none."""

import json
import re

import pytest

from hf_bert_impl.cli.attention import parse_numbers


def data_of(file):
    text = file.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="attention-data">(.*?)</script>', text, re.DOTALL)[1])


def test_page(hf_bert, save_tiny, tmp_path):
    file = tmp_path / "page.html"
    result = hf_bert("attention", save_tiny(), "the river rose", "nice", "-o", file)
    assert (result.status, result.err) == (0, "")
    assert result.out.replace("\n", "") == f"{file}: tokens 7, layers 2, heads 10"
    data = data_of(file)
    assert data["texts"] == ["the river rose", "nice"]
    assert data["tokens"] == ["[CLS]", "the", "river", "rose", "[SEP]", "nice", "[SEP]"]
    assert data["segments"] == [0, 0, 0, 0, 0, 1, 1]
    assert data["model"] == "BertForMaskedLM"


def test_layers_and_heads(hf_bert, save_tiny, tmp_path):
    file = tmp_path / "page.html"
    options = ("--layers", "1", "--heads", "0,2-4", "--quiet")
    result = hf_bert("attention", save_tiny(), "the river", "-o", file, *options)
    assert (result.status, result.out) == (0, "")
    (layer,) = data_of(file)["layers"]
    assert (layer["layer"], layer["heads"]) == (1, [0, 2, 3, 4])


def test_picture(hf_bert, save_tiny, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "picture.png"
    assert hf_bert("attention", save_tiny(), "the river", "-o", file).status == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_nothing_is_replaced_unasked(hf_bert, one_error_line, save_tiny, tmp_path):
    file, folder = tmp_path / "page.html", save_tiny()
    file.write_text("mine")
    result = hf_bert("attention", folder, "the river", "-o", file)
    one_error_line(result, "exists", "--overwrite")
    assert file.read_text() == "mine"
    # Nor when the command fails later.
    result = hf_bert("attention", folder, "the", "--layers", "9", "-o", file, "--overwrite")
    one_error_line(result, "layers are 9")
    assert file.read_text() == "mine"
    assert hf_bert("attention", folder, "the river", "-o", file, "--overwrite").status == 0
    assert data_of(file)["texts"] == ["the river"]


def test_bad_outputs(hf_bert, one_error_line, tmp_path):
    def run(name):
        return hf_bert("attention", "no/such/model", "the", "-o", tmp_path / name)

    one_error_line(run("page.htm"), "ends in .html, .png, .svg or .pdf")
    one_error_line(run("page"), "ends in .html")
    one_error_line(run("none/page.html"), "there is no folder")
    (tmp_path / "folder.html").mkdir()
    one_error_line(run("folder.html"), "is a folder")
    result = hf_bert("attention", "no/such/model", "the")
    assert result.status == 2
    assert "--output" in result.err


def test_bad_texts(hf_bert, one_error_line, save_tiny, tmp_path):
    folder = save_tiny()

    def run(*texts):
        return hf_bert("attention", folder, *texts, "-o", tmp_path / "page.html")

    one_error_line(run(" "), "the text is empty")
    one_error_line(run("the", ""), "the second text is empty")
    one_error_line(run("the " * 30), "32 tokens", "at most 31")
    one_error_line(run("the \udcff"), "not UTF-8")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "option, value, words",
    [
        ("--layers", "2", "layers are 2; expected some of 0 to 1"),
        ("--heads", "4-5", "heads are 4, 5; expected some of 0 to 4"),
        ("--layers", "one", "--layers is 'one'; expected numbers such as 0,3 or 1-4"),
        ("--heads", "3-1", "--heads is '3-1'"),
        ("--heads", "", "--heads is ''"),
        ("--heads", "1,,2", "--heads is '1,,2'"),
        ("--layers", "-1", "--layers is '-1'"),
    ],
)
def test_bad_numbers(hf_bert, one_error_line, save_tiny, tmp_path, option, value, words):
    page = tmp_path / "page.html"
    result = hf_bert("attention", save_tiny(), "the", "-o", page, f"{option}={value}")
    one_error_line(result, words)


def test_numbers():
    assert parse_numbers("--heads", "0,3") == [0, 3]
    assert parse_numbers("--heads", " 1-4 , 0") == [1, 2, 3, 4, 0]
    assert parse_numbers("--heads", "7-7") == [7]
