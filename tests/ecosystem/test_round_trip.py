"""The whole way: train a step, save, push, and read what was pushed by all that read BERT.

One sentence, seven engines, one vector.
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

TOLERANCE = 1e-4
SENTENCE = "the river rose over night, and nobody saw it"
WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "river", "rose", "over", "night", ",", "and", "no", "##body", "saw", "it"),
)
NAME = "BertForSequenceClassification"

TRUSTED = """
import sys
import numpy as np, torch, transformers
sys.modules["hf_bert_impl"] = None  # as if it were not installed
folder, sentence, output = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
for found in (tokenizer, model, model.config):
    assert type(found).__module__.startswith("transformers_modules."), type(found)
with torch.no_grad():
    states = model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state
np.save(output, states.mean(1).numpy())
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
    batch = tokenizer([SENTENCE, "nobody saw the night"], padding=True, return_tensors="pt")
    model(**batch, labels=torch.tensor([2, 0])).loss.backward()
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
        states = model.eval().bert(**tokenizer(SENTENCE, return_tensors="pt")).last_hidden_state
    np.save(place / "expected.npy", states.mean(1).numpy())
    return place / "repository"


@pytest.fixture
def same(folder):
    """Checks a vector against that of the model which was trained."""
    expected = np.load(folder.parent / "expected.npy")

    def check(vector):
        assert np.abs(expected).max() > 0.1
        np.testing.assert_allclose(np.asarray(vector), expected, atol=TOLERANCE, rtol=0)

    return check


@pytest.fixture
def encoded(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)(SENTENCE, return_tensors="pt")


@pytest.mark.parametrize("module", [hf_bert_impl, transformers], ids=lambda module: module.__name__)
def test_by_class(folder, encoded, same, module):
    model = module.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        same(model(**encoded).last_hidden_state.mean(1))


def test_stock(folder, encoded, same):
    model = transformers.AutoModel.from_pretrained(folder).eval()
    assert type(model) is transformers.BertModel
    with torch.no_grad():
        same(model(**encoded).last_hidden_state.mean(1))


def test_trusted(folder, same, tmp_path):
    output = tmp_path / "vector.npy"
    subprocess.run(
        [sys.executable, "-P", "-c", TRUSTED, str(folder), SENTENCE, str(output)],
        check=True,
        cwd=tmp_path,
        env=os.environ | {"HF_HOME": str(tmp_path), "HF_MODULES_CACHE": str(tmp_path / "code")},
    )
    same(np.load(output))


def test_text_encoder(folder, same):
    encoder = hf_bert_impl.TextEncoder.from_pretrained(folder, device="cpu")
    same(encoder.encode([SENTENCE]))


def test_sentence_transformers(library, folder, same):
    model = library("sentence_transformers").SentenceTransformer(str(folder), device="cpu")
    same(model.encode([SENTENCE]))


def test_ctranslate2(library, folder, encoded, same, tmp_path):
    ct2 = library("ctranslate2")
    ct2.converters.TransformersConverter(str(folder)).convert(str(tmp_path / "ct2"))
    result = ct2.Encoder(str(tmp_path / "ct2")).forward_batch(encoded["input_ids"].tolist())
    same(np.array(result.last_hidden_state).mean(1))


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
    # From here on only what the folder holds and the runtime itself, as its user has them.
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    feed = dict(tokenizer(SENTENCE, return_tensors="np"))
    if kind == "onnx":
        session = library("onnxruntime").InferenceSession(exported / "model.onnx")
        states = session.run(["last_hidden_state"], feed)[0]
    else:
        settings = {"INFERENCE_PRECISION_HINT": "f32"}
        compiled = (
            library("openvino")
            .Core()
            .compile_model(exported / "openvino_model.xml", "CPU", settings)
        )
        states = compiled(feed)["last_hidden_state"]
    same(states.mean(1))
