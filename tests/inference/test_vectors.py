"""Similarities of vectors, and vectors in fewer bits."""

import numpy as np
import pytest
import torch

from hf_bert_impl.errors import InputError
from hf_bert_impl.inference.quantization import PRECISIONS, quantize_embeddings
from hf_bert_impl.inference.similarity import FUNCTIONS, similarity, similarity_pairwise


@pytest.fixture
def vectors():
    torch.manual_seed(3)
    return torch.randn(5, 7), torch.randn(3, 7)


def by_hand(name, a, b):
    """The similarity of two vectors."""
    return {
        "cosine": a @ b / a.norm() / b.norm(),
        "dot": a @ b,
        "euclidean": -(a - b).square().sum().sqrt(),
        "manhattan": -(a - b).abs().sum(),
    }[name]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_they_are_those_of_each_pair(name, vectors):
    a, b = vectors
    expected = torch.stack([torch.stack([by_hand(name, x, y) for y in b]) for x in a])
    torch.testing.assert_close(similarity(name, a, b), expected)
    torch.testing.assert_close(similarity(name, a[2], b[1]), expected[2:3, 1:2])
    torch.testing.assert_close(similarity_pairwise(name, a[:3], b), expected[:3].diagonal())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vectors_in_any_form(name, vectors):
    a, b = vectors
    expected = similarity(name, a, b)
    read_only = b.numpy().copy()
    read_only.flags.writeable = False
    for second in (b.numpy(), list(b), list(b.numpy()), tuple(b), b.tolist(), read_only):
        assert torch.equal(similarity(name, a, second), expected)
    near = similarity(name, a.half(), b.bfloat16())
    assert near.dtype == torch.float32
    assert torch.allclose(near, expected, atol=0.2)
    assert similarity(name, a.double(), b).dtype == torch.float64


def test_integers_do_not_overflow():
    a, b = np.full((1, 9), 120, dtype=np.int8), np.full((2, 9), 100, dtype=np.int8)
    assert similarity("dot", a, b).tolist() == [[108000.0, 108000.0]]
    assert similarity("euclidean", a, b).tolist() == [[-60.0, -60.0]]
    assert similarity_pairwise("manhattan", a, b).tolist() == [-180.0, -180.0]


@pytest.mark.parametrize(
    ("name", "a", "b", "message"),
    [
        ("cos", (2, 3), (2, 3), "similarity_fn_name is 'cos'; expected one of cosine, dot"),
        ("dot", (2, 3), (2, 4), r"shapes \(2, 3\) and \(2, 4\); expected"),
        ("dot", (2, 2, 3), (2, 3), r"shapes \(2, 2, 3\)"),
        ("dot", (), (2, 3), r"shapes \(\) and"),
    ],
)
def test_what_cannot_be_compared(name, a, b, message):
    for function in (similarity, similarity_pairwise):
        with pytest.raises(InputError, match=message):
            function(name, torch.zeros(a), torch.zeros(b))
    with pytest.raises(InputError, match="5 vectors beside 3; expected as many"):
        similarity_pairwise("dot", torch.zeros(5, 2), torch.zeros(3, 2))
    for wrong in ("abc", [[1.0, 2.0], [3.0]], [torch.zeros(2), torch.zeros(3)], [None]):
        with pytest.raises(InputError, match=r"no table of numbers .*; expected vectors as encode"):
            similarity("dot", wrong, torch.zeros(3, 2))


# --- fewer bits ----------------------------------------------------------------------------------


def test_by_hand():
    values = np.array([[0.0, -1.0], [2.55, 1.55], [2.505, -0.005], [9.0, -9.0]], dtype=np.float32)
    ranges = values[:2]  # in each column the smallest and the largest: steps of 0.01
    found = quantize_embeddings(values, "uint8", ranges)
    assert found.dtype == np.uint8
    assert found.tolist() == [[0, 0], [255, 255], [250, 99], [255, 0]]
    assert quantize_embeddings(values, "int8", ranges).tolist()[2] == [122, -29]
    assert quantize_embeddings(values[:, [0, 1] * 5], "ubinary").tolist()[1:] == [
        *([255, 192], [170, 128], [170, 128])
    ]
    assert quantize_embeddings(values, "binary").tolist() == [[-128], [64], [0], [0]]


def test_nothing_and_bfloat16():
    none = np.zeros((0, 11), dtype=np.float32)
    sizes = {name: quantize_embeddings(none, name).shape for name in PRECISIONS}
    assert sizes == {**dict.fromkeys(PRECISIONS, (0, 11)), "binary": (0, 2), "ubinary": (0, 2)}
    low = torch.tensor([[0.5, -0.5]], dtype=torch.bfloat16)
    assert quantize_embeddings(low, "ubinary").tolist() == [[128]]


def test_what_cannot_be_quantized():
    table = np.ones((3, 11), dtype=np.float32)
    for given, precision, options, words in (
        (table[0], "int8", {}, "there is one vector; expected two"),
        (table[:1], "uint8", {}, "there is one vector; expected two"),
        (table, "int8", {"ranges": np.zeros((2, 3))}, r"shape \(2, 3\); expected \(2, 11\)"),
        (table, "int4", {}, "precision is 'int4'; expected one of float32, float16"),
        (table.astype(np.int8), "binary", {}, "embeddings are int8; expected floats"),
    ):
        with pytest.raises(InputError, match=words):
            quantize_embeddings(given, precision, **options)
