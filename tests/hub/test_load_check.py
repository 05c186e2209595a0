"""Folders loaded as hub repositories in a process that has no hf_bert_impl."""

import json

import pytest
import torch
from rich.console import Console

from hf_bert_impl.auto import MODEL_CLASSES
from hf_bert_impl.hub.load_check import LoadingFailed, check_loading
from hf_bert_impl.hub.saving import save_with_code
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS

HEADS = set(MODEL_CLASSES)
REPO = "some.one/a-bert_v1.0"


@pytest.mark.slow
def test_a_plain_model_loads_both_ways(tiny, tokenizer, tmp_path):
    model = tiny("BertForTokenClassification", num_labels=5)
    save_with_code(model, tmp_path, tokenizer)
    report = check_loading(tmp_path, REPO, model, tokenizer)
    assert report.passed, report
    assert [row.loader for row in report.rows] == [*MODEL_CLASSES, "AutoTokenizer"]
    for row in report.rows:
        assert (row.stock, row.trusted, row.note) == ("transformers", "this code", "")
        if row.loader in HEADS:
            assert row.max_error < 2e-5
    # The folder is as it was: what transformers compiles and caches went elsewhere.
    assert not any(path.is_dir() for path in tmp_path.iterdir())


OWN = {
    "relative": {"position_embedding_type": "relative_key_query"},
    "codertimo": {
        **CODERTIMO_FIELDS,
        **{"hidden_size": 24, "intermediate_size": 96, "num_attention_heads": 3},
    },
    "pruned": {"hidden_size": 24, "num_attention_heads": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OWN)
def test_what_transformers_has_not_loads_with_its_code_only(
    tiny, tokenizer, tmp_path, monkeypatch, kind
):
    few = {"AutoModel": "BertModel", "AutoModelForMaskedLM": "BertForMaskedLM"}
    if kind != "relative":  # one of them by every Auto class
        monkeypatch.setattr("hf_bert_impl.hub.load_check.MODEL_CLASSES", few)
    model = tiny(**OWN[kind])
    if kind == "pruned":
        model.prune_heads({0: [1]})
    save_with_code(model, tmp_path, tokenizer)
    report = check_loading(tmp_path, REPO, model, tokenizer)
    assert report.passed, report
    *rows, words = report.rows
    assert {row.stock for row in rows} == {"refused"}
    assert {row.trusted for row in report.rows} == {"this code"}
    assert (words.loader, words.stock) == ("AutoTokenizer", "transformers")
    errors = {row.loader: row.max_error for row in rows}
    assert errors["AutoModelForMaskedLM"] < 2e-5


def test_what_does_not_load_as_it_should_is_found(tiny, tmp_path, monkeypatch):
    """Stock would load and compute something else; a code file is missing; weights changed."""
    few = {"AutoModel": "BertModel", "AutoModelForMaskedLM": "BertForMaskedLM"}
    monkeypatch.setattr("hf_bert_impl.hub.load_check.MODEL_CLASSES", few)
    model = tiny(position_embedding_type="relative_key")
    save_with_code(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    (tmp_path / "layout.py").unlink()
    with torch.no_grad():
        model.bert.embeddings.LayerNorm.bias[2] += 1e-3
    report = check_loading(tmp_path, REPO, model)
    assert not report.passed
    rows = {row.loader: row for row in report.rows}
    assert rows.keys() == {*few, "weights"}
    assert not any(row.passed for row in report.rows)
    own = rows["AutoModelForMaskedLM"]
    assert own.stock == "transformers"
    assert "would compute something else" in own.note
    assert "stock and model differ" in own.note
    assert own.trusted == "refused"
    assert "its code does not load" in own.note
    assert "bert.embeddings.LayerNorm.bias" in rows["weights"].note
    error = LoadingFailed(report)
    assert "AutoModel: " in str(error)
    console = Console(width=200, record=True, quiet=True)
    report.render(console)
    json.dumps(report.to_dict())


def test_a_process_that_ends_early_is_an_error(tiny, tmp_path, monkeypatch):
    model = tiny()
    save_with_code(model, tmp_path)
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))  # where there is no standard library
    with pytest.raises(OSError, match=r"ended with status \d+ \(.*nothing was published"):
        check_loading(tmp_path, REPO, model)
