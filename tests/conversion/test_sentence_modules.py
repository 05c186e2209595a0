"""A sentence-transformers folder stays one."""

import json

import numpy as np
import pytest

from hf_bert_impl.conversion import convert
from hf_bert_impl.text_encoder import TextEncoder
from tests.support.damage import MODULES, PROMPTS, save_usable, write

TEXTS = ["the river rose", "nice to meet you " * 40, ""]


@pytest.fixture
def source(tmp_path):
    """A small BERT with a length, a prompt, a pooling, a linear layer and a normalization."""
    folder = save_usable(tmp_path / "source", "BertModel")
    last = {"idx": 3, "name": "3", "path": "3", "type": "sentence_transformers.models.Normalize"}
    write("modules.json", [*MODULES, last])(folder)
    prompts = {"prompts": {"query": "the river "}, "default_prompt_name": "query"}
    write(PROMPTS, prompts)(folder)
    return folder


def same_model(folder, source):
    """Whether two folders give the same vectors, of length 1, cut at the same length."""
    found, expected = (
        TextEncoder.from_pretrained(path, dtype="float32", device="cpu")
        for path in (folder, source)
    )
    assert found.max_seq_length == expected.max_seq_length
    assert found.prompts == expected.prompts
    assert found.default_prompt_name == expected.default_prompt_name
    vectors = found.encode(TEXTS)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.allclose(vectors, expected.encode(TEXTS), atol=1e-5)
    return found


def test_it_stays_what_it_is(source, tmp_path):
    report = convert(source, tmp_path / "made")
    encoder = same_model(tmp_path / "made", source)
    assert (encoder.max_seq_length, encoder.get_embedding_dimension()) == (16, 7)
    [check] = [check for check in report.rows if "sentence vectors" in check.name]
    assert check.passed and check.max_error < 1e-6
    names = {file["name"] for file in report.result["files"]}
    assert {"modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors"} <= names
    card = (tmp_path / "made/README.md").read_text()
    assert "library_name: sentence-transformers" in card and "TextEncoder" in card


def test_the_layout_of_the_first_releases(source, tmp_path):
    below = source / "0_Transformer"
    below.mkdir()
    for name in ("config.json", "model.safetensors", "vocab.txt", "sentence_bert_config.json"):
        (source / name).rename(below / name)
    modules = json.loads((source / "modules.json").read_text())
    modules[0]["path"] = below.name
    write("modules.json", modules)(source)
    convert(source, tmp_path / "made")
    same_model(tmp_path / "made", source)
    assert (tmp_path / "made/model.safetensors").is_file()
    assert not (tmp_path / "made/0_Transformer").exists()
