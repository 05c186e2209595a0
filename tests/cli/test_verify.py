"""`hf-bert verify`: agreement, disagreement and what cannot be compared."""

import json

import pytest
import torch

from hf_bert_impl import BertForMaskedLM
from hf_bert_impl.inference import loading
from hf_bert_impl.model import kernels
from hf_bert_impl.parity import batch_invariance
from tests.cli.cases import one_error_line


@pytest.mark.parametrize(
    ("head", "fields"),
    [
        ("SequenceClassification", {"num_labels": 1}),
        ("SequenceClassification", {"problem_type": "regression"}),  # of two numbers
        ("SequenceClassification", {"num_labels": 4, "problem_type": "multi_label_classification"}),
        ("TokenClassification", {"num_labels": 1}),  # its gradients are all zero
    ],
)
def test_every_kind_of_labels(hf_bert, save_tiny, head, fields):
    folder = save_tiny(f"BertFor{head}", **fields)
    result = hf_bert("verify", folder, "--gradients", "--no-bf16", "--text", "the river .")
    assert (result.status, result.err) == (0, "")


def test_what_is_compared(hf_bert, save_tiny):
    """As a table and as JSON; without a tokenizer random tokens; on one device."""
    folder = save_tiny()
    printed = hf_bert("verify", folder, "--gradients", "--heads").printed
    for words in ("fp32 sdpa padded left", "bf16 eager holes", "layer 1", "loss", "gradients"):
        assert words in printed
    assert " comparisons passed; the worst is " in " ".join(printed.split())
    data = hf_bert("verify", folder, "--json").report
    assert data["passed"] is True and len(data["rows"]) == data["compared"]
    cases = {row["case"] for row in data["rows"]}
    assert len(cases) == 1 + 2 * 2 * 4  # loading; precisions, backends, batches
    assert {"fp32 eager padded right", "bf16 sdpa unpadded", "loading"} <= cases
    assert {"layer 1 head 4", "loss"} <= {row["name"] for row in data["rows"]}
    text = ("--no-bf16", "--text", "the river rose .", "--device", "cpu")
    few = hf_bert("verify", folder, *text, "--json").report["rows"]
    assert {row["case"].partition(" ")[0] for row in few} == {"fp32", "loading"}
    assert {row["tolerance"] for row in few} > {2e-5}
    (folder / "vocab.txt").unlink()
    assert "random tokens" in hf_bert("verify", folder, "--no-bf16").printed
    for name in ("cuda:99", "meta", ""):
        result = hf_bert("verify", folder, "--device", name)
        assert result.status == 2 and f"has no device '{name}'" in result.err


def test_what_differs_is_named(hf_bert, save_tiny, monkeypatch):
    """The first head, and what was not loaded; the status is 1."""
    folder, load = save_tiny(), loading.load_model

    def spoil_head(model, info):
        with torch.no_grad():
            model.bert.encoder.layer[1].attention.self.query.weight[12:18] *= 1.01
        return model, info

    def forget(model, info):
        return model, {**info, "missing_keys": {"cls.predictions.bias"}}

    for spoil, words in (
        (forget, "fails first at missing keys (loading): only here: cls.predictions.bias;"),
        (spoil_head, "fails first at layer 1 head 2 ("),
    ):
        monkeypatch.setattr(
            loading, "load_model", lambda *it, spoil=spoil, **options: spoil(*load(*it, **options))
        )
        result = hf_bert("verify", folder, "--no-bf16")
        assert result.status == 1 and words in result.out.replace("\n", " ")
    assert hf_bert("verify", folder, "--no-bf16", "--tolerance", "1e3").status == 0


@pytest.mark.skipif(kernels.why_no_kernels(torch.float32) is not None, reason="torch lacks oneDNN")
def test_batch_invariance(hf_bert, save_tiny, monkeypatch):
    """One bit is a failure; without the option bits change, so the comparison finds something."""
    monkeypatch.setattr(batch_invariance, "TEXTS", 11)
    monkeypatch.setattr(batch_invariance, "SIZES", (4, 11))
    command = ("verify", save_tiny(), "--batch-invariant")
    result = hf_bert(*command)
    assert (result.status, result.err) == (0, "")
    for way in ("unchanged", "prepared float32"):
        assert f"{way}, batch_invariant: 0 of 11 texts differ" in result.out
    assert not hf_bert("verify", save_tiny("BertForMultipleChoice"), *command[2:]).status
    report = hf_bert(*command, "--json").report
    assert any(row["max_abs"] > 0 for row in report["rows"] if row["case"] == "transformers")
    decoder = save_tiny("BertLMHeadModel", is_decoder=True)
    one_error_line(hf_bert("verify", decoder, *command[2:]), "cannot be used with a decoder")

    forward = BertForMaskedLM.forward

    def leaky(model, **batch):
        """The logits depend a little on the number of rows."""
        outputs = forward(model, **batch)
        outputs["logits"] *= 1 + 1e-6 * len(batch["input_ids"])
        return outputs

    monkeypatch.setattr(BertForMaskedLM, "forward", leaky)
    result = hf_bert(*command, "--json")
    failed = {row["case"] for row in json.loads(result.out)["rows"] if not row["passed"]}
    assert result.status == 1 and "unchanged, batch_invariant" in failed
    assert all(case.endswith(", batch_invariant") for case in failed)
