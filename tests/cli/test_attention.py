"""`hf-bert attention`: pages, pictures and errors."""

import json
import re


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
    options = ("--layers", "1-1", "--heads", " 2-4 , 0", "--quiet")
    result = hf_bert("attention", save_tiny(), "the river", "-o", file, *options)
    assert (result.status, result.out) == (0, "")
    (layer,) = data_of(file)["layers"]
    assert (layer["layer"], layer["heads"]) == (1, [0, 2, 3, 4])


def test_picture(hf_bert, save_tiny, tmp_path):
    file = tmp_path / "picture.png"
    assert hf_bert("attention", save_tiny(), "the river", "--plot", file).status == 0
    assert file.read_bytes().startswith(b"\x89PNG")
