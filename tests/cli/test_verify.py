"""`hf-bert verify`: agreement, disagreement and what cannot be compared."""

import json

import pytest
import torch

from hf_bert_impl import checkpoints
from hf_bert_impl.model import kernels, linear, steady


def test_table_of_a_small_model(hf_bert, save_tiny):
    result = hf_bert("verify", save_tiny(), "--gradients", "--heads")
    assert (result.status, result.err) == (0, "")
    for words in ("fp32 sdpa padded left", "bf16 eager holes", "layer 1", "loss", "gradients"):
        assert words in result.out
    assert " comparisons passed; the worst is " in " ".join(result.out.split())
    assert "upstream" in result.out


def test_json_has_every_row(hf_bert, save_tiny):
    folder = save_tiny()
    data = json.loads(hf_bert("verify", folder, "--json").out)
    assert data["passed"] is True
    assert len(data["rows"]) == data["compared"]
    cases = {row["case"] for row in data["rows"]}
    assert len(cases) == 1 + 2 * 2 * 4  # loading; precisions, backends, batches
    assert {"fp32 eager padded right", "bf16 sdpa unpadded", "loading"} <= cases
    names = {row["name"] for row in data["rows"]}
    assert {"embeddings", "layer 0", "layer 1 head 4", "logits", "loss"} <= names
    result = hf_bert("verify", folder, "--no-bf16", "--text", "the river rose .", "--json")
    cases = {row["case"].partition(" ")[0] for row in json.loads(result.out)["rows"]}
    assert cases == {"fp32", "loading"}


@pytest.mark.slow
@pytest.mark.parametrize("name", checkpoints.HEADS.values())
def test_any_head(hf_bert, save_tiny, name):
    """As the config names it, or the option."""
    for folder, option in (
        (save_tiny(name), ()),
        (save_tiny(), ("--head", {it: head for head, it in checkpoints.HEADS.items()}[name])),
    ):
        result = hf_bert("verify", folder, *option, "--no-bf16", "--json")
        data = json.loads(result.out)
        assert result.status == 0, data["worst"]
        assert data["title"].startswith(f"{name} of ")


def test_device(hf_bert, save_tiny):
    folder = save_tiny()
    here = hf_bert("verify", folder, "--no-bf16", "--json", "--device", "cpu")
    assert here.status == 0 and {row["tolerance"] for row in json.loads(here.out)["rows"]} > {2e-5}
    for name in ("cuda:99", "meta", ""):
        result = hf_bert("verify", folder, "--device", name)
        assert result.status == 2 and f"has no device '{name}'" in result.err


def test_without_tokenizer_random_tokens_are_compared(hf_bert, save_tiny):
    result = hf_bert("verify", save_tiny(tokenizer=False), "--no-bf16")
    assert result.status == 0
    assert "random tokens" in result.out


def test_status_1_and_the_name_where_a_head_differs(hf_bert, save_tiny, monkeypatch):
    load = checkpoints.load_model

    def disturbed(*arguments, **options):
        model, info = load(*arguments, **options)
        with torch.no_grad():
            model.bert.encoder.layer[1].attention.self.query.weight[12:18] *= 1.01
        return model, info

    monkeypatch.setattr(checkpoints, "load_model", disturbed)
    command = ("verify", save_tiny(), "--no-bf16")
    result = hf_bert(*command)
    assert result.status == 1
    assert "fails first at layer 1 head 2 (" in result.out.replace("\n", " ")
    assert hf_bert(*command, "--tolerance", "1e3").status == 0


@pytest.mark.slow
@pytest.mark.skipif(kernels.why_no_kernels(torch.float32) is not None, reason="torch lacks oneDNN")
def test_batch_invariance(hf_bert, one_error_line, save_tiny, monkeypatch):
    """Kept, broken by a multiplication that depends on the number of rows, or unsupported."""
    command = ("verify", save_tiny("BertModel"), "--batch-invariant")
    result = hf_bert(*command)
    assert (result.status, result.err) == (0, "")
    assert "prepared float32, batch_invariant" in result.out
    assert "prepared float32, batch_invariant: 0 of 70 texts differ" in result.out
    decoder = save_tiny("BertLMHeadModel", is_decoder=True)
    one_error_line(hf_bert("verify", decoder, *command[2:]), "cannot be used with a decoder")

    multiply = linear.multiply

    def broken(states, *arguments):
        return multiply(states, *arguments) * (1 + 1e-6 * (len(states) > 40))

    monkeypatch.setattr(linear, "multiply", broken)
    monkeypatch.setattr(steady, "_agrees", lambda probe, rows: True)  # does not find it
    result = hf_bert(*command, "--json")
    assert result.status == 1
    report = json.loads(result.out)
    failed = [row for row in report["rows"] if not row["passed"]]
    assert failed[0]["case"] == "unchanged, batch_invariant" and failed[0]["max_abs"] > 0
