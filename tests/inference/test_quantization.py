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


def test_by_hand():
    values = np.array([[0.0, -1.0], [2.55, 1.55], [1.005, -0.005], [9.0, -9.0]], dtype=np.float32)
    ranges = values[:2]  # in each column the smallest and the largest: steps of 0.01
    found = quantize_embeddings(values, "uint8", ranges)
    assert found.dtype == np.uint8
    assert found.tolist() == [[0, 0], [255, 255], [100, 99], [255, 0]]
    assert quantize_embeddings(values, "int8", ranges).tolist()[2] == [-28, -29]
    assert quantize_embeddings(values[:, [0, 1] * 5], "ubinary").tolist()[1:] == [
        *([255, 192], [170, 128], [170, 128])
    ]
    assert quantize_embeddings(values, "binary").tolist() == [[-128], [64], [0], [0]]


def test_nothing_and_bfloat16(vectors):
    sizes = {name: quantize_embeddings(vectors[:0], name).shape for name in PRECISIONS}
    assert sizes == {**dict.fromkeys(PRECISIONS, (0, 11)), "binary": (0, 2), "ubinary": (0, 2)}
    low = torch.tensor([[0.5, -0.5]], dtype=torch.bfloat16)
    assert quantize_embeddings(low, "ubinary").tolist() == [[128]]


def test_what_cannot_be_quantized(vectors):
    for given, precision, options, words in (
        (vectors[0], "int8", {}, "there is one vector; expected two"),
        (vectors[:1], "uint8", {}, "there is one vector; expected two"),
        (vectors, "int8", {"ranges": np.zeros((2, 3))}, r"shape \(2, 3\); expected \(2, 11\)"),
        (vectors, "int4", {}, "precision is 'int4'; expected one of float32, float16"),
        (vectors.astype(np.int8), "binary", {}, "embeddings are int8; expected floats"),
    ):
        with pytest.raises(InputError, match=words):
            quantize_embeddings(given, precision, **options)
