"""TextEncoder where libraries take any embedding function or class."""

import numpy as np
import pytest

import hf_bert_impl

pytestmark = pytest.mark.ecosystem


def test_keybert_with_a_backend_of_two_lines(library, minilm_path, registered):
    keybert = library("keybert")
    base = library("keybert.backend").BaseEmbedder
    encoder = hf_bert_impl.TextEncoder.from_pretrained(minilm_path, device="cpu")

    class Backend(base):
        def embed(self, documents, verbose=False):
            return encoder.encode(documents, show_progress_bar=verbose)

    text = "Supervised learning is the task of learning a function from labelled examples."
    found = keybert.KeyBERT(Backend()).extract_keywords(text)
    expected = keybert.KeyBERT(str(minilm_path)).extract_keywords(text)
    assert [word for word, _ in found] == [word for word, _ in expected]
    np.testing.assert_allclose([score for _, score in found], [s for _, s in expected], atol=1e-3)


def test_semantic_search(library, minilm_path):
    utilities = library("sentence_transformers.util")
    encoder = hf_bert_impl.TextEncoder.from_pretrained(minilm_path, device="cpu")
    documents = ["A cat naps.", "Stocks fell.", "The river rose over night."]
    queries = ["sleeping animal", "flood"]
    best = utilities.semantic_search(
        encoder.encode_query(queries), encoder.encode_document(documents), top_k=1
    )
    assert [hits[0]["corpus_id"] for hits in best] == [0, 2]
