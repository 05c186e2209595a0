"""Folders loaded as hub repositories in a process that has no hf_bert_impl."""

import json

import pytest
import torch

from hf_bert_impl.auto import MODEL_CLASSES
from hf_bert_impl.hub.load_check import check_loading
from hf_bert_impl.hub.saving import save_with_code
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS
from hf_bert_impl.report import CheckFailed

SIZES = {"hidden_size": 24, "num_attention_heads": 3}
LOADED = ("class", "logits", "token ids")
#: Kinds of models by their fields. transformers has only the first.
KINDS: dict[str, dict] = {
    "plain": {},
    "relative": {"position_embedding_type": "relative_key_query"},
    "codertimo": CODERTIMO_FIELDS | SIZES | {"intermediate_size": 96},
    "pruned": SIZES,
}


def notes(report):
    """The rows by case and name, with what failed."""
    return {(row.case, row.name): row.note for row in report.rows}


@pytest.mark.parametrize(
    "kind",
    [kind if kind == "plain" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS],
)
def test_what_loads_as_it_is_and_with_its_code(tiny, tokenizer, tmp_path, kind):
    model = tiny(**KINDS[kind])
    if kind == "pruned":
        model.prune_heads({0: [1]})
    save_with_code(model, tmp_path, tokenizer)
    report = check_loading(tmp_path, model, tokenizer)
    assert report.passed, report.summary()
    assert report.title.endswith("AutoModelForMaskedLM")
    assert notes(report).keys() == {
        *(("as it is", name) for name in (LOADED if kind == "plain" else ("refusal", "token ids"))),
        *(("code trusted", name) for name in LOADED),
    }
    # The folder is as it was: what transformers compiles and caches went elsewhere.
    assert not any(path.is_dir() for path in tmp_path.iterdir())


@pytest.mark.slow
def test_without_code_and_without_pooler(tiny, tmp_path):
    model = tiny("BertModel")
    model.pooler = None
    save_with_code(model, tmp_path, code=False)
    report = check_loading(tmp_path, model, code=False)
    assert report.passed and report.title.endswith(" AutoModel")
    assert notes(report).keys() == {("as it is", "class"), ("as it is", "last_hidden_state")}


def test_what_does_not_load_as_it_should_is_found(tiny, tmp_path):
    """Stock would compute something else, a code file is missing, and weights changed."""
    model = tiny(position_embedding_type="relative_key")
    save_with_code(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    (tmp_path / "layout.py").unlink()
    with torch.no_grad():
        model.bert.embeddings.LayerNorm.bias[2] += 1e-3
    report = check_loading(tmp_path, model)
    assert not any(row.passed for row in report.rows)
    found = notes(report)
    assert found.keys() == {
        ("as it is", "refusal"),
        ("as it is", "logits"),
        ("code trusted", "class"),
        ("file", "bert.embeddings.LayerNorm.bias"),
    }
    assert "would compute something else" in found["as it is", "refusal"]
    assert "it is refused: " in found["code trusted", "class"]
    assert "FAILED in 4 of" in str(CheckFailed(report))


def test_a_process_that_ends_early_is_an_error(tiny, tmp_path, monkeypatch):
    model = tiny()
    save_with_code(model, tmp_path)
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))  # where there is no standard library
    with pytest.raises(OSError, match=r"ended with status \d+ \(.*Nothing was published"):
        check_loading(tmp_path, model)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*MODEL_CLASSES.values()} - {"BertForMaskedLM"}))
def test_every_auto_class(tiny, tmp_path, name):
    model = tiny(name, is_decoder=name == "BertLMHeadModel")
    save_with_code(model, tmp_path)
    assert check_loading(tmp_path, model).passed
