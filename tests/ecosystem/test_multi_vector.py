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
VOCABULARY = (*WORDS, "[unused0]", "[unused1]")
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


@pytest.mark.parametrize("attend", [False, True])
def test_a_published_kind_of_folder(both, tmp_path, attend):
    stock, encoder = both(stanford(tmp_path / "colbert", attend))
    assert encoder[0].query_expansion["attend"] == attend
    rows = rows_through(encoder[0].model.encoder.layer[0].intermediate)
    queries = assert_equal_vectors(stock, encoder)
    assert all(len(vectors) == LENGTH for vectors in queries)
    mask = encoder[0].preprocess(DOCUMENTS)["attention_mask"]
    assert rows.pop() < mask.numel()  # padding of documents is not computed
    encoder[0].model.prepare_for_inference()
    assert_equal_vectors(stock, encoder)


@pytest.mark.parametrize(("strategy", "token"), [("fixed", "[PAD]"), ("min", "[SEP]")])
def test_any_query_expansion(both, tmp_path, strategy, token):
    """Even by the pad token: those positions say themselves that they count."""
    expansion = dict(strategy=strategy, token=token, length=9, attend=False)
    assert_equal_vectors(*both(stanford(tmp_path / "colbert", False), **expansion))
