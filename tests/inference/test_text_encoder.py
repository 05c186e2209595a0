"""TextEncoder: the vectors of `SentenceTransformer`, batches and streams, loading and saving."""

import asyncio
import copy
import itertools
import pickle
import shutil
import threading

import numpy as np
import pytest
import sentence_transformers as library
import torch
import transformers
from sentence_transformers import models as modules

import hf_bert_impl
from hf_bert_impl import TextEncoder, text_encoder
from hf_bert_impl.errors import InputError
from hf_bert_impl.model.kernels import why_no_kernels
from tests.inference.conftest import LONG, SHORT, TEXTS, TOLERANCE, assert_near

PROMPTS = {"query": "you ", "passage": "the river ", "other": "and "}
#: Every argument of `encode` in its place; convert_to_tensor, normalize_embeddings, truncate_dim.
ALL = ("query", None, 2, False, "sentence_embedding", "float32", True, False, "cpu", True, 7)
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "lasttoken", "weightedmean")


def further_modules():
    torch.manual_seed(1)
    return [
        modules.Pooling(30, ("max", "mean")),
        modules.Dense(60, 7, activation_function=torch.nn.GELU()),
        modules.LayerNorm(7),
        modules.Dense(7, 7, bias=False, use_residual=True),
        modules.Dense(7, 11, activation_function=None, use_residual=True),
        modules.Dropout(0.5),
        modules.Normalize(),
    ]


def cnn():
    torch.manual_seed(1)
    return [modules.CNN(30, out_channels=5, kernel_sizes=[1, 3]), modules.Pooling(10)]


def word_weights():
    # The library takes the ids of the tokenizer for places in this list.
    words = [f"word {number}" for number in range(2000)]
    weights = {word: 0.1 + number % 7 for number, word in enumerate(words)}
    return [modules.WordWeights(words, weights), modules.Pooling(30)]


@pytest.fixture(scope="session")
def save_stock(tiny, tmp_path_factory):
    """Saves a model by sentence-transformers itself; gives the folder."""

    def save(*behind, transformer=None, **options):
        folder = tmp_path_factory.mktemp("stock")
        first = modules.Transformer(str(tiny), **(transformer or {}))
        model = library.SentenceTransformer(modules=[first, *behind], device="cpu", **options)
        model.save_pretrained(str(folder), create_model_card=False)
        return folder

    return save


def both(folder):
    """Ours and stock's encoder of a folder."""
    kinds = (TextEncoder, library.SentenceTransformer)
    return [kind(str(folder), device="cpu") for kind in kinds]


@pytest.fixture(scope="session")
def pair(save_stock):
    """Ours and stock's, with modules of every kind and prompts that do not count."""
    pooling = modules.Pooling(30, ("mean", "cls"), include_prompt=False)
    return both(save_stock(pooling, prompts=PROMPTS, default_prompt_name="other"))


async def first_of_joined(encoder, texts, **options):
    """Of calls that are made together."""
    calls = (encoder.encode_async(given, **options) for given in (texts, TEXTS[3:], []))
    return (await asyncio.gather(*calls))[0]


# --- the vectors of sentence-transformers ------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "arguments", "options"),
    [
        ("encode", (), {}),
        ("encode", ALL, {}),
        ("encode", (), {"truncate_dim": 7, "normalize_embeddings": True}),
        ("encode", (), {"precision": "int8"}),
        ("encode", (), {"precision": "uint8", "convert_to_tensor": True}),
        ("encode", (), {"precision": "binary", "convert_to_numpy": False}),
        ("encode_query", (), {}),
        ("encode_query", ("other",), {"truncate_dim": 5}),
        ("encode_document", (None, None, 2), {}),
    ],
    ids=str,
)
def test_calls_give_what_stock_gives(pair, method, arguments, options):
    ours, stock = (getattr(each, method) for each in pair)
    for texts in (TEXTS, TEXTS[2]):
        if "int8" in str(options) and isinstance(texts, str):
            continue  # the ranges of one vector
        results = [each(texts, *arguments, **options) for each in (stock, ours)]
        if method == "encode" and not arguments:
            results.append(asyncio.run(first_of_joined(pair[0], texts, **options)))
        expected = np.stack(list(results[0])).astype(float)
        for found in results[1:]:
            assert type(found) is type(results[0]) and found[0].dtype == results[0][0].dtype
            found = np.stack(list(found)).astype(float)
            if "precision" in options:  # rounding may differ at the edge of a step
                assert (found != expected).mean() < 0.02
            else:
                np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("mode", [*MODES, ("weightedmean", "lasttoken", "max")])
def test_poolings(save_stock, mode, include_prompt):
    encoder, stock = both(save_stock(modules.Pooling(30, mode, include_prompt=include_prompt)))
    for prompt in (None, "you and "):
        assert_near(encoder.encode(TEXTS, prompt=prompt), stock.encode(TEXTS, prompt=prompt))


@pytest.mark.parametrize("behind", [further_modules, cnn, word_weights])
def test_modules_behind_bert(save_stock, behind, tmp_path):
    """CNN and WordWeights take padded batches. CNN reads padding, which is stock's."""
    folder = save_stock(*behind())
    encoder, stock = both(folder)
    assert encoder[0].can_flatten_inputs == (behind is further_modules)
    for size in (1, 2, 32):
        expected = stock.encode(TEXTS, batch_size=size)
        assert_near(encoder.encode(TEXTS, batch_size=size), expected)
    assert_near(asyncio.run(encoder.encode_async(TEXTS)), expected)
    encoder.save_pretrained(str(tmp_path / "again"))
    again = library.SentenceTransformer(str(tmp_path / "again"), device="cpu")
    assert_near(again.encode(TEXTS), expected)
    if behind is not further_modules:
        with pytest.raises(InputError, match="supports BERT, Pooling, Dense, LayerNorm"):
            TextEncoder(folder, device="cpu", batch_invariant=True)


def test_token_embeddings_and_features(pair):
    for output in ("token_embeddings", None):
        found, expected = (each.encode(TEXTS, prompt="you ", output_value=output) for each in pair)
        for one, other in zip(found, expected, strict=True):
            if output is None:
                assert one.keys() == other.keys()
                assert torch.equal(one["input_ids"], other["input_ids"])
                kept = other["attention_mask"].bool()  # states at padding are zero here
                one, other = (each["token_embeddings"][kept] for each in (one, other))
            torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=0)
    assert [each[0].can_flatten_inputs for each in pair] == [True, False]


def test_the_average_of_the_first_and_the_last_layer(tiny):
    encoder = TextEncoder(tiny, device="cpu", pooling="first-last-average")
    model, expected = transformers.BertModel.from_pretrained(tiny).eval(), []
    for text in TEXTS:
        batch = encoder.tokenizer(text, truncation=True, max_length=31, return_tensors="pt")
        with torch.no_grad():
            states = model(**batch, output_hidden_states=True).hidden_states
        expected.append((states[1] + states[-1])[0].mean(0) / 2)
    assert_near(encoder.encode(TEXTS, token_budget=20), torch.stack(expected).numpy())


def test_forms_of_the_result(encoder):
    expected = encoder.encode(SHORT)
    assert np.array_equal(encoder.encode(sentences=SHORT), expected)
    assert np.array_equal(encoder.encode(np.array(SHORT)), expected)
    assert np.array_equal(encoder.encode(SHORT, precision="float16"), expected.astype(np.float16))
    rows = encoder.encode(SHORT, convert_to_numpy=False, precision="float16")
    assert isinstance(rows, list) and rows[0].dtype == torch.float16
    assert encoder.encode([]).shape == (0, 30)
    assert encoder.encode([], truncate_dim=7, convert_to_tensor=True).shape == (0, 7)
    assert encoder.encode([], convert_to_numpy=False) == []
    assert encoder.encode([], precision="float16").dtype == np.float16
    assert encoder.similarity(expected, expected).shape == (4, 4)


# --- batches, streams, coroutines --------------------------------------------------------------


@pytest.mark.skipif(why_no_kernels(torch.float32) is not None, reason="torch lacks oneDNN")
@pytest.mark.parametrize("options", [{}, {"prepare": False}, {"dtype": "int8"}])
@pytest.mark.parametrize("mode", [None, "mean", "max", "weightedmean"])
def test_the_same_bits_in_any_batch(save_stock, options, mode):
    torch.manual_seed(1)
    behind = further_modules() if mode is None else [modules.Pooling(30, mode)]
    folder = save_stock(*behind)
    encoder = TextEncoder(folder, device="cpu", batch_invariant=True, **options)
    texts = [*TEXTS, "nice", "the river", *TEXTS[::-1]]
    alone = np.stack([encoder.encode(text) for text in texts])
    for sizes in ({"batch_size": 3}, {"batch_size": 11}, {"token_budget": 40}):
        assert np.array_equal(encoder.encode(texts, **sizes), alone)

    async def joined(encoder):
        return await asyncio.gather(*(encoder.encode_async(text) for text in texts))

    for each in (encoder, copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert each._inference.args[0] is each  # a copy computes by itself
        assert np.array_equal(each.encode(texts), alone)
        assert np.array_equal(np.stack(asyncio.run(joined(each))), alone)


@pytest.mark.parametrize("place", ["preprocess", "forward"])
def test_errors_surface_and_leave_no_thread(encoder, monkeypatch, place):
    kind = library.SentenceTransformer
    original, calls = getattr(kind, place), itertools.count()

    def fail(*arguments, **options):
        if next(calls) > 1:
            raise StopAsyncIteration
        return original(*arguments, **options)

    monkeypatch.setattr(kind, place, fail)
    with pytest.raises(StopAsyncIteration):
        encoder.encode(SHORT * 500, batch_size=100)
    assert not [t for t in threading.enumerate() if t.name.startswith("hf_bert_impl-tokenizer")]


# --- loading and saving ------------------------------------------------------------------------


def test_bert_gets_its_own_class(tiny, monkeypatch):
    """Without registering it, which would change what other threads load."""
    monkeypatch.setattr(text_encoder, "registered", lambda: pytest.fail("registered"))
    options = {"model_kwargs": {"attn_implementation": "eager"}}
    model = TextEncoder(tiny, device="cpu", **options).transformers_model
    assert type(model) is hf_bert_impl.BertModel
    assert (model.config._attn_implementation, model.name_or_path) == ("eager", str(tiny))


@pytest.mark.parametrize(
    "fields", [{"position_embedding_type": "relative_key"}, {"pruned_heads": {0: [1]}}], ids=str
)
def test_what_stock_drops(save_tiny, tmp_path, fields):
    """What stock transformers ignores or refuses is computed, and saved again, of any head."""
    folder = save_tiny("BertForMaskedLM", **fields)
    encoder = TextEncoder(folder, device="cpu")
    model = hf_bert_impl.BertModel.from_pretrained(folder)
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder)
    with torch.no_grad():
        states = model(**tokenizer(TEXTS[2], return_tensors="pt")).last_hidden_state[0]
    assert_near(encoder.encode(TEXTS[2]), states.mean(0).numpy())
    encoder.save_pretrained(str(tmp_path / "saved"))
    assert_near(TextEncoder(tmp_path / "saved", device="cpu").encode(TEXTS), encoder.encode(TEXTS))


def test_settings(save_stock):
    transformer = {"max_seq_length": 9, "do_lower_case": True}
    options = {"prompts": PROMPTS, "truncate_dim": 8, "similarity_fn_name": "dot"}
    folder = save_stock(modules.Pooling(30), transformer=transformer, **options)
    encoder, stock = both(folder)
    texts = ["NICE to Meet You", LONG]
    assert_near(encoder.encode(texts), stock.encode(texts))
    assert encoder.max_seq_length == 9 and encoder.get_embedding_dimension() == 8
    options = {"prompts": {"query": "nice "}, "truncate_dim": 11, "default_prompt_name": "query"}
    again = TextEncoder(folder, device="cpu", max_length=5, similarity_fn_name="cosine", **options)
    assert again.prompts == {**PROMPTS, "document": "", "query": "nice "}
    assert (again.max_seq_length, again.get_embedding_dimension()) == (5, 11)
    assert again.similarity_fn_name == "cosine"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_lower_precision(minilm_path, dtype, tmp_path):
    texts = ["A man is playing a guitar on stage.", "", "The committee met again. " * 60]
    exact = TextEncoder(minilm_path, device="cpu", dtype="float32")
    low = TextEncoder(minilm_path, dtype=dtype, device="cpu")
    expected, found = (each.encode(texts, batch_size=1) for each in (exact, low))
    assert found.dtype == np.float32
    computes_in_float32 = why_no_kernels(getattr(torch, dtype)) is not None
    assert np.array_equal(found, expected) == computes_in_float32
    assert (found * expected).sum(axis=1).min() > 0.98  # cosines: both have length 1
    low.save_pretrained(str(tmp_path / "saved"))  # with the weights that were loaded
    stock = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert stock.dtype == torch.float32
    assert_near(stock.encode(texts), expected)


def test_a_revision_from_a_cache(save_stock, tiny, tmp_path):
    """Config, modules, tokenizer and weights are all looked for in the same place."""
    snapshot = tmp_path / "cache" / "models--someone--a-model" / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    shutil.copytree(save_stock(modules.Pooling(30), truncate_dim=9), snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "v2").write_text(snapshot.name)
    place = {"cache_dir": tmp_path / "cache", "local_files_only": True, "revision": "v2"}
    encoder = TextEncoder.from_pretrained("someone/a-model", device="cpu", **place)
    assert_near(encoder.encode(SHORT), TextEncoder(tiny, truncate_dim=9).encode(SHORT))
    for other in ({"revision": None}, {"revision": "v1"}, {"cache_dir": tmp_path / "none"}):
        with pytest.raises(OSError):
            TextEncoder.from_pretrained("someone/a-model", device="cpu", **place | other)


# --- wrong input -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["encode", "encode_async"])
def test_wrong_arguments(encoder, method):
    for options, message in (
        ({"texts": ["a", 1]}, r"texts\[1\] is int|type: int"),
        ({"texts": ["a", "\ud83d"]}, r"texts\[1\] has half a surrogate pair"),
        ({"texts": "a\ud83d"}, r"texts\[0\] has half a surrogate pair"),
        ({"prompt_name": "x"}, "Prompt name 'x' not found"),
        ({"unknown": 1}, "unknown"),
        ({"token_budget": 0}, "token_budget"),
        ({"batch_size": 0}, "batch_size"),
    ):
        given = {"texts": SHORT, **options}
        with pytest.raises((ValueError, TypeError), match=message):
            found = getattr(encoder, method)(given.pop("texts"), **given)
            asyncio.run(found) if method == "encode_async" else list(found)


def test_a_wrong_dimension_is_not_queued(encoder):
    with pytest.raises(ValueError, match="truncate_dim is 0"):
        asyncio.run(encoder.encode_async(SHORT, truncate_dim=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"truncate_dim": -1}, "truncate_dim is -1"),
        ({"dtype": "float8"}, "'float8'.*float32, bfloat16, .*int8"),
        ({"dtype": "int8", "prepare": False}, "Use prepare=True"),
        ({"max_length": 2}, "max_length is 2.*3 to 31"),
        ({"max_length": 32}, "max_length is 32.*3 to 31"),
        ({"device": "nowhere"}, "This machine has no device 'nowhere'"),
        ({"path": None}, "there is no model"),
        ({"pooling": "median"}, "'median'.*cls, mean, max, first-last"),
        ({"maxlength": 3}, r"^SentenceTransformer.*argument 'maxlength'"),
    ],
)
def test_wrong_arguments_of_loading(tiny, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        TextEncoder.from_pretrained(**{"path": tiny} | options)
