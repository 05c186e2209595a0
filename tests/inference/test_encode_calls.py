"""The arguments of `encode`, beside those of sentence-transformers on the same weights."""

import numpy as np
import pytest
import torch

from hf_bert_impl import TextEncoder
from tests.inference.encoder_cases import TEXTS, TOLERANCE, assert_near

pytestmark = pytest.mark.ecosystem

PROMPTS = {"query": "you ", "passage": "the river ", "other": "and "}
#: Every argument in its place: convert_to_tensor, normalize_embeddings and truncate_dim come last.
ALL = ("query", None, 2, False, "sentence_embedding", "float32", True, False, "cpu", True, 7)


@pytest.fixture(scope="module")
def pair(tiny):
    """Ours and stock's, with the same prompts."""
    library = pytest.importorskip("sentence_transformers")
    options = {"prompts": PROMPTS, "default_prompt_name": "other", "device": "cpu"}
    stock = library.SentenceTransformer(str(tiny), **options)
    return TextEncoder.from_pretrained(tiny, **options), stock


@pytest.mark.parametrize(
    ("method", "arguments", "options"),
    [
        ("encode", ("query",), {}),
        ("encode", (None, "nice ", 3), {}),
        ("encode", ALL[:10], {}),
        ("encode", ALL, {}),
        ("encode", (*ALL[:5], "ubinary"), {}),
        ("encode", (*ALL[:6], False), {}),
        ("encode", (), {"truncate_dim": 7, "normalize_embeddings": True}),
        ("encode", (), {"precision": "int8"}),
        ("encode", (), {"precision": "uint8", "convert_to_tensor": True}),
        ("encode", (), {"precision": "binary", "convert_to_numpy": False}),
        ("encode_query", (), {}),
        ("encode_query", ("other",), {}),
        ("encode_query", (None, "a "), {}),
        ("encode_query", (), {"prompt_name": None, "truncate_dim": 5}),
        ("encode_document", (), {}),
        ("encode_document", (None, None, 2), {}),
        ("encode_document", (), {"prompt_name": "passage"}),
    ],
    ids=str,
)
def test_calls_give_what_stock_gives(pair, method, arguments, options):
    ours, stock = (getattr(each, method) for each in pair)
    for texts in (TEXTS, TEXTS[2]):
        if "int8" in str(options) and isinstance(texts, str):
            continue  # the ranges of one vector
        found, expected = (each(texts, *arguments, **options) for each in (ours, stock))
        assert type(found) is type(expected) and found[0].dtype == expected[0].dtype
        found, expected = (np.stack(list(each)).astype(float) for each in (found, expected))
        if "precision" in options:  # a number may lie on the edge of a step
            assert (found != expected).mean() < 0.02
        else:
            np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_everything_about_a_text(pair):
    ours, stock = pair
    options = {"output_value": None, "prompt_name": "query", "truncate_dim": 7}
    found, expected = ours.encode(TEXTS, **options), stock.encode(TEXTS, **options)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() < other.keys()  # stock says the modality, and the prompt's tokens
        tokens = len(one["input_ids"])
        assert tokens == other["attention_mask"].sum()
        for name in one.keys() - {"sentence_embedding"}:
            torch.testing.assert_close(one[name], other[name][:tokens], atol=1e-5, rtol=0)
        assert_near(one["sentence_embedding"].numpy(), other["sentence_embedding"].numpy())
