"""TextEncoder: a plain loop's vectors, batches and streams, and loading."""

import itertools
import shutil
import threading

import numpy as np
import pytest
import torch

import hf_bert_impl
from hf_bert_impl import TextEncoder
from hf_bert_impl.errors import InputError
from hf_bert_impl.inference import batching
from hf_bert_impl.inference.loading import _SentenceBert
from hf_bert_impl.inference.pooling import MODES, Pooling
from tests.inference.encoder_cases import (
    LONG,
    POSITIONS,
    SHORT,
    TEXTS,
    assert_near,
    parts,
    plain_states,
    plain_vectors,
)


def tokenizer_threads():
    return [t for t in threading.enumerate() if t.name.startswith("hf_bert_impl-tokenizer")]


# --- as a plain loop over the texts -----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({}, ""),
        ({"prompt": "a "}, "a "),
        ({"prompt_name": "query"}, "you "),
        ({"normalize_embeddings": True}, ""),
        ({"truncate_dim": 7}, ""),
        ({"truncate_dim": 7, "normalize_embeddings": True}, ""),
        ({"truncate_dim": 99}, ""),
    ],
    ids=str,
)
def test_calls_are_those_of_a_plain_loop(tiny, options, prompt):
    encoder = TextEncoder.from_pretrained(tiny, device="cpu", prompts={"query": "you "})
    expected = plain_vectors(tiny, [prompt + text for text in TEXTS])
    expected = expected[:, : options.get("truncate_dim")]
    if "normalize_embeddings" in options:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    assert_near(encoder.encode(TEXTS, **options), expected)
    rows = encoder.encode_stream(iter(TEXTS), **options)
    assert_near(torch.stack(list(rows)).numpy(), expected)


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("mode", [*MODES, ("max", "cls")])
def test_poolings_are_those_of_a_plain_loop(tiny, mode, include_prompt):
    encoder = TextEncoder(*parts(tiny), pooling=Pooling(mode, include_prompt=include_prompt))
    for prompt, length in (("", 0), ("you and ", 3)):  # with [CLS]
        expected = []
        for states in plain_states(tiny, [prompt + text for text in TEXTS]):
            places = torch.arange(len(states))[:, None] + 1
            skipped = 0 if include_prompt else length
            own, places = states[skipped:], places[skipped:]
            by_mode = {
                "cls": own[0],
                "mean": own.mean(0),
                "max": own.amax(0),
                "mean_sqrt_len_tokens": own.sum(0) / len(own) ** 0.5,
                "lasttoken": own[-1],
                "weightedmean": (own * places).sum(0) / places.sum(),
            }
            modes = (mode,) if isinstance(mode, str) else mode
            expected.append(torch.cat([by_mode[one] for one in modes]))
        assert_near(encoder.encode(TEXTS, prompt=prompt), torch.stack(expected).numpy())


def test_the_average_of_the_first_and_the_last_layer(tiny):
    encoder = TextEncoder(*parts(tiny), pooling=Pooling.named("first-last-average"))
    both = zip(plain_states(tiny, TEXTS, 1), plain_states(tiny, TEXTS), strict=True)
    expected = torch.stack([((first + last) / 2).mean(0) for first, last in both])
    assert_near(encoder.encode(TEXTS, token_budget=20), expected.numpy())
    with pytest.raises(ValueError, match="'median'; expected one of cls, mean, max, first-last"):
        Pooling.named("median")


def test_everything_about_a_text(tiny, encoder):
    states = encoder.encode(TEXTS, output_value="token_embeddings")
    features = encoder.encode(TEXTS, output_value=None)
    for found, of_text, plain in zip(states, features, plain_states(tiny, TEXTS), strict=True):
        torch.testing.assert_close(found, plain, atol=1e-5, rtol=0)
        torch.testing.assert_close(of_text["token_embeddings"], plain, atol=1e-5, rtol=0)


def test_default_prompts_of_queries_and_documents(tiny):
    encoder = TextEncoder.from_pretrained(tiny, device="cpu", prompts={"passage": "the "})
    # "document" is there and empty, so that "passage" is never looked for.
    assert np.array_equal(encoder.encode_document(SHORT), encoder.encode(SHORT, prompt=""))
    encoder.prompts = {"corpus": "a ", "passage": "the "}
    assert np.array_equal(encoder.encode_document(SHORT), encoder.encode(SHORT, "passage"))
    assert np.array_equal(encoder.encode_query(SHORT), encoder.encode(SHORT))


def test_precisions(encoder):
    exact = encoder.encode(TEXTS)
    half = encoder.encode(TEXTS, precision="float16")
    assert np.array_equal(half, exact.astype(np.float16))
    bits = encoder.encode(TEXTS, precision="ubinary")
    assert np.array_equal(bits, np.packbits(exact > 0, axis=1))
    assert encoder.encode([], precision="int8").shape == (0, 30)
    assert encoder.encode([], precision="binary").shape == (0, 4)


def test_lower_case_before_a_cased_tokenizer(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "cased")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    model = _SentenceBert.from_pretrained(folder)
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder)
    cased = TextEncoder(model, tokenizer)
    lowered = TextEncoder(model, tokenizer, do_lower_case=True)
    assert_near(lowered.encode("NICE to Meet"), cased.encode("nice to meet"))
    assert not np.allclose(cased.encode("NICE to Meet"), cased.encode("nice to meet"))


def test_checkpoints_of_other_heads_load_without_a_word(tiny, save_tiny, caplog):
    folder = save_tiny("BertForMaskedLM")
    encoder = TextEncoder.from_pretrained(folder, device="cpu")
    assert_near(encoder.encode(TEXTS), plain_vectors(folder, TEXTS))
    assert not [it for it in caplog.records if it.name.startswith("hf_bert_impl")]


# --- batches, streams and threads ------------------------------------------------------------


@pytest.mark.parametrize("options", [{"token_budget": 1}, {"token_budget": 23}, {"batch_size": 3}])
def test_batches_change_no_vector(encoder, options):
    texts = TEXTS * 5
    alone = np.stack([encoder.encode(text) for text in texts])
    assert_near(encoder.encode(texts, **options), alone)
    sizes = [len(part) for part in encoder.encode_stream(iter(texts), **options, batches=True)]
    assert sum(sizes) == len(texts) and len(sizes) > 1
    assert max(sizes) == {1: 1, 23: 4, 3: 3}[next(iter(options.values()))]


def test_kinds_of_input_and_output(encoder):
    expected = encoder.encode(SHORT)
    assert_near(encoder.encode(np.array(SHORT)), expected)
    tensor = encoder.encode(SHORT, convert_to_tensor=True)
    assert torch.equal(tensor, torch.from_numpy(expected))
    assert not tensor.is_inference()  # the caller may train on it
    rows = encoder.encode(SHORT, convert_to_numpy=False)
    assert isinstance(rows, list)
    assert torch.equal(torch.stack(rows), tensor)
    assert encoder.encode(SHORT[0]).shape == (30,)
    assert encoder.encode([]).shape == (0, 30)
    parts = list(encoder.encode_stream(iter(SHORT * 3), batch_size=5, batches=True))
    assert [len(part) for part in parts] == [5, 5, 2]
    assert_near(torch.cat(parts).numpy(), np.tile(expected, (3, 1)))


def test_stream_is_lazy_and_ends_when_closed(encoder):
    read = []
    texts = (read.append(1) or text for text in itertools.cycle(SHORT))
    stream = encoder.encode_stream(texts, batch_size=5)
    found = torch.stack(list(itertools.islice(stream, 1000)))
    assert torch.allclose(found[996:], encoder.encode(SHORT, convert_to_tensor=True), atol=1e-6)
    assert not torch.is_inference_mode_enabled()
    assert 1000 <= len(read) <= 1000 + (batching.CHUNKS_AHEAD + 1) * batching.CHUNK_TEXTS
    assert len(tokenizer_threads()) == 1
    stream.close()
    assert not tokenizer_threads()


class Stop(Exception):
    pass


@pytest.mark.parametrize("place", ["texts", "_tokenize", "_vectors"])
def test_errors_surface_and_leave_no_thread(encoder, monkeypatch, place):
    def fail(*arguments):
        raise Stop

    texts = itertools.chain(SHORT * 500, (fail() for _ in range(place == "texts")))
    if place != "texts":
        original, calls = getattr(TextEncoder, place), itertools.count()
        monkeypatch.setattr(
            TextEncoder, place, lambda *a: original(*a) if next(calls) < 2 else fail()
        )
    with pytest.raises(Stop):
        list(encoder.encode_stream(texts, batch_size=100))
    assert not tokenizer_threads()


def test_the_given_tokenizer_is_left_as_it_was(tiny):
    model, tokenizer = parts(tiny)
    tokenizer.backend_tokenizer.enable_padding(length=17)
    tokenizer.backend_tokenizer.enable_truncation(13)
    before = tokenizer.backend_tokenizer.to_str()
    encoder = TextEncoder(model, tokenizer, max_length=6)
    assert_near(encoder.encode(LONG), encoder.encode("the river rose and"))
    assert tokenizer.backend_tokenizer.to_str() == before
    encoder.max_seq_length = 5
    assert encoder.max_length == 5
    assert_near(encoder.encode(LONG), encoder.encode("the river rose"))
    with pytest.raises(InputError, match="max_length is 32; expected 3 to 31"):
        encoder.max_seq_length = 32
    assert encoder.get_embedding_dimension() == encoder.get_sentence_embedding_dimension() == 30
    for word in ("TextEncoder", "2 layers of 30", "mean", "5 tokens", "cpu"):
        assert word in repr(encoder)


# --- loading ---------------------------------------------------------------------------------


def test_a_revision_from_a_cache(tiny, tmp_path):
    """Config, modules, tokenizer and weights are all looked for in the same place."""
    snapshot = tmp_path / "cache" / "models--someone--a-model" / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    TextEncoder.from_pretrained(tiny, device="cpu", truncate_dim=9).save_pretrained(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "v2").write_text(snapshot.name)
    place = {"cache_dir": tmp_path / "cache", "local_files_only": True, "revision": "v2"}
    encoder = TextEncoder.from_pretrained("someone/a-model", device="cpu", **place)
    assert_near(encoder.encode(SHORT), plain_vectors(tiny, SHORT)[:, :9])
    for other in ({"revision": None}, {"revision": "v1"}, {"cache_dir": tmp_path / "none"}):
        with pytest.raises(OSError):
            TextEncoder.from_pretrained("someone/a-model", device="cpu", **place | other)


# --- wrong input -----------------------------------------------------------------------------


@pytest.mark.parametrize(("claimed", "words"), [(9, "gave 3 texts"), (2, "gave more texts")])
def test_a_length_that_is_not_that_of_the_texts(encoder, claimed, words):
    """Rows that no text filled would hold arbitrary numbers, so this is an error."""

    class Texts(list):
        def __len__(self):
            return claimed

    with pytest.raises(ValueError, match=rf"{words}; expected {claimed}, .*len\(texts\); .*stream"):
        encoder.encode(Texts(SHORT[:3]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int4"}, "precision is 'int4'; expected one of float32, float16"),
        ({"precision": "int8", "texts": "a"}, "there is one vector; expected two"),
        ({"precision": "int8", "output_value": None}, "'int8' beside output_value=None"),
        ({"truncate_dim": 0}, "truncate_dim is 0; expected a whole number from 1"),
        ({"device": "nowhere"}, "device is 'nowhere'.*expected a device of this machine"),
        ({"prompt": 32}, "prompt is 32; expected a text"),
        ({"prompt_name": "x"}, "no prompt 'x'; expected one that .*'query', 'document'"),
        ({"token_budget": -1}, "token_budget is -1"),
        ({"texts": ["a", "b", None]}, r"texts\[2\] is NoneType; give each text as a str"),
        ({"texts": (text for text in SHORT)}, r"generator.*encode_stream"),
        ({"texts": {"a": "b"}}, "texts is dict; give a str"),
        ({"texts": ["a", "nice \ud83d"]}, r"texts\[1\] has half a surrogate pair"),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_computed(
    encoder, monkeypatch, options, message
):
    monkeypatch.setattr(TextEncoder, "_states", lambda *_: pytest.fail("computed"))
    with pytest.raises((InputError, TypeError), match=message):
        encoder.encode(**({"texts": SHORT} | options))
    assert not tokenizer_threads()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"default_prompt_name": "x"}, "no prompt .x.; expected one .*document"),
        ({"similarity_fn_name": "cos"}, "expected one of cosine"),
        ({"truncate_dim": -1}, "truncate_dim is -1"),
        ({"dtype": "float8"}, r"'float8'; expected one of float32, bfloat16, .*int8"),
        ({"dtype": "int8", "prepare": False}, "leave prepare=True"),
        ({"max_length": 2}, "max_length is 2; expected 3 to 31, for which"),
        ({"max_length": POSITIONS + 1}, "max_length is 32; expected 3 to 31, for which"),
    ],
)
def test_wrong_arguments_of_loading(tiny, options, message):
    with pytest.raises(InputError, match=message):
        TextEncoder.from_pretrained(tiny, **options)


def test_a_model_of_another_class(encoder):
    with pytest.raises(TypeError, match=r"give an hf_bert_impl\.BertModel"):
        TextEncoder(torch.nn.Linear(2, 3), encoder.tokenizer)
