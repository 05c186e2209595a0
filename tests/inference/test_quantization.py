"""Vectors in fewer bits, beside sentence-transformers' own."""

import numpy as np
import pytest
import torch

from hf_bert_impl.errors import InputError
from hf_bert_impl.inference.quantization import PRECISIONS, quantize_embeddings


@pytest.fixture
def vectors():
    values = np.random.default_rng(5).standard_normal((13, 11)).astype(np.float32)
    values[:, 4] = 0.25  # a number that is the same in all vectors
    values[3, 5] = 0.0
    return values


@pytest.mark.parametrize("precision", sorted(PRECISIONS.keys() - {"float16"}))
def test_they_are_those_of_sentence_transformers(precision, vectors):
    library = pytest.importorskip("sentence_transformers.quantization")
    for options in (
        {},
        {"ranges": np.stack([vectors.min(axis=0) / 2, vectors.max(axis=0) / 2])},
        {"calibration_embeddings": vectors[:6]},
    ):
        expected = library.quantize_embeddings(vectors, precision, **options)
        found = quantize_embeddings(vectors, precision, **options)
        assert found.dtype == expected.dtype == PRECISIONS[precision]
        assert np.array_equal(found, expected)
        again = quantize_embeddings(torch.from_numpy(vectors), precision, **options)
        assert np.array_equal(again, expected)
        if options:
            one = library.quantize_embeddings(vectors[2], precision, **options)
            assert np.array_equal(quantize_embeddings(vectors[2], precision, **options), one)


def test_float16_and_nothing(vectors):
    assert np.array_equal(quantize_embeddings(vectors, "float16"), vectors.astype(np.float16))
    sizes = {name: quantize_embeddings(vectors[:0], name).shape for name in PRECISIONS}
    assert sizes == {**dict.fromkeys(PRECISIONS, (0, 11)), "binary": (0, 2), "ubinary": (0, 2)}
    low = torch.tensor([[0.5, -0.5]], dtype=torch.bfloat16)
    assert quantize_embeddings(low, "ubinary").tolist() == [[128]]


def test_what_cannot_be_quantized(vectors):
    for precision in ("int8", "uint8"):
        for one in (vectors[0], vectors[:1]):
            with pytest.raises(InputError, match="there is one vector; expected two"):
                quantize_embeddings(one, precision)
        with pytest.raises(InputError, match=r"shape \(2, 3\); expected \(2, 11\)"):
            quantize_embeddings(vectors, precision, ranges=np.zeros((2, 3)))
    with pytest.raises(InputError, match="precision is 'int4'; expected one of float32, float16"):
        quantize_embeddings(vectors, "int4")
    with pytest.raises(InputError, match="embeddings are int8; expected floats"):
        quantize_embeddings(vectors.astype(np.int8), "binary")
