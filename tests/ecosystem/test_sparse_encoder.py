"""sentence-transformers' SparseEncoder: SPLADE with stock's numbers, and without its scores."""

import pytest
import torch

import hf_bert_impl
from hf_bert_impl.inference.sparse_encoder import splade_folds
from tests.support.checkpoints import save_checkpoint

pytestmark = pytest.mark.ecosystem
TEXTS = ["nice to meet you", "the river", "a rose over night and the river, nice to meet you.", ""]


@pytest.fixture
def load(library, tmp_path):
    """The modules of a SparseEncoder: stock, or with this package's model."""
    modules = library("sentence_transformers.sparse_encoder.modules")
    folder = save_checkpoint(tmp_path / "mlm")

    def encoder(ours=True, strategy="max"):
        if ours:
            hf_bert_impl.register()
        first = modules.MLMTransformer(str(folder), max_seq_length=19)
        hf_bert_impl.unregister()
        return [first, modules.SpladePooling(strategy)]

    return encoder


def test_the_routes_of_a_router_are_stocks(library, load):
    st = library("sentence_transformers")
    router = library("sentence_transformers.base.modules").Router
    found = []
    for ours in (False, True):
        routes = [load(ours, strategy) for strategy in ("max", "sum")]
        if ours:
            routes[1][0] = routes[0][0]  # one model with two kinds of pooling
        model = st.SparseEncoder(modules=[router.for_query_document(*routes)], device="cpu")
        for fold in splade_folds(model):
            fold.enable()
        vectors = torch.stack([model.encode_query(TEXTS), model.encode_document(TEXTS)])
        found.append(vectors.to_dense())
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


def test_places_that_cannot_be_folded(load):
    assert splade_folds(torch.nn.Sequential(*load(ours=False))) == []
    encoder, other = torch.nn.Sequential(*load()), load()
    # Something else reads the scores as well.
    alone = torch.nn.Sequential(encoder[0])
    assert splade_folds(torch.nn.ModuleList([encoder, alone])) == []
    # One pooling serves two models.
    pair = torch.nn.Sequential(other[0], encoder[1])
    assert splade_folds(torch.nn.ModuleList([encoder, pair])) == []
    assert len(splade_folds(encoder)) == 1
