"""The whole way: train a step, save, push, and read what was pushed by all that read BERT.

A batch of texts, seven engines, the same states at every token.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers

import hf_bert_impl
from hf_bert_impl.export.exporting import export_model
from hf_bert_impl.export.formats import PACKAGES
from hf_bert_impl.hub.pushing import push
from hf_bert_impl.measuring import timing
from tests.model.cases import random_config, random_model

pytestmark = pytest.mark.ecosystem

TOLERANCE = 1e-4
TEXTS = ["the river rose over night, and nobody saw it", "it rose", "nobody saw the night ,"]
WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "river", "rose", "over", "night", ",", "and", "no", "##body", "saw", "it"),
)
NAME = "BertForSequenceClassification"

TRUSTED = """
import sys
import numpy as np, torch, transformers
sys.modules["hf_bert_impl"] = None  # as if it were not installed
folder, output, *texts = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
for found in (tokenizer, model, model.config):
    assert type(found).__module__.startswith("transformers_modules."), type(found)
with torch.no_grad():
    states = model(**tokenizer(texts, padding=True, return_tensors="pt")).last_hidden_state
np.save(output, states.numpy())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A classifier after a training step, as a push writes it."""
    place = tmp_path_factory.mktemp("round_trip")
    config = random_config(4, NAME, vocab_size=len(WORDS), type_vocab_size=2, num_labels=3)
    tokens = {word: number for number, word in enumerate(WORDS)}
    tokenizer = hf_bert_impl.BertTokenizer(tokens, model_max_length=config.max_position_embeddings)
    model = random_model(NAME, config).train()
    before = model.bert.pooler.dense.weight.clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    model(**batch, labels=torch.tensor([2, 0, 1])).loss.backward()
    optimizer.step()
    assert not torch.equal(model.bert.pooler.dense.weight, before)
    model.save_pretrained(place / "saved")
    tokenizer.save_pretrained(place / "saved")
    saved = getattr(hf_bert_impl, NAME).from_pretrained(place / "saved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "TURN_SECONDS", 0.0)
        pushed = push(
            saved,
            "some-one/river",
            tokenizer=hf_bert_impl.BertTokenizer.from_pretrained(place / "saved"),
            dry_run=place / "repository",
            source=place / "saved",
        )
    assert pushed.loading.passed
    with torch.no_grad():
        states = model.eval().bert(**batch).last_hidden_state
    np.save(place / "expected.npy", states.numpy())
    return place / "repository"


@pytest.fixture
def encoded(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer(TEXTS, padding=True, return_tensors="pt")


@pytest.fixture
def expected(folder):
    """(texts, S, D) states of the model that was trained."""
    states = np.load(folder.parent / "expected.npy")
    assert np.abs(states).max() > 0.1
    return states


@pytest.fixture
def same(encoded, expected):
    """Checks states against the expected ones, at every token."""
    tokens = encoded["attention_mask"].bool().numpy()

    def check(states):
        states = np.asarray(states)[tokens]
        np.testing.assert_allclose(states, expected[tokens], atol=TOLERANCE, rtol=0)

    return check


@pytest.fixture
def same_means(encoded, expected):
    """Checks the vectors of texts against the means of the expected states."""
    mask = encoded["attention_mask"].numpy()[..., None]

    def check(vectors):
        means = (expected * mask).sum(1) / mask.sum(1)
        np.testing.assert_allclose(vectors, means, atol=TOLERANCE, rtol=0)

    return check


@pytest.mark.parametrize("module", [hf_bert_impl, transformers], ids=lambda module: module.__name__)
def test_by_class(folder, encoded, same, module):
    model = module.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        same(model(**encoded).last_hidden_state)


def test_stock(folder, encoded, same):
    model = transformers.AutoModel.from_pretrained(folder).eval()
    assert type(model) is transformers.BertModel
    with torch.no_grad():
        same(model(**encoded).last_hidden_state)


def test_trusted(folder, same, tmp_path):
    output = tmp_path / "vector.npy"
    subprocess.run(
        [sys.executable, "-P", "-c", TRUSTED, str(folder), str(output), *TEXTS],
        check=True,
        cwd=tmp_path,
        env=os.environ | {"HF_HOME": str(tmp_path), "HF_MODULES_CACHE": str(tmp_path / "code")},
    )
    same(np.load(output))


def test_text_encoder(folder, same_means):
    encoder = hf_bert_impl.TextEncoder.from_pretrained(folder, device="cpu")
    same_means(encoder.encode(TEXTS))


def test_sentence_transformers(library, folder, same_means):
    model = library("sentence_transformers").SentenceTransformer(str(folder), device="cpu")
    same_means(model.encode(TEXTS))


def test_ctranslate2(library, folder, encoded, same, tmp_path):
    ct2 = library("ctranslate2")
    ct2.converters.TransformersConverter(str(folder)).convert(str(tmp_path / "ct2"))
    rows = [
        ids[mask.bool()].tolist()
        for ids, mask in zip(encoded["input_ids"], encoded["attention_mask"], strict=True)
    ]
    same(ct2.Encoder(str(tmp_path / "ct2")).forward_batch(rows).last_hidden_state)


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
@pytest.mark.filterwarnings("ignore")
def test_exported(library, folder, same, kind, tmp_path):
    for name in PACKAGES[kind]:
        library(name)
    exported = tmp_path / kind
    export_model(
        hf_bert_impl.BertModel.from_pretrained(folder),
        exported,
        kind,
        tokenizer=hf_bert_impl.BertTokenizer.from_pretrained(folder),
    )
    # A user of the exported folder has only the folder and the runtime.
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    feed = dict(tokenizer(TEXTS, padding=True, return_tensors="np"))
    if kind == "onnx":
        same(run_onnx(library, exported / "model.onnx", feed))
    else:
        same(run_openvino(library, exported / "openvino_model.xml", feed))


def run_onnx(library, path, feed):
    session = library("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["last_hidden_state"], feed)[0]


def run_openvino(library, path, feed):
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = library("openvino").Core().compile_model(path, "CPU", settings)
    return compiled(feed)["last_hidden_state"]


@pytest.mark.filterwarnings("ignore")
def test_exported_by_torch(library, folder, encoded, same, tmp_path):
    """By `torch.onnx.export` itself, with other sizes than the file is run with."""
    for name in PACKAGES["onnx"]:
        library(name)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    rows, length = torch.export.Dim("rows"), torch.export.Dim("length")
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        hf_bert_impl.BertModel.from_pretrained(folder).eval(),
        (),
        path,
        kwargs={name: encoded[name][:2, :7] for name in names},
        input_names=names,
        output_names=["last_hidden_state", "pooler_output"],
        dynamic_shapes={name: {0: rows, 1: length} for name in names},
        dynamo=True,
        verbose=False,
    )
    feed = {name: encoded[name].numpy() for name in names}
    same(run_onnx(library, path, feed))
    same(run_openvino(library, path, feed))
