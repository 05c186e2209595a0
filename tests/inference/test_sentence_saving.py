"""Saved encoders are loaded by this package and by sentence-transformers, with the same vectors."""

import json
import os
import warnings

import numpy as np
import pytest
import torch

from hf_bert_impl import TextEncoder
from hf_bert_impl.errors import InputError
from hf_bert_impl.inference.pooling import Dense, LayerNorm, Normalize, Pooling
from hf_bert_impl.inference.sentence_folder import copy_sentence_modules
from tests.inference.encoder_cases import TEXTS, assert_near, names, parts

CALLS = ({}, {"prompt_name": "query"}, {"normalize_embeddings": True})


def some_modules():
    torch.manual_seed(2)
    return [
        Dense({"in_features": 30, "out_features": 7, "use_residual": True}),
        LayerNorm({"dimension": 7}),
        Dense({"in_features": 7, "out_features": 11, "bias": False}),
        Normalize(),
    ]


@pytest.fixture(
    params=[
        {},
        {"pooling": "cls", "modules": some_modules()},
        {"pooling": ("mean", "cls", "lasttoken")},  # an order that the switches do not have
        {"pooling": Pooling("mean", include_prompt=False), "prompts": {"query": "you "}},
        {"max_length": 6, "do_lower_case": True, "truncate_dim": 8},
        {"prompts": {"passage": "the river "}, "default_prompt_name": "passage"},
        {"similarity_fn_name": "dot", "modules": [Normalize()]},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def saved(request, tiny, tmp_path):
    """An encoder and the folder that it was saved to."""
    encoder = TextEncoder(*parts(tiny), **request.param)
    encoder.save_pretrained(tmp_path / "saved")
    return encoder, tmp_path / "saved"


def test_a_saved_encoder_is_the_same(saved):
    encoder, folder = saved
    again = TextEncoder.from_pretrained(folder, device="cpu", prepare=False)
    for name in ("prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name"):
        assert getattr(again, name) == getattr(encoder, name)
    assert (again.max_length, again.do_lower_case) == (encoder.max_length, encoder.do_lower_case)
    for call in CALLS:
        assert np.array_equal(again.encode(TEXTS, **call), encoder.encode(TEXTS, **call))


@pytest.mark.ecosystem
def test_a_saved_encoder_is_the_same_to_sentence_transformers(saved, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    encoder, folder = saved
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stock = library.SentenceTransformer(str(folder), device="cpu")
    for call in CALLS:
        assert_near(encoder.encode(TEXTS, **call), stock.encode(TEXTS, **call))
    for name in ("similarity_fn_name", "max_seq_length", "prompts"):
        assert getattr(stock, name) == getattr(encoder, name)
    assert stock.get_embedding_dimension() == encoder.dimension
    # And what stock makes of it is loaded here again.
    stock.save_pretrained(str(tmp_path / "stock"), create_model_card=False)
    again = TextEncoder.from_pretrained(tmp_path / "stock", device="cpu")
    assert_near(again.encode(TEXTS), encoder.encode(TEXTS))


def test_saved_settings_give_way_to_those_of_the_caller(tiny, tmp_path):
    settings = {"prompts": {"query": "you ", "other": "and "}, "default_prompt_name": "other"}
    TextEncoder(*parts(tiny), **settings, truncate_dim=9).save_pretrained(tmp_path / "saved")
    settings = {"prompts": {"query": "nice "}, "default_prompt_name": "query", "truncate_dim": 11}
    again = TextEncoder.from_pretrained(tmp_path / "saved", **settings, similarity_fn_name="dot")
    assert again.prompts == {"query": "nice ", "document": "", "other": "and "}
    assert (again.default_prompt_name, again.dimension) == ("query", 11)
    assert again.similarity_fn_name == "dot"


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": Pooling.named("first-last-average")}, "averages the first and the last layer"),
        ({"modules": [torch.nn.Linear(30, 4)]}, "a module is a Linear; expected Dense, LayerNorm"),
    ],
)
def test_what_stock_has_no_module_for(tiny, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        TextEncoder(*parts(tiny), **options).save_pretrained(tmp_path / "saved")
    assert not os.listdir(tmp_path)


# --- copies of modules ---------------------------------------------------------------------------


def modules(*paths):
    return json.dumps([{"type": f"x.Kind{n}", "path": path} for n, path in enumerate(paths)])


@pytest.fixture
def source(tmp_path):
    source = tmp_path / "source"
    for path in (source / "1_Pooling", source / "heads/2_Dense", source / ".git"):
        path.mkdir(parents=True)
        (path / "config.json").write_text("{}")
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
    (source / "notes.txt").write_text("private")
    (tmp_path / "folder").mkdir()
    return source


def test_modules_come_along(source, tmp_path):
    folder = tmp_path / "folder"
    assert copy_sentence_modules(source, folder) == []
    paths = ("", "1_Pooling", "heads/2_Dense/", "3_Normalize", ".git")
    (source / "modules.json").write_text(modules(*paths))
    copied = copy_sentence_modules(source, folder)
    assert copied == ["modules.json", "sentence_bert_config.json", "1_Pooling/", "heads/2_Dense/"]
    # Neither other files nor hidden folders are copied.
    assert names(folder) == {
        *("modules.json", "sentence_bert_config.json"),
        *("1_Pooling/config.json", "heads/2_Dense/config.json"),
    }
    assert (folder / "modules.json").read_text() == modules(*paths)


def test_bert_moves_up(source, tmp_path):
    folder = tmp_path / "folder"
    (source / "0_Transformer").mkdir()
    (source / "sentence_bert_config.json").rename(
        source / "0_Transformer/sentence_bert_config.json"
    )
    (source / "modules.json").write_text(modules("0_Transformer", "1_Pooling"))
    copy_sentence_modules(source, folder)
    assert json.loads((folder / "modules.json").read_text()) == json.loads(modules("", "1_Pooling"))
    assert names(folder) == {"modules.json", "sentence_bert_config.json", "1_Pooling/config.json"}


@pytest.mark.parametrize("path", ["../folder", "/etc", "1_Pooling/../../folder"])
def test_what_lies_outside_is_refused(source, tmp_path, path):
    (source / "modules.json").write_text(modules("", path))
    with pytest.raises(ValueError, match="outside its own folder"):
        copy_sentence_modules(source, tmp_path / "folder")
    assert names(tmp_path / "folder") == set()
