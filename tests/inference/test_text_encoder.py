"""TextEncoder: a bare BERT, batches and streams, and loading."""

import itertools
import shutil
import threading

import numpy as np
import pytest
import torch
from rich.console import Console

import hf_bert_impl
from hf_bert_impl import TextEncoder
from hf_bert_impl.inference import batching
from hf_bert_impl.inference.loading import _SentenceBert
from tests.inference.encoder_cases import LONG, POSITIONS, SHORT, assert_near


def tokenizer_threads():
    return [t for t in threading.enumerate() if t.name.startswith("hf_bert_impl-tokenizer")]


# --- a bare BERT ------------------------------------------------------------------------------


def test_lower_case_before_a_cased_tokenizer(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "cased")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    model = _SentenceBert.from_pretrained(folder)
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder)
    cased = TextEncoder(model, tokenizer)
    lowered = TextEncoder(model, tokenizer, do_lower_case=True)
    assert_near(lowered.encode("NICE to Meet"), cased.encode("nice to meet"))
    assert not np.allclose(cased.encode("NICE to Meet"), cased.encode("nice to meet"))


def test_bare_bert_gets_mean_pooling(tiny, encoder):
    model = hf_bert_impl.BertModel.from_pretrained(tiny).eval()
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(tiny)
    for text in SHORT:
        batch = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            expected = model(**batch).last_hidden_state[0].mean(dim=0)
        assert_near(encoder.encode(text), expected.numpy())
    assert encoder.max_length == POSITIONS


def test_checkpoints_of_other_heads_load_without_a_word(tiny, tmp_path, encoder, caplog):
    base = hf_bert_impl.BertModel.from_pretrained(tiny)
    model = hf_bert_impl.BertForMaskedLM(base.config)
    model.bert.load_state_dict(base.state_dict(), strict=False)
    folder = tmp_path / "masked"
    model.save_pretrained(folder)
    shutil.copy(tiny / "vocab.txt", folder)
    loaded = TextEncoder.from_pretrained(folder, device="cpu")
    assert_near(loaded.encode([*SHORT, LONG]), encoder.encode([*SHORT, LONG]))
    assert not caplog.records


# --- batches, streams and threads ------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"token_budget": 1}, {"token_budget": 23}, {"batch_size": 3}, {"batch_size": 2}, {}],
    ids=str,
)
def test_batches_change_no_vector(encoder, options, monkeypatch):
    texts = [*SHORT, LONG] * 5
    alone = np.stack([encoder.encode(text) for text in texts])
    sizes = []
    vectors = TextEncoder._vectors

    def watch(self, batch, *rest):
        sizes.append([len(ids) for ids in batch])
        return vectors(self, batch, *rest)

    monkeypatch.setattr(TextEncoder, "_vectors", watch)
    assert_near(encoder.encode(texts, **options), alone)
    assert sum(map(len, sizes)) == len(texts)
    assert max(map(len, sizes)) <= options.get("batch_size", len(texts))
    budget = options.get("token_budget", 10**9)
    assert all(sum(row) <= budget or len(row) == 1 for row in sizes)
    if options == {"token_budget": 23}:
        assert max(map(len, sizes)) > 1


def test_kinds_of_input_and_output(encoder):
    expected = encoder.encode(SHORT)
    assert_near(encoder.encode(tuple(SHORT)), expected)
    assert_near(encoder.encode(np.array(SHORT)), expected)
    tensor = encoder.encode(SHORT, convert_to_tensor=True)
    assert torch.equal(tensor, torch.from_numpy(expected))
    assert not tensor.is_inference()  # the caller may train on it
    rows = encoder.encode(SHORT, convert_to_numpy=False)
    assert isinstance(rows, list)
    assert torch.equal(torch.stack(rows), tensor)
    assert encoder.encode(SHORT[0]).shape == (30,)
    assert encoder.encode(SHORT[0], convert_to_tensor=True).shape == (30,)
    assert encoder.encode([]).shape == (0, 30)
    assert encoder.encode([], convert_to_tensor=True).shape == (0, 30)
    lengths = np.linalg.norm(encoder.encode(SHORT, normalize_embeddings=True), axis=1)
    assert np.allclose(lengths, 1)


def test_wrong_input_is_named(encoder):
    with pytest.raises(TypeError, match=r"texts\[2\] is NoneType; give each text as a str"):
        encoder.encode(["a", "b", None])
    with pytest.raises(TypeError, match=r"texts\[0\] is list"):
        encoder.encode([["a", "b"]])
    with pytest.raises(TypeError, match=r"generator.*encode_stream"):
        encoder.encode(text for text in SHORT)
    with pytest.raises(TypeError, match="one str"):
        encoder.encode_stream("a")
    with pytest.raises(ValueError, match="batch_size is 0"):
        encoder.encode(SHORT, batch_size=0)
    with pytest.raises(ValueError, match="token_budget is -1"):
        encoder.encode_stream(SHORT, token_budget=-1)
    assert not tokenizer_threads()


def test_stream_is_lazy_and_ends_when_closed(encoder):
    read = 0

    def endless():
        nonlocal read
        for text in itertools.cycle(SHORT):
            read += 1
            yield text

    stream = encoder.encode_stream(endless(), batch_size=5)
    found = torch.stack(list(itertools.islice(stream, 1000)))
    assert torch.allclose(found[:4], encoder.encode(SHORT, convert_to_tensor=True), atol=1e-6)
    assert torch.allclose(found[996:], found[:4], atol=1e-6)
    assert not torch.is_inference_mode_enabled()
    ahead = (batching.CHUNKS_AHEAD + 1) * batching.CHUNK_TEXTS
    assert 1000 <= read <= 1000 + ahead
    assert len(tokenizer_threads()) == 1
    stream.close()
    assert not tokenizer_threads()


def test_stream_of_batches(encoder):
    parts = list(encoder.encode_stream(iter(SHORT * 3), batch_size=5, batches=True))
    assert [len(part) for part in parts] == [5, 5, 2]
    assert not any(part.is_inference() for part in parts)
    assert_near(torch.cat(parts).numpy(), encoder.encode(SHORT * 3))


def test_long_texts_make_small_chunks():
    chunks = batching._chunks("x" * (batching.CHUNK_CHARACTERS // 2) for _ in range(5))
    assert [len(chunk) for chunk in chunks] == [2, 2, 1]


class Stop(Exception):
    pass


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["texts", "_tokenize", "_vectors"])
def test_errors_surface_and_leave_no_thread(encoder, monkeypatch, place, error):
    def fail(*arguments):
        raise error

    texts = iter(SHORT * 500)
    if place == "texts":
        texts = itertools.chain(SHORT * 500, (fail() for _ in range(1)))
    else:
        original, calls = getattr(TextEncoder, place), itertools.count()
        monkeypatch.setattr(
            TextEncoder, place, lambda *a: original(*a) if next(calls) < 2 else fail()
        )
    with pytest.raises(error):
        for _ in encoder.encode_stream(texts, batch_size=100):
            pass
    assert not tokenizer_threads()


def test_the_given_tokenizer_is_left_as_it_was(tiny):
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(tiny)
    tokenizer.backend_tokenizer.enable_padding(length=17)
    tokenizer.backend_tokenizer.enable_truncation(13)
    before = tokenizer.backend_tokenizer.to_str()
    encoder = TextEncoder(_SentenceBert.from_pretrained(tiny), tokenizer, max_length=6)
    long = encoder.encode(LONG)
    assert_near(long, encoder.encode("the river rose and"))
    assert tokenizer.backend_tokenizer.to_str() == before


def test_progress_is_shown_on_a_terminal_only(encoder, monkeypatch, capsys):
    # rich keeps the environment of its import, and other libraries replace `os.environ` later.
    environment = Console._environ
    monkeypatch.setitem(environment, "TTY_COMPATIBLE", "0")
    encoder.encode(SHORT, show_progress_bar=True)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setitem(environment, "TTY_COMPATIBLE", "1")
    encoder.encode(SHORT, show_progress_bar=True)
    shown = capsys.readouterr()
    assert "4 texts" in shown.err
    assert shown.out == ""
    encoder.encode(SHORT)
    assert capsys.readouterr() == ("", "")


# --- loading ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16", torch.float16, "int8"])
def test_weights_are_prepared_for_the_dtype(tiny, monkeypatch, dtype):
    """A model that is prepared is converted then; any other is loaded in the dtype."""
    calls = []

    def prepare(self, dtype=None):
        calls.append((self.dtype, dtype))
        return self

    monkeypatch.setattr(hf_bert_impl.BertPreTrainedModel, "prepare_for_inference", prepare)
    TextEncoder.from_pretrained(tiny, dtype=dtype)
    assert calls == [(torch.float32, dtype)]
    if dtype != "int8":
        encoder = TextEncoder.from_pretrained(tiny, dtype=dtype, prepare=False)
        assert len(calls) == 1
        assert str(encoder.model.dtype).endswith(str(dtype or "float32"))


@pytest.mark.parametrize(("claimed", "words"), [(9, "gave 3 texts"), (2, "gave more texts")])
def test_a_length_that_is_not_that_of_the_texts(encoder, claimed, words):
    """Rows that no text filled would hold arbitrary numbers, so this is an error."""

    class Texts(list):
        def __len__(self):
            return claimed

    with pytest.raises(ValueError, match=rf"{words}; expected {claimed}, .*len\(texts\); .*stream"):
        encoder.encode(Texts(SHORT[:3]))


def test_wrong_arguments(tiny, encoder):
    with pytest.raises(ValueError, match=r"'float8'; expected one of float32, bfloat16, .*int8"):
        TextEncoder.from_pretrained(tiny, dtype="float8")
    with pytest.raises(ValueError, match="expected one of"):
        TextEncoder.from_pretrained(tiny, dtype=torch.int32)
    with pytest.raises(ValueError, match="leave prepare=True"):
        TextEncoder.from_pretrained(tiny, dtype="int8", prepare=False)
    for length in (2, POSITIONS + 1):
        with pytest.raises(
            ValueError, match=f"max_length is {length}; expected 3 to 31, for which"
        ):
            TextEncoder.from_pretrained(tiny, max_length=length)
    with pytest.raises(ValueError, match=r"no prompt .x.; expected one .*document"):
        TextEncoder(encoder.model, encoder.tokenizer, default_prompt_name="x")
    with pytest.raises(ValueError, match="pooling mode"):
        TextEncoder(encoder.model, encoder.tokenizer, pooling="median")
    with pytest.raises(TypeError, match=r"give an hf_bert_impl\.BertModel"):
        TextEncoder(torch.nn.Linear(2, 3), encoder.tokenizer)
