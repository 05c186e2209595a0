"""sentence-transformers' MultiVectorEncoder (ColBERT): its vectors are stock's in every case.

A query ends in tokens that count although no token attends to them.
"""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import hf_bert_impl
from tests.checkpoints import WORDS, save_checkpoint
from tests.model.cases import rows_through

pytestmark = pytest.mark.ecosystem
VOCABULARY = (*WORDS, "[unused0]", "[unused1]", "[Q]", "[D]")
QUERIES = ["nice to meet you", "the river", "a rose over night and the river, nice to meet you."]
DOCUMENTS = [*QUERIES, "the rose, the night.", "and . , river", "you"]
LENGTH = 11


def stanford(folder, attend):
    """A folder like those of ColBERTv2 and answerai-colbert-small."""
    save_checkpoint(folder, "BertModel", words=VOCABULARY)
    weights = {f"bert.{name}": x for name, x in load_file(folder / "model.safetensors").items()}
    weights["linear.weight"] = torch.randn(7, 30, generator=torch.Generator().manual_seed(1))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["HF_ColBERT"]}))
    metadata = {
        "query_token_id": "[unused0]",
        "doc_token_id": "[unused1]",
        "query_maxlen": LENGTH,
        "doc_maxlen": 15,
        "attend_to_mask_tokens": attend,
        "mask_punctuation": True,
    }
    (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return folder


def pylate(folder, attend):
    """A folder like those that PyLate writes, answerai-colbert-small's among them."""
    save_checkpoint(folder, "BertModel", words=VOCABULARY)
    dense = folder / "1_Dense"
    dense.mkdir()
    fields = {"in_features": 30, "out_features": 7, "bias": False}
    (dense / "config.json").write_text(
        json.dumps(fields | {"activation_function": "torch.nn.modules.linear.Identity"})
    )
    weight = torch.randn(7, 30, generator=torch.Generator().manual_seed(1))
    save_file({"linear.weight": weight}, dense / "model.safetensors")
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 15}))
    config = {
        "model_type": "ColBERT",
        "query_prefix": "[Q]",
        "document_prefix": "[D]",
        "query_length": LENGTH,
        "document_length": 15,
        "attend_to_expansion_tokens": attend,
        "skiplist_words": [".", ","],
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def both(library):
    """Stock's encoder of a folder, and the same with this package's model."""
    kind = library("sentence_transformers").MultiVectorEncoder

    def load(folder, **expansion):
        encoders = []
        for ours in (False, True):
            if ours:
                hf_bert_impl.register()
            try:
                encoder = kind(str(folder), device="cpu")
            finally:
                hf_bert_impl.unregister()
            assert isinstance(encoder[0].model, hf_bert_impl.BertModel) == ours
            if expansion:
                encoder[0].query_expansion = expansion
            encoders.append(encoder)
        return encoders

    return load


def assert_equal_vectors(stock, encoder):
    queries, documents = [], []
    for one in (stock, encoder):
        queries.append(one.encode_query(QUERIES, convert_to_numpy=True))
        documents.append(one.encode_document(DOCUMENTS, convert_to_numpy=True))
    for expected, found in (queries, documents):
        for theirs, ours in zip(expected, found, strict=True):
            assert theirs.shape == ours.shape
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
            assert np.allclose(np.linalg.norm(ours, axis=-1), 1, atol=1e-5)  # none is zero
    np.testing.assert_allclose(
        encoder.similarity(queries[1], documents[1]),
        stock.similarity(queries[0], documents[0]),
        atol=1e-4,
    )
    return queries[1]


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("attend", [False, True])
@pytest.mark.parametrize("make", [stanford, pylate])
def test_published_kinds_of_folders(both, tmp_path, make, attend, is_prepared):
    stock, encoder = both(make(tmp_path / "colbert", attend))
    assert encoder[0].query_expansion["attend"] == attend
    if is_prepared:
        encoder[0].model.prepare_for_inference()
    queries = assert_equal_vectors(stock, encoder)
    assert all(len(vectors) == LENGTH for vectors in queries)


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("token", [None, "[PAD]", "[SEP]"])
@pytest.mark.parametrize("strategy", ["fixed", "min"])
def test_any_query_expansion(both, tmp_path, strategy, token, is_prepared):
    """Even by the pad token: those positions say themselves that they count."""
    stock, encoder = both(
        pylate(tmp_path / "colbert", False),
        strategy=strategy, token=token, length=9, attend=False,
    )  # fmt: skip
    if is_prepared:
        encoder[0].model.prepare_for_inference()
    assert_equal_vectors(stock, encoder)


def test_padding_of_documents_is_not_computed(both, tmp_path):
    _, encoder = both(pylate(tmp_path / "colbert", False))
    rows = rows_through(encoder[0].model.encoder.layer[0].intermediate)
    mask = encoder[0].preprocess(DOCUMENTS)["attention_mask"]
    encoder.encode(DOCUMENTS, batch_size=len(DOCUMENTS))
    assert rows == [int(mask.sum())]
    assert rows[0] < mask.numel()
