"""Models in sentence-transformers' layout give its own vectors; what is not supported is named."""

import json
import sys

import numpy as np
import pytest
import safetensors.torch
import torch

from hf_bert_impl import TextEncoder
from hf_bert_impl.inference.pooling import Dense, LayerNorm, Normalize
from hf_bert_impl.model.kernels import why_no_kernels
from tests.inference.encoder_cases import LONG, TEXTS, assert_near, parts, plain_vectors

REAL_TEXTS = (
    "A man is playing a guitar on stage.",
    "",
    "Shares fell sharply after the report, and the stock market lost ground today; analysts had "
    "expected a gain of 2.5% (3.1% in the quarter before), they said on Tuesday.",
    "Zażółć gęślą jaźń — 東京は晴れ 🙂",
    "The committee met again in the spring. " * 60,
    "line one\nline two\ttabbed",
)


def encode(folder, texts=TEXTS, **options):
    return TextEncoder.from_pretrained(folder, device="cpu").encode(list(texts), **options)


def edit(file, **changes):
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def some_modules():
    torch.manual_seed(2)
    gelu = {"activation_function": "torch.nn.modules.activation.GELU"}
    return [
        Dense({"in_features": 30, "out_features": 7, **gelu}),
        LayerNorm({"dimension": 7}),
        Dense({"in_features": 7, "out_features": 7, "bias": False, "use_residual": True}),
        Normalize(),
    ]


# --- folders of this package, changed by hand -------------------------------------------------


@pytest.fixture
def saved(tiny, tmp_path):
    """Saves the tiny model with modules; gives the folder."""

    def save(**options):
        TextEncoder(*parts(tiny), **options).save_pretrained(tmp_path / "saved")
        return tmp_path / "saved"

    return save


def test_modules_after_the_pooling_are_torchs(saved, tiny):
    modules = some_modules()
    first, norm, second = modules[0].linear, modules[1].norm, modules[2].linear
    functional = torch.nn.functional
    with torch.no_grad():
        vectors = torch.from_numpy(plain_vectors(tiny, TEXTS))
        vectors = functional.gelu(vectors @ first.weight.T + first.bias)
        vectors = functional.layer_norm(vectors, (7,), norm.weight, norm.bias)
        vectors = vectors + (vectors @ second.weight.T).tanh()
        expected = vectors / vectors.norm(dim=1, keepdim=True)
    assert_near(encode(saved(modules=modules)), expected.numpy())


def test_layouts_of_older_releases(saved):
    folder = saved(pooling=("max", "mean"))
    expected = encode(folder)
    switches = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}
    pooling = folder / "1_Pooling" / "config.json"
    edit(pooling, pooling_mode=None, pooling_mode_cls_token=False, **switches)
    below = folder / "0_Transformer"
    below.mkdir()
    for file in list(folder.iterdir()):
        if file.is_file() and "modules" not in file.name and "transformers" not in file.name:
            file.rename(below / file.name)
    listed = json.loads((folder / "modules.json").read_text())
    listed[0] |= {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}
    (folder / "modules.json").write_text(json.dumps(listed))
    assert_near(encode(folder), expected)


def test_weights_of_modules_as_pickle(saved):
    folder = saved(modules=some_modules())
    expected = encode(folder)
    file = folder / "2_Dense" / "model.safetensors"
    pickled = file.with_name("pytorch_model.bin")
    torch.save(safetensors.torch.load_file(file), pickled)
    file.unlink()
    assert_near(encode(folder), expected)
    pickled.unlink()
    with pytest.raises(OSError, match=r"2_Dense of .* has no weights"):
        encode(folder)


@pytest.mark.skipif(why_no_kernels(torch.float32) is not None, reason="torch lacks oneDNN")
@pytest.mark.parametrize("options", [{}, {"prepare": False}, {"dtype": "int8"}])
@pytest.mark.parametrize("mode", ["mean", "cls", "max", "weightedmean"])
def test_the_same_bits_whatever_texts_come_along(saved, options, mode):
    folder = saved(pooling=mode, modules=some_modules())
    encoder = TextEncoder.from_pretrained(folder, device="cpu", batch_invariant=True, **options)
    texts = [*TEXTS, "nice", "the river", *TEXTS[::-1]]
    alone = [encoder.encode(text) for text in texts]
    for sizes in ({"batch_size": 3}, {"batch_size": 11}, {"token_budget": 40}):
        assert np.array_equal(encoder.encode(texts, **sizes), alone)
    assert np.array_equal(encoder.encode(texts[::-1]), alone[::-1])


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("1_Pooling", {"pooling_mode": "median"}, "1_Pooling .*'median'.*expected some of"),
        ("2_Dense", {"activation_function": "os.system"}, "os.system.*expected one of"),
        ("2_Dense", {"activation_function": "torch.hub.load"}, "torch.hub.load"),
        ("2_Dense", {"out_features": 10**12}, "2_Dense .*size mismatch"),
        ("3_LayerNorm", {"dimension": 10**12}, "3_LayerNorm .*size mismatch"),
        ("2_Dense", {"module_input_name": "token_embeddings"}, "token_embeddings"),
        ("", {"transformer_task": "fill-mask"}, "transformer_task"),
        ("", {"processing_kwargs": {"text": {"x": 1}}}, "processing_kw"),
    ],
)
def test_what_is_not_supported_is_named(saved, file, changes, message):
    folder = saved(modules=some_modules())
    edit(folder / file / ("config.json" if file else "sentence_bert_config.json"), **changes)
    with pytest.raises(ValueError, match=message):
        encode(folder)


def test_a_damaged_list_of_modules(saved):
    folder = saved()
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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_lower_precision_stays_near(minilm_path, dtype):
    exact = TextEncoder.from_pretrained(minilm_path, device="cpu")
    low = TextEncoder.from_pretrained(minilm_path, dtype=dtype, device="cpu")
    # One text at a time, because float16 weights beside float32 states serve few tokens only.
    expected, found = (each.encode(REAL_TEXTS, batch_size=1) for each in (exact, low))
    assert found.dtype == np.float32
    computes_in_float32 = why_no_kernels(getattr(torch, dtype)) is not None
    assert np.array_equal(found, expected) == computes_in_float32
    assert (found * expected).sum(axis=1).min() > 0.98  # cosines: both have length 1


# --- folders that sentence-transformers wrote -------------------------------------------------


@pytest.fixture
def save_stock(tiny, tmp_path):
    """Saves a model by sentence-transformers itself; gives its folder and its vectors."""
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")

    def save(make=lambda m: [m.Pooling(30)], transformer=None, **options):
        first = modules.Transformer(str(tiny), **(transformer or {}))
        torch.manual_seed(1)  # for the weights of Dense modules
        model = library.SentenceTransformer(
            modules=[first, *make(modules)], device="cpu", **options
        )
        model.save_pretrained(str(tmp_path / "stock"), create_model_card=False)
        return tmp_path / "stock", lambda texts=TEXTS, **given: model.encode(list(texts), **given)

    return save


@pytest.mark.ecosystem
def test_a_real_model_equals_sentence_transformers(minilm_path):
    library = pytest.importorskip("sentence_transformers")
    expected = library.SentenceTransformer(str(minilm_path), device="cpu").encode(list(REAL_TEXTS))
    encoder = TextEncoder.from_pretrained(minilm_path, dtype="float32", device="cpu")
    assert (encoder.max_length, encoder.dimension) == (256, 384)
    assert_near(encoder.encode(REAL_TEXTS, token_budget=50), expected)


def stock_modules(m):
    return [
        m.Pooling(30),
        m.Dense(30, 7, activation_function=torch.nn.GELU()),
        m.LayerNorm(7),
        m.Dense(7, 7, bias=False, use_residual=True),
        m.Dense(7, 11, activation_function=None, use_residual=True),
        m.Dropout(0.5),
        m.Normalize(),
    ]


def pooled(*mode, **options):
    return {"make": lambda m: [m.Pooling(30, pooling_mode=mode, **options)]}


@pytest.mark.ecosystem
@pytest.mark.parametrize(
    "saved_with",
    [
        *(pooled(mode) for mode in ("cls", "max", "mean_sqrt_len_tokens", "lasttoken")),
        pooled("weightedmean", include_prompt=False),
        pooled("cls", "max", include_prompt=False),
        pooled("weightedmean", "mean", "lasttoken"),
        {"make": stock_modules},
        {"prompts": {"query": "you ", "passage": "the river "}, "default_prompt_name": "query"},
        {"truncate_dim": 8},
    ],
)
def test_folders_of_stock_give_its_vectors(save_stock, saved_with):
    folder, expected = save_stock(**saved_with)
    calls = [{}, {"prompt": "you and "}, {"normalize_embeddings": True}]
    calls += [{"prompt_name": "passage"}] if "prompts" in saved_with else []
    for options in calls:
        assert_near(encode(folder, **options), expected(**options))


@pytest.mark.ecosystem
def test_length_and_case_of_stock(save_stock):
    settings = {"max_seq_length": 9, "do_lower_case": True}
    folder, expected = save_stock(transformer=settings)
    edit(folder / "sentence_bert_config.json", **settings)
    texts = ("NICE to Meet You", LONG)
    assert_near(encode(folder, texts), expected(texts))
    assert_near(encode(folder, texts[:1]), encode(folder, ["nice to meet you"]))


def token_modules(kind):
    """A CNN or weights of words between BERT and the pooling, a Dense after them."""

    def make(modules):
        if kind == "CNN":
            before, width = modules.CNN(30, out_channels=5, kernel_sizes=[1, 3]), 10
        else:
            # The library takes the ids of the tokenizer for places in this list.
            words = [f"word {number}" for number in range(2000)]
            weights = {word: 0.1 + number % 7 for number, word in enumerate(words)}
            before, width = modules.WordWeights(words, weights), 30
        return [before, modules.Pooling(width), modules.Dense(width, 9), modules.Normalize()]

    return make


@pytest.mark.ecosystem
@pytest.mark.parametrize("kind", ["CNN", "WordWeights"])
def test_modules_before_the_pooling(save_stock, kind, tmp_path, monkeypatch):
    """They are the library's own. Its CNN reads padding, so it gets each text alone."""
    folder, by_library = save_stock(token_modules(kind))
    expected = by_library(batch_size=1)
    encoder = TextEncoder.from_pretrained(folder, device="cpu", dtype="float32")
    assert_near(encoder.encode(TEXTS), expected)
    assert_near(encoder.encode(TEXTS, batch_size=2), expected)
    assert kind in repr(encoder) and encoder.dimension == 9
    encoder.save_pretrained(tmp_path / "again")
    library = pytest.importorskip("sentence_transformers")
    again = library.SentenceTransformer(str(tmp_path / "again"), device="cpu")
    assert_near(again.encode(TEXTS, batch_size=1), expected)
    with pytest.raises(ValueError, match="modules of sentence-transformers before its pooling"):
        TextEncoder.from_pretrained(folder, device="cpu", batch_invariant=True)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ValueError, match=rf"model with {kind} needs sentence_transformers.*\[demo"):
        encode(folder)
