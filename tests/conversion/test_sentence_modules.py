"""A sentence-transformers folder stays one."""

import numpy as np
import pytest

from hf_bert_impl.conversion import convert
from hf_bert_impl.text_encoder import TextEncoder
from tests.support.damage import MODULES, PROMPTS, save_usable, write

TEXTS = ["the river rose", "nice to meet you " * 40, ""]


@pytest.mark.parametrize("below", ["", "0_Transformer"], ids=["now", "first releases"])
def test_it_stays_what_it_is(tmp_path, below):
    """A small BERT with a length, a prompt, a pooling, a linear layer and a normalization."""
    source, made = save_usable(tmp_path / "source", "BertModel"), tmp_path / "made"
    last = {"idx": 3, "name": "3", "path": "3", "type": "sentence_transformers.models.Normalize"}
    first, *others = MODULES
    write("modules.json", [first | {"path": below}, *others, last])(source)
    prompts = {"prompts": {"query": "the river "}, "default_prompt_name": "query"}
    write(PROMPTS, prompts)(source)
    if below:
        (source / below).mkdir()
        for name in ("config.json", "model.safetensors", "vocab.txt", "sentence_bert_config.json"):
            (source / name).rename(source / below / name)
    report = convert(source, made)
    assert not (made / "0_Transformer").exists()
    found, expected = (
        TextEncoder.from_pretrained(path, dtype="float32", device="cpu") for path in (made, source)
    )
    assert (found.max_seq_length, found.get_embedding_dimension()) == (16, 7)
    assert expected.max_seq_length == 16
    assert found.prompts == expected.prompts
    assert found.default_prompt_name == expected.default_prompt_name
    vectors = found.encode(TEXTS)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.allclose(vectors, expected.encode(TEXTS), atol=1e-5)
    [check] = [check for check in report.rows if "sentence vectors" in check.name]
    assert check.passed and check.max_error < 1e-6
    assert "7 numbers, texts truncated to 16 tokens" in check.note
    names = {file["name"] for file in report.result["files"]}
    assert {"modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors"} <= names
    card = (made / "README.md").read_text()
    assert "library_name: sentence-transformers" in card and "TextEncoder" in card
