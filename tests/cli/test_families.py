"""Commands on checkpoints of other families: some support them, others only BERT."""

import json

import numpy as np
import pytest
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from hf_bert_impl.encoders.forward import Forward
from hf_bert_impl.inference.loading import load_tokenizer
from tests.encoders.cases import save_family

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
    calls = []
    monkeypatch.setattr(
        Forward,
        "__call__",
        lambda self, *args, _call=Forward.__call__, **kwargs: (
            calls.append(type(self.model).__name__) or _call(self, *args, **kwargs)
        ),
    )
    return calls


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForQuestionAnswering"])
def test_verify(hf_bert, save, prefix, head, packed):
    result = hf_bert("verify", save(prefix + head), "--gradients", "--json")
    report = json.loads(result.out)
    assert result.status == 0, report["worst"]
    assert report["title"].startswith(f"{prefix}{head} of ") and packed
    assert ("fp32 sdpa holes" in {row["case"] for row in report["rows"]}) is (prefix != "MPNet")


def test_embed(hf_bert, save, prefix, packed, tmp_path):
    folder = save(f"{prefix}Model")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    result = hf_bert("embed", folder, tmp_path / "texts.txt", "-o", tmp_path / "vectors.npy")
    assert result.status == 0 and packed
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), expected, atol=2e-5)


def test_answer_and_fill(hf_bert, save, prefix, packed, tmp_path):
    answering = save(f"{prefix}ForQuestionAnswering")
    asked = ("--question", "the river", "--context", TEXTS[1])
    answer = hf_bert("answer", answering, *asked, "--json").report["answers"][0]
    assert TEXTS[1][answer["start"] : answer["end"]] == answer["answer"]

    filling = save(f"{prefix}ForMaskedLM")
    found = hf_bert("fill-mask", filling, "nice to [MASK] you", "--json").report
    pipe = transformers.pipeline("fill-mask", model=str(filling))
    best, *_ = found["masks"][0]["predictions"]
    expected, *_ = pipe("nice to [MASK] you")
    assert best["token"] == expected["token_str"]
    assert best["probability"] == pytest.approx(expected["score"], abs=1e-5)


@pytest.mark.parametrize(
    ("task", "name", "file", "options"),
    [
        ("sts", "MPNetModel", "1.0\tthe river\tnice to\n3.0\tmeet you\tmeet you\n2.0\ta\tthe", ()),
        (
            "classification",
            "XLMRobertaForSequenceClassification",
            "nice to meet\tLABEL_0\nthe river rose\tLABEL_1\n",
            ("--text-column", "0", "--label-column", "1"),
        ),
        ("token-classification", "ElectraForTokenClassification", "nice\tO\nriver\tB-x\n", ()),
        ("masked-lm", "DistilBertForMaskedLM", "nice to meet you\nthe river rose\n", ("-q",)),
    ],
)
def test_evaluate(hf_bert, save, task, name, file, options, packed, write):
    labels = {"id2label": {0: "O", 1: "B-x"}} if task == "token-classification" else {}
    labels |= {"num_labels": 2} if task == "classification" else {}
    ending = {"token-classification": "conll", "masked-lm": "txt"}.get(task, "tsv")
    data = write(f"data.{ending}", file)
    model = save(name, **labels)
    assert hf_bert("evaluate", task, model, data, *options, "--json").report and packed


def test_embed_needs_the_encoder_alone(hf_bert, save, prefix, one_error_line, tmp_path):
    """The pooler may be missing. A layer's weight may be neither missing nor of another size."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    folder = save(f"{prefix}ForTokenClassification")
    command = ("embed", folder, tmp_path / "texts.txt", "-o", tmp_path / "vectors.npy")
    assert hf_bert(*command).status == 0
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if ".0." in name)
    weights[name.replace(".0.", ".9.")] = weights.pop(name)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    result = hf_bert(*command, "--overwrite")
    one_error_line(result, f"lacks 1 weight of the encoder ({name.partition('.')[2]})")
    size = "hidden_dim" if prefix == "DistilBert" else "intermediate_size"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {size: 8}))
    one_error_line(hf_bert(*command, "--overwrite"), "does not fit the config")


def test_tokenizer_of_the_family(tmp_path):
    """Where no file names a class, as in FacebookAI/roberta-base."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "Ġ", "ab"]
    tokenizer = transformers.RobertaTokenizer(
        vocab={token: number for number, token in enumerate(tokens)}, merges=[("a", "b")]
    )
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 512}))
    transformers.RobertaConfig(vocab_size=len(tokens)).save_pretrained(tmp_path)
    found = load_tokenizer(str(tmp_path))
    assert type(found) is type(tokenizer)
    assert found("ab").input_ids == tokenizer("ab").input_ids
