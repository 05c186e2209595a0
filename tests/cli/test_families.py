"""Commands on checkpoints of other families: some support them, others only BERT."""

import json

import numpy as np
import pytest
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from hf_bert_impl.encoders.forward import Forward
from tests.cli.cases import one_error_line
from tests.encoders.cases import save_family
from tests.support.damage import fields

TEXTS = ["nice to meet you", "the river rose over night and the river , a rose .", "the river"]


@pytest.fixture
def save(tmp_path):
    """Saves a random stock model of a class; gives its folder."""
    return lambda name, **fields: save_family(tmp_path / name, name, **fields)


@pytest.fixture(params=("Roberta", "Electra", "DistilBert", "MPNet", "Ernie", "ModernBert"))
def prefix(request):
    return request.param


@pytest.fixture
def packed(monkeypatch):
    """The bare models that were called."""
    calls, call = [], Forward.__call__

    def remember(self, *arguments, **options):
        calls.append(type(self.model).__name__)
        return call(self, *arguments, **options)

    monkeypatch.setattr(Forward, "__call__", remember)
    return calls


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForQuestionAnswering"])
def test_verify(hf_bert, save, prefix, head, packed):
    result = hf_bert("verify", save(prefix + head), "--gradients", "--json")
    report = json.loads(result.out)
    assert result.status == 0, report["worst"]
    assert report["title"].startswith(f"{prefix}{head} of ") and packed
    assert ("fp32 sdpa holes" in {row["case"] for row in report["rows"]}) is (prefix != "MPNet")


def test_embed(hf_bert, save, prefix, packed, write, tmp_path):
    """The pooler may be missing. A layer's weight may be neither missing nor of another size."""
    folder, texts = save(f"{prefix}ForTokenClassification"), write("texts.txt", "\n".join(TEXTS))
    command = ("embed", folder, texts, "-o", tmp_path / "vectors.npy", "--overwrite")
    assert hf_bert(*command).status == 0 and packed
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), expected, atol=2e-5)
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if ".0." in name)
    weights[name.replace(".0.", ".9.")] = weights.pop(name)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    words = f"lacks 1 weight of the encoder ({name.partition('.')[2]})"
    one_error_line(hf_bert(*command), words)
    size = "hidden_dim" if prefix == "DistilBert" else "intermediate_size"
    fields("config.json", **{size: 8})(folder)
    one_error_line(hf_bert(*command), "does not fit the config")


def test_answer_and_fill(hf_bert, save, prefix, packed):
    answering = save(f"{prefix}ForQuestionAnswering")
    asked = ("--question", "the river", "--context", TEXTS[1])
    answer = hf_bert("answer", answering, *asked, "--json").report["answers"][0]
    assert TEXTS[1][answer["start"] : answer["end"]] == answer["answer"]
    filling, text = save(f"{prefix}ForMaskedLM"), "nice to [MASK] you"
    found = hf_bert("fill-mask", filling, text, "--json").report
    best, *_ = found["masks"][0]["predictions"]
    expected, *_ = transformers.pipeline("fill-mask", model=str(filling))(text)
    assert best["token"] == expected["token_str"]
    assert best["probability"] == pytest.approx(expected["score"], abs=1e-5)


@pytest.mark.parametrize(
    ("task", "name", "data"),
    [
        ("sts", "MPNetModel", "sts.tsv"),
        ("token-classification", "ElectraForTokenClassification", "tags.conll"),
        ("masked-lm", "DistilBertForMaskedLM", "texts.txt"),
    ],
)
def test_evaluate(hf_bert, place, save, packed, task, name, data):
    labels = {"id2label": {0: "O", 1: "B-x"}} if "Token" in name else {}
    assert hf_bert("evaluate", task, save(name, **labels), data, "--json").report and packed
