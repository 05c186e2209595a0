"""Models in sentence-transformers' layout give its own vectors; what is not supported is named."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch

from hf_bert_impl import TextEncoder
from hf_bert_impl.errors import InputError
from hf_bert_impl.model.cpu_kernels import why_no_kernels
from tests.inference.encoder_cases import LONG, SHORT, assert_near

REASON = "compares with sentence-transformers: pip install -e '.[demo]'"
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


def edit(file, **changes):
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


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


@pytest.mark.skipif(why_no_kernels(torch.float32) is not None, reason="torch lacks oneDNN")
@pytest.mark.parametrize("options", [{}, {"prepare": False}, {"dtype": "int8"}])
@pytest.mark.parametrize("mode", ["mean", "cls", "max", "weightedmean"])
def test_the_same_bits_whatever_texts_come_along(save_sentence_model, options, mode):
    folder, _ = save_sentence_model(
        lambda m: [m.Pooling(30, pooling_mode=mode), *dense_modules(m)[1:]]
    )
    encoder = TextEncoder.from_pretrained(folder, device="cpu", batch_invariant=True, **options)
    texts = [*SHORT, LONG, "nice", "the river", *SHORT[::-1]]
    alone = [encoder.encode(text) for text in texts]
    for sizes in ({"batch_size": 3}, {"batch_size": 11}, {"token_budget": 40}):
        assert np.array_equal(encoder.encode(texts, **sizes), alone)
    assert np.array_equal(encoder.encode(texts[::-1]), alone[::-1])


@pytest.mark.skipif(why_no_kernels(torch.float32) is not None, reason="torch lacks oneDNN")
def test_an_activation_that_is_not_batch_invariant(save_sentence_model):
    folder, _ = save_sentence_model(
        lambda m: [m.Pooling(30), m.Dense(30, 7, activation_function=torch.nn.Mish())]
    )
    with pytest.raises(InputError, match="activation Mish; expected one of Identity, Tanh"):
        TextEncoder.from_pretrained(folder, device="cpu", batch_invariant=True)


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


def test_wrong_folders(tiny, tmp_path):
    with pytest.raises(OSError, match="does not exist"):
        TextEncoder.from_pretrained(tmp_path / "none")
    folder = shutil.copytree(tiny, tmp_path / "other")
    edit(folder / "config.json", model_type="roberta")
    with pytest.raises(ValueError, match="model_type 'roberta'; expected a BERT"):
        TextEncoder.from_pretrained(folder)
    edit(folder / "config.json", model_type="bert", num_hidden_layers=3)
    with pytest.raises(ValueError, match="lacks 16 weights of BERT"):
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


@pytest.mark.parametrize("kind", ["CNN", "WordWeights"])
def test_modules_before_the_pooling(save_sentence_model, kind, tmp_path):
    """They are the library's own. Its CNN reads padding, so it gets each text alone."""
    folder, encode_by_library = save_sentence_model(token_modules(kind))
    expected = encode_by_library(batch_size=1)
    encoder = TextEncoder.from_pretrained(folder, device="cpu", dtype="float32")
    assert_near(encoder.encode([*SHORT, LONG]), expected)
    assert_near(encoder.encode([*SHORT, LONG], batch_size=2), expected)
    assert kind in repr(encoder) and encoder.dimension == 9
    tokens = encode_by_library(batch_size=1, output_value="token_embeddings")
    for one, other in zip(
        encoder.encode([*SHORT, LONG], output_value="token_embeddings"), tokens, strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    encoder.save_pretrained(tmp_path / "again")
    assert np.array_equal(encode(tmp_path / "again"), encode(folder))
    library = pytest.importorskip("sentence_transformers", reason=REASON)
    again = library.SentenceTransformer(str(tmp_path / "again"), device="cpu")
    assert_near(again.encode([*SHORT, LONG], batch_size=1), expected)
    with pytest.raises(ValueError, match="modules of sentence-transformers before its pooling"):
        TextEncoder.from_pretrained(folder, device="cpu", batch_invariant=True)


def test_modules_before_the_pooling_need_the_library(save_sentence_model, monkeypatch):
    folder, _ = save_sentence_model(token_modules("CNN"))
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ValueError, match=r"a model with CNN needs sentence_transformers.*\[demo"):
        encode(folder)


def test_damaged_list_of_modules(save_sentence_model):
    folder, _ = save_sentence_model()
    file = folder / "modules.json"
    listed = json.loads(file.read_text())
    for content, message in (
        ("[{", "modules.json is not JSON"),
        ('{"a": 1}', "holds a dict; expected a list of modules"),
        (
            json.dumps(listed[:1]),
            "begins with Transformer; expected Transformer, then Pooling, between",
        ),
        (json.dumps([*listed, {"path": "", "type": "x.WordWeights"}]), "class is WordWeights"),
        (json.dumps([*listed, {"path": "../x", "type": "x.Normalize"}]), "outside its own folder"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=message):
            encode(folder)
