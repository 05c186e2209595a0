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
    ("arguments", "options"),
    [
        (("query",), {}),
        ((None, "nice ", 3), {}),
        ((None, None, 32), {}),
        (ALL[:10], {}),
        (ALL, {}),
        ((*ALL[:5], "ubinary"), {}),
        ((*ALL[:6], False), {}),
        ((), {"truncate_dim": 7}),
        ((), {"truncate_dim": 7, "normalize_embeddings": True}),
        ((), {"precision": "int8"}),
        ((), {"precision": "uint8", "convert_to_tensor": True}),
        ((), {"precision": "binary", "convert_to_numpy": False}),
    ],
    ids=str,
)
def test_calls_give_what_stock_gives(pair, arguments, options):
    ours, stock = pair
    for texts in (TEXTS, TEXTS[2]):
        if "int8" in str(options) and isinstance(texts, str):
            continue  # the ranges of one vector
        found = ours.encode(texts, *arguments, **options)
        expected = stock.encode(texts, *arguments, **options)
        assert type(found) is type(expected) and found[0].dtype == expected[0].dtype
        found, expected = (np.stack(list(each)).astype(float) for each in (found, expected))
        if "precision" in options:  # a number may lie on the edge of a step
            assert (found != expected).mean() < 0.02
        else:
            np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["encode_query", "encode_document"])
def test_queries_and_documents(pair, name):
    ours, stock = (getattr(each, name) for each in pair)
    for arguments, options in (
        ((), {}),
        ((None, None, 2), {}),
        ((), {"prompt_name": None, "truncate_dim": 5}),
        (("other",), {}),
        ((None, "a "), {}),
        ((), {"prompt": "", "normalize_embeddings": True}),
    ):
        assert_near(ours(TEXTS, *arguments, **options), stock(TEXTS, *arguments, **options))
    assert_near(ours(TEXTS[0]), stock(TEXTS[0]))


def test_token_embeddings(pair):
    ours, stock = pair
    options = {"output_value": "token_embeddings"}
    found, expected = ours.encode(TEXTS, **options), stock.encode(TEXTS, **options)
    assert isinstance(found, list) and len(found) == len(TEXTS)
    for one, other in zip(found, expected, strict=True):
        assert_near(one.numpy(), other.numpy())
        assert not one.is_inference()
    assert_near(ours.encode(TEXTS[0], **options).numpy(), expected[0].numpy())
    few = ours.encode(TEXTS, **options, precision="int8")
    for one, other in zip(few, stock.encode(TEXTS, **options, precision="int8"), strict=True):
        assert one.dtype == torch.int8 and (one.numpy() != other).mean() < 0.02


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
    assert torch.equal(ours.encode(TEXTS[0], **options)["input_ids"], found[0]["input_ids"])
