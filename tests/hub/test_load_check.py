"""Folders loaded as hub repositories in a process that has no hf_bert_impl."""

import json
import subprocess
import sys

import pytest
import torch

from hf_bert_impl.auto import MODEL_CLASSES
from hf_bert_impl.hub.load_check import check_loading
from hf_bert_impl.hub.saving import save_with_code
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS
from hf_bert_impl.report import CheckFailed
from tests.hub_server import HubServer

OWN = {
    "relative": {"position_embedding_type": "relative_key_query"},
    "codertimo": {
        **CODERTIMO_FIELDS,
        **{"hidden_size": 24, "intermediate_size": 96, "num_attention_heads": 3},
    },
    "pruned": {"hidden_size": 24, "num_attention_heads": 3},
}


def found(report):
    """The rows by case and name, with what failed."""
    return {(row.case, row.name): row.note for row in report.rows}


@pytest.mark.slow
def test_a_plain_model_loads_both_ways(tiny, tokenizer, tmp_path):
    model = tiny("BertForTokenClassification", num_labels=5)
    save_with_code(model, tmp_path, tokenizer)
    report = check_loading(tmp_path, model, tokenizer)
    assert report.passed, report.summary()
    assert report.title.endswith("AutoModelForTokenClassification")
    cases, names = ("as it is", "code trusted"), ("class", "logits", "token ids")
    assert found(report).keys() == {(case, name) for case in cases for name in names}
    # The folder is as it was: what transformers compiles and caches went elsewhere.
    assert not any(path.is_dir() for path in tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("kind", OWN)
def test_what_transformers_has_not_loads_with_its_code_only(tiny, tokenizer, tmp_path, kind):
    model = tiny(**OWN[kind])
    if kind == "pruned":
        model.prune_heads({0: [1]})
    save_with_code(model, tmp_path, tokenizer)
    report = check_loading(tmp_path, model, tokenizer)
    assert report.passed, report.summary()
    assert found(report).keys() == {
        ("as it is", "refusal"),
        ("as it is", "token ids"),
        *(("code trusted", name) for name in ("class", "logits", "token ids")),
    }


@pytest.mark.slow
def test_without_code_and_without_pooler(tiny, tmp_path):
    model = tiny("BertModel")
    model.pooler = None
    save_with_code(model, tmp_path, code=False)
    report = check_loading(tmp_path, model, code=False)
    assert report.passed and report.title.endswith(" AutoModel")
    assert found(report).keys() == {("as it is", "class"), ("as it is", "last_hidden_state")}


def test_what_does_not_load_as_it_should_is_found(tiny, tmp_path):
    """Stock would load and compute something else; a code file is missing; weights changed."""
    model = tiny(position_embedding_type="relative_key")
    save_with_code(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    (tmp_path / "layout.py").unlink()
    with torch.no_grad():
        model.bert.embeddings.LayerNorm.bias[2] += 1e-3
    report = check_loading(tmp_path, model)
    assert not any(row.passed for row in report.rows)
    notes = found(report)
    assert notes.keys() == {
        ("as it is", "refusal"),
        ("as it is", "logits"),
        ("code trusted", "class"),
        ("file", "bert.embeddings.LayerNorm.bias"),
    }
    assert "would compute something else" in notes["as it is", "refusal"]
    assert "it is refused: " in notes["code trusted", "class"]
    assert "FAILED in 4 of" in str(CheckFailed(report))


def test_a_process_that_ends_early_is_an_error(tiny, tmp_path, monkeypatch):
    model = tiny()
    save_with_code(model, tmp_path)
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))  # where there is no standard library
    with pytest.raises(OSError, match=r"ended with status \d+ \(.*nothing was published"):
        check_loading(tmp_path, model)


EVERY = """
import json, sys
import torch, transformers
sys.modules["hf_bert_impl"] = None  # as if it were not installed
repository, classes = json.loads(sys.argv[1])
options = {"num_labels": 2, "ignore_mismatched_sizes": True}
for auto, name in classes.items():
    loader = getattr(transformers, auto)
    stock, trusted = (
        loader.from_pretrained(repository, trust_remote_code=trust, **options).eval()
        for trust in (False, True)
    )
    for model, package in (stock, "transformers."), (trusted, "transformers_modules."):
        assert type(model).__name__ == name, (auto, type(model))
        assert type(model).__module__.startswith(package), (auto, type(model))
        assert type(model.config).__module__.startswith(package), (auto, type(model.config))
    trusted.load_state_dict(stock.state_dict())  # a head that the repository lacks is drawn
    ids = torch.tensor([[1, 5, 6, 7, 2, 0], [1, 8, 9, 5, 6, 2]])
    batch = {"input_ids": ids, "attention_mask": ids.ne(0).long()}
    if "MultipleChoice" in auto:
        batch = {key: value[None] for key, value in batch.items()}
    with torch.no_grad():
        left, right = (model(**batch, return_dict=True) for model in (stock, trusted))
    assert set(left) == set(right)
    for key in set(left) - {"past_key_values"}:
        same = left[key], right[key]
        if same[0].shape[:2] == ids.shape:
            same = [value[ids.ne(0)] for value in same]
        torch.testing.assert_close(*same, rtol=1e-4, atol=1e-5)
for trust in (False, True):
    tokenizer = transformers.AutoTokenizer.from_pretrained(repository, trust_remote_code=trust)
    assert tokenizer("hello world")["input_ids"] == json.loads(sys.argv[2])
print("loaded", len(classes))
"""


@pytest.mark.slow
def test_every_auto_class_loads_one_repository(tiny, tokenizer, tmp_path):
    """Out of a hub, whose loader fetches the code files one by one."""
    name = "some.one/a-bert_v1.0"
    save_with_code(tiny("BertForTokenClassification", num_labels=5), tmp_path / "a", tokenizer)
    with HubServer() as server:
        server.add(name, tmp_path / "a")
        ids = tokenizer("hello world")["input_ids"]
        ran = subprocess.run(
            [sys.executable, "-c", EVERY, json.dumps([name, MODEL_CLASSES]), json.dumps(ids)],
            capture_output=True,
            text=True,
            env=server.environment(tmp_path / "home"),
            cwd=tmp_path,
        )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert f"loaded {len(MODEL_CLASSES)}" in ran.stdout
