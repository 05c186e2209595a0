"""A saved checkpoint by the other engines that read BERT: the same states at every token."""

import numpy as np
import pytest
import torch
import transformers

import hf_bert_impl
from hf_bert_impl.export.exporting import export_model
from hf_bert_impl.export.options import PACKAGES
from tests.model.cases import outputs, random_config, random_model

pytestmark = [pytest.mark.ecosystem, pytest.mark.filterwarnings("ignore")]

TEXTS = ["the river rose over night, and nobody saw it", "it rose", "nobody saw the night ,"]
WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "river", "rose", "over", "night", ",", "and", "no", "##body", "saw", "it"),
)


@pytest.fixture
def folder(tmp_path):
    config = random_config(4, vocab_size=len(WORDS), type_vocab_size=2)
    random_model("BertModel", config).save_pretrained(tmp_path)
    tokens = {word: number for number, word in enumerate(WORDS)}
    length = config.max_position_embeddings
    hf_bert_impl.BertTokenizer(tokens, model_max_length=length).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def encoded(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer(TEXTS, padding=True, return_tensors="pt")


@pytest.fixture
def same(folder, encoded):
    """Compares states with our model's, at every token."""
    model = hf_bert_impl.BertModel.from_pretrained(folder).eval()
    tokens = encoded["attention_mask"].bool()
    expected = outputs(model, encoded).last_hidden_state[tokens]
    return lambda states: torch.testing.assert_close(
        torch.from_numpy(np.array(states))[tokens], expected, atol=1e-4, rtol=0
    )


def test_stock(folder, encoded, same):
    model = transformers.AutoModel.from_pretrained(folder).eval()
    assert type(model) is transformers.BertModel
    same(outputs(model, encoded).last_hidden_state)


def test_ctranslate2(library, folder, encoded, same, tmp_path):
    ct2 = library("ctranslate2")
    ct2.converters.TransformersConverter(str(folder)).convert(str(tmp_path / "ct2"))
    rows = [
        ids[mask.bool()].tolist()
        for ids, mask in zip(encoded["input_ids"], encoded["attention_mask"], strict=True)
    ]
    same(ct2.Encoder(str(tmp_path / "ct2")).forward_batch(rows).last_hidden_state)


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_exported(library, folder, same, kind, tmp_path):
    for name in PACKAGES[kind]:
        library(name)
    model = hf_bert_impl.BertModel.from_pretrained(folder)
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder)
    exported = tmp_path / kind
    export_model(model, exported, kind, tokenizer=tokenizer)
    # A user of the exported folder has only the folder and the runtime.
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    feed = dict(tokenizer(TEXTS, padding=True, return_tensors="np"))
    if kind == "onnx":
        session = library("onnxruntime").InferenceSession(exported / "model.onnx")
        same(session.run(["last_hidden_state"], feed)[0])
    else:
        settings = {"INFERENCE_PRECISION_HINT": "f32"}
        path = exported / "openvino_model.xml"
        compiled = library("openvino").Core().compile_model(path, "CPU", settings)
        same(compiled(feed)["last_hidden_state"])
