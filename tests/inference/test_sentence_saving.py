"""Saved encoders are loaded by this package and by sentence-transformers, with the same vectors."""

import json
import os
import warnings

import numpy as np
import pytest
import torch

import hf_bert_impl
from hf_bert_impl import TextEncoder
from hf_bert_impl.errors import InputError
from hf_bert_impl.inference.pooling import MODES, Dense, LayerNorm, Normalize, Pooling
from tests.inference.encoder_cases import LONG, SHORT, assert_near, names

TEXTS = [*SHORT, LONG, "NICE to Meet"]


def parts(folder):
    model = hf_bert_impl.BertModel.from_pretrained(folder)
    return model, hf_bert_impl.BertTokenizer.from_pretrained(folder)


def some_modules():
    torch.manual_seed(2)
    gelu = {"activation_function": "torch.nn.modules.activation.GELU"}
    return [
        Dense({"in_features": 30, "out_features": 7, **gelu}),
        LayerNorm({"dimension": 7}),
        Dense({"in_features": 7, "out_features": 11, "bias": False, "use_residual": True}),
        Normalize(),
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pooling": "cls", "modules": some_modules()},
        {"pooling": ("cls", "mean")},
        {"pooling": ("mean", "cls", "lasttoken")},  # an order that the switches do not have
        {"pooling": Pooling("mean", include_prompt=False), "prompts": {"query": "you "}},
        {"max_length": 6, "do_lower_case": True, "truncate_dim": 8},
        {"prompts": {"passage": "the river "}, "default_prompt_name": "passage"},
        {"similarity_fn_name": "dot", "modules": [Normalize()]},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_a_saved_encoder_is_the_same_everywhere(tiny, tmp_path, options):
    encoder = TextEncoder(*parts(tiny), **options)
    folder = tmp_path / "saved"
    encoder.save_pretrained(folder)
    again = TextEncoder.from_pretrained(folder, device="cpu", prepare=False)
    for name in ("prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name"):
        assert getattr(again, name) == getattr(encoder, name)
    assert (again.max_length, again.do_lower_case) == (encoder.max_length, encoder.do_lower_case)
    calls = ({}, {"prompt_name": "query"}, {"normalize_embeddings": True})
    for call in calls:
        assert np.array_equal(again.encode(TEXTS, **call), encoder.encode(TEXTS, **call))

    library = pytest.importorskip("sentence_transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stock = library.SentenceTransformer(str(folder), device="cpu")
    for call in calls:
        assert_near(encoder.encode(TEXTS, **call), stock.encode(TEXTS, **call))
    assert (stock.similarity_fn_name, stock.max_seq_length, stock.prompts) == (
        encoder.similarity_fn_name,
        encoder.max_seq_length,
        encoder.prompts,
    )
    assert stock.get_embedding_dimension() == encoder.dimension
    # And what stock makes of it is loaded here again.
    stock.save_pretrained(str(tmp_path / "stock"), create_model_card=False)
    assert_near(
        TextEncoder.from_pretrained(tmp_path / "stock", device="cpu").encode(TEXTS),
        encoder.encode(TEXTS),
    )


def test_real_weights(minilm_path, tmp_path):
    encoder = TextEncoder.from_pretrained(minilm_path, device="cpu")
    encoder.save_pretrained(tmp_path / "saved")
    again = TextEncoder.from_pretrained(tmp_path / "saved", device="cpu")
    assert np.array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    assert again.max_length == 256 and not again.do_lower_case


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_prepared_encoders(tiny, tmp_path, dtype):
    """int8 keeps the weights of the model, and a narrower type is the model's."""
    encoder = TextEncoder.from_pretrained(tiny, dtype=dtype, device="cpu")
    encoder.save_pretrained(tmp_path / "saved")
    again = TextEncoder.from_pretrained(tmp_path / "saved", dtype=dtype, device="cpu")
    assert np.array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    assert again.model.dtype == encoder.model.dtype


def test_the_folder_is_a_plain_bert_with_its_modules(tiny, tmp_path):
    encoder = TextEncoder.from_pretrained(tiny, device="cpu")
    encoder.model.config.auto_map = {"AutoModel": "modeling_bert.BertModel"}
    encoder.tokenizer.model_max_length = 10**9
    encoder.save_pretrained(tmp_path / "saved")
    assert names(tmp_path / "saved") >= {
        *("config.json", "model.safetensors", "tokenizer_config.json", "modules.json"),
        *("config_sentence_transformers.json", "sentence_bert_config.json"),
        "1_Pooling/config.json",
    }
    config = json.loads((tmp_path / "saved/config.json").read_text())
    assert config["architectures"] == ["BertModel"] and "auto_map" not in config
    assert encoder.model.config.auto_map  # the encoder itself is as it was
    assert encoder.tokenizer.model_max_length == 10**9
    settings = json.loads((tmp_path / "saved/tokenizer_config.json").read_text())
    assert settings["model_max_length"] == encoder.max_length


def test_a_folder_with_files_is_kept(tiny, tmp_path):
    encoder = TextEncoder.from_pretrained(tiny, device="cpu")
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "2_Dense").mkdir()
    with pytest.raises(InputError, match=r"has files in it; .*overwrite=True"):
        encoder.save_pretrained(folder)
    assert names(folder) == {"notes.txt"}
    encoder.save_pretrained(folder, overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"
    assert np.array_equal(TextEncoder.from_pretrained(folder).encode(TEXTS), encoder.encode(TEXTS))
    again = TextEncoder.from_pretrained(folder, device="cpu")
    with pytest.raises(InputError, match="would replace its own source"):
        again.save_pretrained(folder, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["full"]


def test_nothing_is_left_of_what_fails(tiny, tmp_path, monkeypatch):
    encoder = TextEncoder.from_pretrained(tiny, device="cpu")

    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(encoder.tokenizer), "save_pretrained", fail)
    with pytest.raises(KeyboardInterrupt):
        encoder.save_pretrained(tmp_path / "saved")
    assert not os.listdir(tmp_path)


def test_what_stock_has_no_module_for(tiny, tmp_path):
    for options, message in (
        ({"pooling": Pooling.named("first-last-average")}, "averages the first and the last layer"),
        ({"modules": [torch.nn.Linear(30, 4)]}, "a module is a Linear; expected Dense, LayerNorm"),
    ):
        with pytest.raises(InputError, match=message):
            TextEncoder(*parts(tiny), **options).save_pretrained(tmp_path / "saved")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("modes", [("mean",), ("cls", "max"), ("max", "cls"), MODES, MODES[::-1]])
def test_configs_of_poolings_are_read_as_they_were(modes):
    for include_prompt in (True, False):
        pooling = Pooling(modes, include_prompt=include_prompt)
        written = pooling.to_config() | {"include_prompt": include_prompt}
        read = Pooling.from_config(written)
        assert (read.modes, read.include_prompt) == (modes, include_prompt)
