"""One sentence, six engines, one vector: what is saved here is read by all that read BERT."""

import numpy as np
import pytest
import torch
import transformers

import hf_bert_impl

TOLERANCE = 1e-4
TEXTS = ["a b cd ef", "g h i j k l ab cd ef gh", "f"]


@pytest.fixture
def saved(text_folder, tmp_path):
    """A model after a training step."""
    folder = text_folder("BertModel")
    model = hf_bert_impl.BertModel.from_pretrained(folder).train()
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    output = model(**tokenizer(TEXTS, padding=True, return_tensors="pt"))
    output.pooler_output.square().sum().backward()
    optimizer.step()
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def encoded(saved):
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    return tokenizer(TEXTS, padding=True, return_tensors="pt")


@pytest.fixture
def expected(saved, encoded):
    model = hf_bert_impl.BertModel.from_pretrained(saved).eval()
    with torch.no_grad():
        return model(**encoded).last_hidden_state


def assert_same(states, expected, encoded):
    attended = encoded["attention_mask"].bool()
    difference = torch.as_tensor(np.asarray(states))[attended] - expected[attended]
    assert difference.abs().max() <= TOLERANCE


def test_stock_transformers(saved, encoded, expected):
    model = transformers.AutoModel.from_pretrained(saved).eval()
    assert type(model).__module__.startswith("transformers.")
    with torch.no_grad():
        assert_same(model(**encoded).last_hidden_state, expected, encoded)


def test_sentence_transformers(library, saved, encoded, expected):
    st = library("sentence_transformers")
    vectors = st.SentenceTransformer(str(saved), device="cpu").encode(TEXTS)
    mask = encoded["attention_mask"][..., None]
    means = (expected * mask).sum(1) / mask.sum(1)
    assert (torch.from_numpy(vectors) - means).abs().max() <= TOLERANCE


def test_ctranslate2(library, saved, encoded, expected, tmp_path):
    ct2 = library("ctranslate2")
    ct2.converters.TransformersConverter(str(saved)).convert(str(tmp_path / "ct2"))
    rows = [
        ids[mask.bool()].tolist()
        for ids, mask in zip(encoded["input_ids"], encoded["attention_mask"], strict=True)
    ]
    result = ct2.Encoder(str(tmp_path / "ct2")).forward_batch(rows)
    assert_same(result.last_hidden_state, expected, encoded)


def test_onnx_runtime_and_openvino(library, saved, encoded, expected, tmp_path):
    for name in ("onnx", "onnxscript"):
        library(name)
    model = hf_bert_impl.BertModel.from_pretrained(saved).eval()
    rows, length = torch.export.Dim("rows"), torch.export.Dim("length")
    names = ["input_ids", "attention_mask", "token_type_ids"]
    # Exported with other sizes than it is run with.
    example = {name: encoded[name][:2, :7] for name in names}
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        model,
        (),
        path,
        kwargs=example,
        input_names=names,
        output_names=["last_hidden_state", "pooler_output"],
        dynamic_shapes={name: {0: rows, 1: length} for name in names},
        dynamo=True,
        verbose=False,
    )
    session = library("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = {name: encoded[name].numpy() for name in names}
    assert_same(session.run(["last_hidden_state"], feed)[0], expected, encoded)
    openvino = library("openvino")
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    assert_same(compiled(feed)["last_hidden_state"], expected, encoded)
