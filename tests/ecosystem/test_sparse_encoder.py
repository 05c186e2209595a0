"""sentence-transformers' SparseEncoder: SPLADE with stock's numbers, and without its scores."""

import copy
import pickle

import pytest
import torch

import hf_bert_impl
from hf_bert_impl.inference import splade
from hf_bert_impl.inference.sparse_encoder import splade_folds
from tests.checkpoints import save_checkpoint

pytestmark = pytest.mark.ecosystem
TEXTS = ["nice to meet you", "the river", "a rose over night and the river, nice to meet you.", ""]


@pytest.fixture
def folder(tmp_path):
    return save_checkpoint(tmp_path / "mlm")


@pytest.fixture
def load(library, folder):
    """A SparseEncoder of one folder: stock, or with this package's model."""
    st = library("sentence_transformers")
    modules = library("sentence_transformers.sparse_encoder.modules")

    def encoder(ours=True, **pooling):
        if ours:
            hf_bert_impl.register()
        try:
            first = modules.MLMTransformer(str(folder), max_seq_length=19)
            return st.SparseEncoder(modules=[first, modules.SpladePooling(**pooling)], device="cpu")
        finally:
            hf_bert_impl.unregister()

    return encoder


def assert_close(found, expected):
    found, expected = (x.to_dense() if x.is_sparse else x for x in (found, expected))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def enabled(encoder):
    folds = splade_folds(encoder)
    for fold in folds:
        fold.enable()
    return folds


@pytest.fixture
def no_scores(monkeypatch):
    """Lets no more than two tokens be scored at once."""
    monkeypatch.setattr(splade, "LARGEST_BLOCK", 1)
    head = hf_bert_impl.model.layers.BertLMPredictionHead
    seen, forward = [], head.forward

    def counted(self, states):
        seen.append(states.shape[:-1].numel())
        return forward(self, states)

    monkeypatch.setattr(head, "forward", counted)
    return seen


@pytest.mark.parametrize(("strategy", "chunk_size"), [("max", None), ("sum", 3)])
def test_its_vectors_are_stocks(load, no_scores, strategy, chunk_size):
    fields = dict(pooling_strategy=strategy, chunk_size=chunk_size)
    stock, encoder = load(ours=False, **fields), load(**fields)
    (fold,) = enabled(encoder)
    found, expected = encoder.encode(TEXTS), stock.encode(TEXTS)
    assert found.is_sparse and set(no_scores) == {1}
    assert_close(found, expected)
    few = {"max_active_dims": 5, "convert_to_sparse_tensor": False}
    assert_close(encoder.encode(TEXTS, **few), stock.encode(TEXTS, **few))
    fold.disable()
    del no_scores[:]
    assert_close(encoder.encode(TEXTS), expected)
    assert max(no_scores) > 1


def test_the_routes_of_a_router(load, library, no_scores):
    """Each with a model of its own, or one model with two kinds of pooling."""
    st = library("sentence_transformers")
    modules = library("sentence_transformers.sparse_encoder.modules")
    router = library("sentence_transformers.base.modules").Router
    found = []
    for ours, is_shared in ((False, False), (True, False), (True, True)):
        routes = [list(load(ours, pooling_strategy=kind)) for kind in ("max", "sum")]
        if is_shared:
            routes[1] = [routes[0][0], modules.SpladePooling("sum")]
        model = st.SparseEncoder(modules=[router.for_query_document(*routes)], device="cpu")
        if ours:
            assert len(enabled(model)) == 2 - is_shared
        found.append((model.encode_query(TEXTS), model.encode_document(TEXTS)))
    for queries, documents in found[1:]:
        assert_close(queries, found[0][0])
        assert_close(documents, found[0][1])


def test_training_saving_and_copies(load, no_scores, tmp_path):
    encoder = load()
    expected = encoder.encode(TEXTS)
    (fold,) = enabled(encoder)
    # With gradients the modules work as ever.
    features = encoder.train()(encoder.preprocess(TEXTS))
    features["sentence_embedding"].sum().backward()
    assert encoder[0].model.cls.predictions.decoder.weight.grad.any()
    for other in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        del no_scores[:]
        assert_close(other.encode(TEXTS), expected)
        assert set(no_scores) == {1}
    encoder.save(str(tmp_path / "saved"))
    assert "hf_bert_impl" not in (tmp_path / "saved" / "modules.json").read_text()
    fold.disable()
    assert not any("forward" in vars(module) for module in encoder.modules())


def test_places_that_cannot_be_folded(load, library):
    assert splade_folds(load(ours=False)) == []
    encoder = load()
    alone = torch.nn.Sequential(encoder[0])
    assert splade_folds(alone) == []
    # Something else reads the scores as well.
    assert splade_folds(torch.nn.ModuleList([encoder, alone])) == []
    # One pooling serves two models.
    other = load()
    pairs = [torch.nn.Sequential(one[0], encoder[1]) for one in (encoder, other)]
    assert splade_folds(torch.nn.ModuleList(pairs)) == []
    assert len(splade_folds(encoder)) == 1
