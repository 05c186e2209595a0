"""`optimize` makes every class of sentence-transformers compute packed rows, as stock computes."""

import numpy as np
import pytest
import sentence_transformers as library
import torch
from sentence_transformers import models as modules
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

from hf_bert_impl import optimize, restore
from hf_bert_impl.inference import packed_loop
from hf_bert_impl.inference.packed_loop import TokenBudget
from tests.inference.conftest import TEXTS

PAIRS = [(text, other) for text in TEXTS for other in reversed(TEXTS)]


def dense(folder):
    return library.SentenceTransformer(str(folder("BertModel")), device="cpu")


def unpad_inputs(folder):
    model = dense(folder)
    model[0].unpad_inputs = False
    return model


def router(folder):
    def route(seed):
        torch.manual_seed(seed)
        path = folder("BertModel")
        return [modules.Transformer(str(path)), modules.Pooling(30)]

    # The second route has other weights in the same folder.
    both = modules.Router.for_query_document(route(1), route(2))
    return library.SentenceTransformer(modules=[both, modules.Normalize()], device="cpu")


def cross_encoder(folder, labels=3):
    path = folder("BertForSequenceClassification", num_labels=labels)
    return library.CrossEncoder(str(path), device="cpu")


def sparse(folder):
    return library.SparseEncoder(str(folder("BertForMaskedLM")), device="cpu")


def sparse_routes(folder):
    """One model with two kinds of pooling, in a module that takes padded batches."""
    first = MLMTransformer(str(folder("BertForMaskedLM")), max_seq_length=19)
    routes = [[first, SpladePooling(strategy)] for strategy in ("max", "sum")]
    routed = modules.Router.for_query_document(*routes)
    return library.SparseEncoder(modules=[routed], device="cpu")


def multi_vector(folder, **expansion):
    model = library.MultiVectorEncoder(str(folder("BertModel")), device="cpu")
    if expansion:
        model[0].query_expansion = {"strategy": "fixed", "length": 20, **expansion}
    return model


def results(found):
    """Lists and tensors of any shapes as one list of arrays."""
    if isinstance(found, torch.Tensor) and found.is_sparse:
        found = found.to_dense()
    return [np.asarray(row, dtype=np.float64) for row in found]


CASES = {
    "dense": (dense, lambda m, **o: m.encode(TEXTS * 9, **o)),
    "query": (router, lambda m, **o: m.encode_query(TEXTS, **o)),
    "document": (router, lambda m, **o: m.encode_document(TEXTS * 9, **o)),
    "pairs": (cross_encoder, lambda m, **o: m.predict(PAIRS, **o)),
    "score": (lambda f: cross_encoder(f, 1), lambda m, **o: m.predict(PAIRS, **o)),
    "sparse": (sparse, lambda m, **o: m.encode_document(TEXTS * 3, **o)),
    "multi-vector query": (multi_vector, lambda m, **o: m.encode_query(TEXTS, **o)),
    "multi-vector": (multi_vector, lambda m, **o: m.encode_document(TEXTS * 3, **o)),
}


def queries(model, **options):
    return model.encode_query(TEXTS * 9, **options)


#: Whose batches stay padded.
PADDED = {
    "route of queries": (sparse_routes, queries),
    "route of documents": (sparse_routes, lambda m, **o: m.encode_document(TEXTS * 9, **o)),
    "expansion": (lambda f: multi_vector(f, attend=True), queries),
    # Queries end in [PAD], whose states count although no token attends to them.
    "[PAD]": (lambda f: multi_vector(f, token="[PAD]", attend=False), queries),
    "unpad_inputs": (unpad_inputs, lambda m, **o: m.encode(TEXTS * 9, **o)),
}


@pytest.fixture
def batches(monkeypatch):
    """Every batch that a model computes: whether it is packed, the number of texts and tokens."""
    seen = []
    kind = library.base.model.BaseModel
    original = kind.forward

    def spy(self, features, **options):
        ids, ends = features["input_ids"], features.get("cu_seq_lens_q")
        seen.append((ends is not None, len(ids) if ends is None else len(ends) - 1, ids.numel()))
        return original(self, features, **options)

    monkeypatch.setattr(kind, "forward", spy)
    return seen


@pytest.mark.parametrize("case", [*CASES, *PADDED])
def test_results_are_those_of_stock(save_tiny, case, batches):
    make, call = (CASES | PADDED)[case]
    model = make(save_tiny)
    expected = results(call(model))
    assert not any(is_packed for is_packed, *_ in batches)
    is_padded = case in PADDED
    dropout = next(part for part in model.modules() if isinstance(part, torch.nn.Dropout))
    dropout.p = 0.9
    optimize(model, "float32")
    for size in (32, 3, TokenBudget(40)):
        del batches[:]
        dropout.train()  # a call sets the whole model to eval mode, as stock's does
        found = results(call(model, batch_size=size))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
        assert all(is_packed for is_packed, *_ in batches) != is_padded
        assert len(batches) > 1 or size == 32
        if not is_padded:
            for _, texts, tokens in batches:
                number = tokens if isinstance(size, TokenBudget) else texts
                assert number <= size or texts == 1 or size == 32
    restore(model)
    del batches[:]
    for one, other in zip(results(call(model)), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert not any(is_packed for is_packed, *_ in batches)
    assert not [name for name in packed_loop._METHODS if name in vars(model)]


def test_padding_on_the_left_stays(save_tiny):
    """Stock's positions count it."""
    model = dense(save_tiny)
    model.tokenizer.padding_side = "left"
    expected = model.encode(TEXTS)
    found = optimize(model, "float32").encode(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_features_for_the_caller_are_padded(save_tiny, batches):
    """As stock has them, so that code which cuts or masks a batch works."""
    model = optimize(dense(save_tiny), "float32")
    expected = model.encode(TEXTS)
    for features in (model.train().preprocess(TEXTS), model.eval().preprocess(TEXTS)):
        assert features["attention_mask"].shape == features["input_ids"].shape
        assert len(features["input_ids"]) == len(TEXTS)
    found = model(features)["sentence_embedding"].detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert [is_packed for is_packed, *_ in batches] == [True, False]
