"""TextEncoder: the vectors of sentence-transformers, in batches and in streams."""

import itertools
import json
import shutil
import threading

import numpy as np
import pytest
import torch
from rich.console import Console

import hf_bert_impl
from hf_bert_impl import TextEncoder
from hf_bert_impl.inference import batching
from hf_bert_impl.inference.text_encoder import _SentenceBert
from hf_bert_impl.model.cpu_kernels import why_no_kernels
from tests.checkpoints import save_checkpoint

REASON = "compares with sentence-transformers: pip install 'hf_bert_impl[demo]'"
TOLERANCE = 1e-5
POSITIONS = 31
SHORT = ["nice to meet you", "", "the river rose over night, and you.", "a"]
LONG = " ".join(["the river rose and"] * 12)  # more than the model has positions for
TEXTS = (
    "A man is playing a guitar on stage.",
    "",
    "Shares fell sharply after the report, and the stock market lost ground today; analysts had "
    "expected a gain of 2.5% (3.1% in the quarter before), they said on Tuesday.",
    "Zażółć gęślą jaźń — 東京は晴れ 🙂",
    "ok",
    "The committee met again in the spring. " * 60,
    "Where is the nearest station?",
    "line one\nline two\ttabbed",
)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A random BERT with a tokenizer, as a folder."""
    folder = tmp_path_factory.mktemp("tiny") / "bert"
    sizes = {"max_position_embeddings": POSITIONS, "initializer_range": 0.4}
    return save_checkpoint(folder, "BertModel", **sizes)


@pytest.fixture(scope="session")
def encoder(tiny):
    return TextEncoder.from_pretrained(tiny, device="cpu")


@pytest.fixture
def save_sentence_model(tiny, tmp_path):
    """Save a model by sentence-transformers itself; gives its folder and its vectors."""
    library = pytest.importorskip("sentence_transformers", reason=REASON)
    modules = pytest.importorskip("sentence_transformers.models", reason=REASON)

    def save(make=lambda m: [m.Pooling(30)], texts=(*SHORT, LONG), transformer=None, **options):
        first = modules.Transformer(str(tiny), **(transformer or {}))
        torch.manual_seed(1)  # for the weights of Dense modules
        model = library.SentenceTransformer(
            modules=[first, *make(modules)], device="cpu", **options
        )
        folder = tmp_path / "sentence_model"
        model.save_pretrained(str(folder), create_model_card=False)
        return folder, lambda **given: model.encode(list(texts), **given)

    return save


def encode(folder, texts=(*SHORT, LONG), **options):
    return TextEncoder.from_pretrained(folder, device="cpu").encode(list(texts), **options)


def assert_near(found, expected):
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < TOLERANCE


def edit(file, **changes):
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def tokenizer_threads():
    return [t for t in threading.enumerate() if t.name.startswith("hf_bert_impl-tokenizer")]


# --- the same vectors as sentence-transformers -----------------------------------------------


def test_real_model_equals_sentence_transformers(minilm_path):
    library = pytest.importorskip("sentence_transformers", reason=REASON)
    expected = library.SentenceTransformer(str(minilm_path), device="cpu").encode(list(TEXTS))
    encoder = TextEncoder.from_pretrained(minilm_path, dtype="float32", device="cpu")
    assert encoder.max_length == 256
    assert encoder.dimension == 384
    assert_near(encoder.encode(TEXTS), expected)
    assert_near(encoder.encode(TEXTS, token_budget=50), expected)
    assert_near(encoder.encode(TEXTS[2]), expected[2])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", torch.bfloat16, "int8"])
def test_lower_precision_stays_near(minilm_path, dtype):
    exact = TextEncoder.from_pretrained(minilm_path, device="cpu")
    low = TextEncoder.from_pretrained(minilm_path, dtype=dtype, device="cpu")
    # One text at a time, because float16 weights beside float32 states serve few tokens only.
    expected, found = exact.encode(TEXTS, batch_size=1), low.encode(TEXTS, batch_size=1)
    assert found.dtype == np.float32
    kind = getattr(torch, str(dtype).removeprefix("torch."))
    computes_in_float32 = why_no_kernels(kind) is not None
    assert np.array_equal(found, expected) == computes_in_float32
    assert (found * expected).sum(axis=1).min() > 0.98  # cosines: both have length 1


@pytest.mark.parametrize(
    "mode",
    [
        *("cls", "mean", "max", "mean_sqrt_len_tokens", "lasttoken", "weightedmean"),
        ("cls", "max"),
        ("weightedmean", "mean", "lasttoken"),
    ],
    ids=str,
)
@pytest.mark.parametrize("include_prompt", [True, False])
def test_pooling_modes(save_sentence_model, mode, include_prompt):
    folder, expected = save_sentence_model(
        lambda m: [m.Pooling(30, pooling_mode=mode, include_prompt=include_prompt)]
    )
    assert_near(encode(folder), expected())
    assert_near(encode(folder, prompt="you and "), expected(prompt="you and "))


def test_pooling_config_of_older_releases(save_sentence_model):
    folder, expected = save_sentence_model(lambda m: [m.Pooling(30, pooling_mode=("max", "mean"))])
    file = folder / "1_Pooling" / "config.json"
    switches = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}
    edit(file, pooling_mode=None, pooling_mode_cls_token=False, **switches)
    assert_near(encode(folder), expected())


def dense_modules(m):
    return [
        m.Pooling(30),
        m.Dense(30, 7, activation_function=torch.nn.GELU()),
        m.LayerNorm(7),
        m.Dense(7, 7, bias=False, use_residual=True),
        m.Dense(7, 11, activation_function=None, use_residual=True),
        m.Dropout(0.5),
        m.Normalize(),
    ]


def test_modules_after_the_pooling(save_sentence_model):
    folder, expected = save_sentence_model(dense_modules)
    encoder = TextEncoder.from_pretrained(folder, device="cpu")
    assert encoder.dimension == 11
    assert_near(encoder.encode([*SHORT, LONG]), expected())
    assert encoder.encode([]).shape == (0, 11)


def test_weights_of_modules_as_pickle(save_sentence_model):
    folder, expected = save_sentence_model(lambda m: [m.Pooling(30), m.Dense(30, 7)])
    file = folder / "2_Dense" / "model.safetensors"
    from safetensors.torch import load_file

    torch.save(load_file(file), file.with_name("pytorch_model.bin"))
    file.unlink()
    assert_near(encode(folder), expected())
    file.with_name("pytorch_model.bin").unlink()
    with pytest.raises(OSError, match=r"2_Dense of .* has no weights"):
        encode(folder)


def test_prompts(save_sentence_model):
    folder, expected = save_sentence_model(
        prompts={"query": "you ", "passage": "the river "}, default_prompt_name="query"
    )
    assert_near(encode(folder), expected())
    assert not np.array_equal(encode(folder), encode(folder, prompt=""))
    for options in ({"prompt_name": "passage"}, {"prompt": ""}, {"prompt": "a "}):
        assert_near(encode(folder, **options), expected(**options))
    with pytest.raises(ValueError, match=r"no prompt 'nosuch'; expected one that .*'passage'"):
        encode(folder, prompt_name="nosuch")


def test_length_case_and_fewer_numbers(save_sentence_model):
    texts = ("NICE to Meet You", LONG)
    folder, expected = save_sentence_model(
        texts=texts,
        transformer={"max_seq_length": 9, "do_lower_case": True},
        truncate_dim=8,
    )
    edit(folder / "sentence_bert_config.json", max_seq_length=9, do_lower_case=True)
    encoder = TextEncoder.from_pretrained(folder, device="cpu")
    assert encoder.max_length == 9
    assert_near(encoder.encode(texts), expected())
    assert encoder.dimension == 8
    assert_near(encoder.encode(texts[:1]), encoder.encode(["nice to meet you"]))
    normed = encoder.encode(texts, normalize_embeddings=True)
    assert_near(normed, expected(normalize_embeddings=True))


def test_lower_case_before_a_cased_tokenizer(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "cased")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    model = _SentenceBert.from_pretrained(folder)
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder)
    cased = TextEncoder(model, tokenizer)
    lowered = TextEncoder(model, tokenizer, do_lower_case=True)
    assert_near(lowered.encode("NICE to Meet"), cased.encode("nice to meet"))
    assert not np.allclose(cased.encode("NICE to Meet"), cased.encode("nice to meet"))


def test_layout_of_the_first_releases(save_sentence_model):
    folder, expected = save_sentence_model()
    below = folder / "0_Transformer"
    below.mkdir()
    for file in list(folder.iterdir()):
        if file.is_file() and file.name not in (
            "modules.json",
            "config_sentence_transformers.json",
        ):
            file.rename(below / file.name)
    listed = json.loads((folder / "modules.json").read_text())
    listed[0] |= {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}
    (folder / "modules.json").write_text(json.dumps(listed))
    assert_near(encode(folder), expected())


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
    assert_near(encode(folder), encoder.encode([*SHORT, LONG]))
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
    with pytest.raises(ValueError, match=r"no prompt 'x'; expected one .*none"):
        TextEncoder(encoder.model, encoder.tokenizer, default_prompt_name="x")
    with pytest.raises(ValueError, match="pooling mode"):
        TextEncoder(encoder.model, encoder.tokenizer, pooling="median")
    with pytest.raises(TypeError, match=r"give an hf_bert_impl\.BertModel"):
        TextEncoder(torch.nn.Linear(2, 3), encoder.tokenizer)


def test_wrong_folders(tiny, tmp_path):
    with pytest.raises(OSError, match="does not exist"):
        TextEncoder.from_pretrained(tmp_path / "none")
    folder = shutil.copytree(tiny, tmp_path / "other")
    edit(folder / "config.json", model_type="roberta")
    with pytest.raises(ValueError, match="model_type 'roberta'; expected a BERT"):
        TextEncoder.from_pretrained(folder)
    edit(folder / "config.json", model_type="bert", num_hidden_layers=3)
    with pytest.raises(ValueError, match="lacks 16 of BERT's weights"):
        TextEncoder.from_pretrained(folder)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        (
            "1_Pooling/config.json",
            {"pooling_mode": "median"},
            "1_Pooling .*'median'.*expected some of",
        ),
        ("2_Dense/config.json", {"activation_function": "os.system"}, "os.system.*expected one of"),
        ("2_Dense/config.json", {"activation_function": "torch.hub.load"}, "torch.hub.load"),
        ("2_Dense/config.json", {"out_features": 5}, "2_Dense .*size mismatch"),
        ("2_Dense/config.json", {"out_features": 10**12}, "2_Dense .*size mismatch"),
        ("3_LayerNorm/config.json", {"dimension": 10**12}, "3_LayerNorm .*size mismatch"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "token_embeddings"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"x": 1}}}, "processing_kw"),
    ],
)
def test_what_is_not_supported_is_named(save_sentence_model, file, changes, message):
    folder, _ = save_sentence_model(lambda m: [m.Pooling(30), m.Dense(30, 7), m.LayerNorm(7)])
    edit(folder / file, **changes)
    with pytest.raises(ValueError, match=message):
        encode(folder)


def test_damaged_list_of_modules(save_sentence_model):
    folder, _ = save_sentence_model()
    file = folder / "modules.json"
    listed = json.loads(file.read_text())
    for content, message in (
        ("[{", "modules.json is not JSON"),
        ('{"a": 1}', "holds a dict; expected a list of modules"),
        (json.dumps(listed[:1]), "begins with Transformer; expected Transformer, then Pooling"),
        (json.dumps([*listed, {"path": "", "type": "x.WordWeights"}]), "class is WordWeights"),
        (json.dumps([*listed, {"path": "../x", "type": "x.Normalize"}]), "outside its own folder"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=message):
            encode(folder)
