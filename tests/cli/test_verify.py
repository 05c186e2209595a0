"""`hf-bert verify`: agreement, disagreement and what cannot be compared."""

import json

import pytest
import torch

from hf_bert_impl import checkpoints
from hf_bert_impl.parity import published
from tests.damage import fields


def test_table_of_a_small_model(hf_bert, save_tiny):
    result = hf_bert("verify", save_tiny(), "--gradients", "--heads")
    assert result.status == 0, result.out
    assert result.err == ""
    for words in ("fp32 sdpa padded left", "bf16 eager holes", "layer 1", "loss", "gradients"):
        assert words in result.out
    assert "passed of" in result.out
    assert "upstream" in result.out


def test_json_is_one_object_with_every_row(hf_bert, save_tiny):
    result = hf_bert("verify", save_tiny(), "--json")
    assert result.status == 0
    data = json.loads(result.out)
    assert data["passed"] is True
    assert len(data["rows"]) == data["compared"]
    cases = {row["case"] for row in data["rows"]}
    assert len(cases) == 1 + 2 * 2 * 4  # loading; precisions, backends, batches
    assert {"fp32 eager padded right", "bf16 sdpa unpadded", "loading"} <= cases
    names = {row["name"] for row in data["rows"]}
    assert {"embeddings", "layer 0", "layer 1 head 4", "logits", "loss"} <= names


def test_no_bf16_and_text(hf_bert, save_tiny):
    result = hf_bert(
        "verify", save_tiny(), "--no-bf16", "--text", "the river rose over night .", "--json"
    )
    data = json.loads(result.out)
    assert data["passed"] is True
    assert not any(row["case"].startswith("bf16") for row in data["rows"])
    assert any(row["case"].startswith("fp32") for row in data["rows"])


@pytest.mark.parametrize("head", checkpoints.HEADS)
def test_any_head(hf_bert, save_tiny, head):
    result = hf_bert("verify", save_tiny(), "--head", head, "--no-bf16", "--json")
    data = json.loads(result.out)
    assert result.status == 0, data["worst"]
    assert checkpoints.HEADS[head] in data["title"]


@pytest.mark.parametrize("name", ["BertModel", "BertForMultipleChoice", "BertForQuestionAnswering"])
def test_the_config_names_the_head(hf_bert, save_tiny, name):
    result = hf_bert("verify", save_tiny(name), "--no-bf16", "--json")
    assert result.status == 0
    assert json.loads(result.out)["title"].startswith(f"{name} of ")


def test_without_tokenizer_random_tokens_are_compared(hf_bert, one_error_line, save_tiny):
    result = hf_bert("verify", save_tiny(tokenizer=False), "--no-bf16")
    assert result.status == 0
    assert "random tokens" in result.out
    result = hf_bert("verify", save_tiny(tokenizer=False), "--text", "the river")
    one_error_line(result, "no tokenizer")


def test_status_1_and_the_name_where_a_head_differs(hf_bert, save_tiny, monkeypatch):
    load = checkpoints.load_model

    def disturbed(*arguments, **options):
        model, info = load(*arguments, **options)
        with torch.no_grad():
            model.bert.encoder.layer[1].attention.self.query.weight[12:18] *= 1.01
        return model, info

    monkeypatch.setattr(checkpoints, "load_model", disturbed)
    folder = save_tiny()
    result = hf_bert("verify", folder, "--no-bf16")
    assert result.status == 1
    assert "fails first at layer 1 head 2 (" in result.out.replace("\n", " ")
    result = hf_bert("verify", folder, "--no-bf16", "--json")
    assert result.status == 1
    assert json.loads(result.out)["passed"] is False


def test_tolerance_is_the_bound(hf_bert, save_tiny):
    folder = save_tiny()
    assert hf_bert("verify", folder, "--no-bf16", "--tolerance", "1e-12").status == 1
    assert hf_bert("verify", folder, "--no-bf16", "--tolerance", "1e-3").status == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["MyBert"]}, ("'MyBert'", "--head")),
        ({"hidden_act": "swoosh"}, ("hidden_act='swoosh'",)),
        ({"position_embedding_type": "relative_key"}, ("'relative_key'", "'absolute' only")),
        ({"pruned_heads": {"1": [0]}}, ("pruned heads",)),
    ],
)
def test_bad_configs(hf_bert, one_error_line, save_tiny, changes, words):
    folder = save_tiny()
    fields("config.json", **changes)(folder)
    one_error_line(hf_bert("verify", folder), *words)




@pytest.mark.hub
@pytest.mark.parametrize("model", ["google-bert/bert-base-cased", published.SQUAD])
def test_published_figures(hf_bert, model):
    result = hf_bert("verify", model, "--no-bf16", "--json")
    assert result.status == 0, result.out
    assert any(row["case"] == "published" for row in json.loads(result.out)["rows"])
