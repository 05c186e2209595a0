"""`register` puts our classes behind the Auto classes, and `unregister` takes them back."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto import configuration_auto, modeling_auto, tokenization_auto

import hf_bert_impl
from hf_bert_impl.auto import MODEL_CLASSES
from hf_bert_impl.model.configuration_bert import EXTENDED_MODEL_TYPE, BertConfig
from hf_bert_impl.tokenization_bert import BertTokenizer
from tests.support.checkpoints import WORDS, save_checkpoint, tiny_config

VOCABULARY = {word: number for number, word in enumerate(WORDS)}


@pytest.fixture(autouse=True)
def registries_are_left_as_found() -> Iterator[None]:
    before = registries()
    yield
    hf_bert_impl.unregister()
    assert registries() == before


def registries() -> dict[str, dict]:
    """A copy of everything that a registration can touch."""
    found = {
        "configs": configuration_auto.CONFIG_MAPPING._extra_content,
        "tokenizers": tokenization_auto.TOKENIZER_MAPPING._extra_content,
        "tokenizer names": tokenization_auto.TOKENIZER_MAPPING_NAMES,
        "tokenizer classes": tokenization_auto.REGISTERED_TOKENIZER_CLASSES,
        "tokenizer aliases": tokenization_auto.REGISTERED_FAST_ALIASES,
        "pipelines": transformers.pipelines.PIPELINE_REGISTRY.supported_tasks,
        "removed pipelines": getattr(transformers.pipelines, "REMOVED_TASKS", {}),
    }
    for name in dir(modeling_auto):
        mapping = name.startswith("AutoModel") and getattr(modeling_auto, name)._model_mapping
        if mapping:
            found[name] = mapping._extra_content
    return {name: dict(registry) for name, registry in found.items()}


# Registration


@pytest.mark.parametrize("auto_name", sorted(MODEL_CLASSES))
def test_auto_models_load_ours(registered, tmp_path, auto_name):
    """From a stock checkpoint, and from one that stock would compute wrongly."""
    auto, name = getattr(transformers, auto_name), MODEL_CLASSES[auto_name]
    kind, decoder = getattr(hf_bert_impl, name), name == "BertLMHeadModel"
    folder = save_checkpoint(tmp_path / "stock", name, library=transformers, is_decoder=decoder)
    model, stock = auto.from_pretrained(folder), getattr(transformers, name).from_pretrained(folder)
    assert type(model) is type(auto.from_config(tiny_config())) is kind
    assert type(auto.from_config(tiny_config(transformers))) is type(stock)
    ids = torch.tensor([[2, 5, 6, 7, 3]])
    ids = ids[None] if name == "BertForMultipleChoice" else ids
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(ids)[0], stock.eval()(ids)[0])
    fields = {"position_embedding_type": "relative_key", "is_decoder": decoder}
    folder = save_checkpoint(tmp_path / "ours", name, **fields)
    loaded, info = auto.from_pretrained(folder, output_loading_info=True)
    assert type(loaded) is kind and loaded.config.position_embedding_type == "relative_key"
    assert not info["missing_keys"] and not info["unexpected_keys"]


@pytest.mark.parametrize("name", ["BertTokenizer", "BertTokenizerFast", None, "no file"])
@pytest.mark.parametrize("file", ["vocab.txt", "tokenizer.json"])
def test_auto_tokenizer(registered, tmp_path, name, file):
    model_type = "bert" if file == "vocab.txt" else EXTENDED_MODEL_TYPE
    BertTokenizer(VOCABULARY).save_pretrained(tmp_path)
    (tmp_path / ("tokenizer.json" if file == "vocab.txt" else "vocab.txt")).unlink()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({"tokenizer_class": name} if name else {}))
    if name == "no file":
        settings.unlink()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert type(tokenizer) is BertTokenizer
    assert tokenizer.tokenize("The river, unseen") == ["the", "river", ",", "[UNK]"]


# Undoing it


@pytest.mark.slow
def test_a_fresh_process():
    # Other tests have imported and registered in this process.
    program = """
# Importing the package registers nothing.
import sys, hf_bert_impl, hf_bert_impl.auto, hf_bert_impl.model.modeling_bert, transformers
from tests.test_auto import registries
empty = registries()
assert not any(empty[name] for name in ("configs", "tokenizers", "tokenizer classes", "AutoModel"))
assert "question-answering" not in transformers.pipelines.get_supported_tasks()
hf_bert_impl.unregister()
assert registries() == empty
# Where it did, stock classes can be imported: transformers completes their docstrings.
hf_bert_impl.register()
assert "transformers.models.bert.modeling_bert" not in sys.modules
from transformers.models.bert import modeling_bert
"""
    command, root = [sys.executable, "-c", program], Path(__file__).parents[1]
    said = subprocess.check_output(command, stderr=subprocess.STDOUT, text=True, cwd=root)
    assert "ERROR" not in said


def test_calls_may_be_repeated_and_blocks_nest():
    start = registries()
    hf_bert_impl.unregister()
    with hf_bert_impl.registered():
        inside = registries()
        assert inside != start
        hf_bert_impl.register()
        with hf_bert_impl.registered():
            assert registries() == inside
            hf_bert_impl.unregister()
            assert registries() == start
        assert registries() == inside  # what was registered before the block stays
    with pytest.raises(KeyError, match="mine"), hf_bert_impl.registered():
        raise KeyError("mine")
    assert registries() == start


TheirConfig = type("TheirConfig", (transformers.BertConfig,), {})
TheirTokenizer = type("TheirTokenizer", (transformers.BertTokenizer,), {})


def test_what_a_third_party_registered_comes_back_and_stays(tmp_path, monkeypatch):
    BertTokenizer(VOCABULARY).save_pretrained(tmp_path)
    tasks = transformers.pipelines.PIPELINE_REGISTRY.supported_tasks
    theirs = {"impl": object, "pt": (), "type": "text"}
    for registry, name, value in (
        (configuration_auto.CONFIG_MAPPING._extra_content, "bert", TheirConfig),
        (tokenization_auto.REGISTERED_TOKENIZER_CLASSES, "BertTokenizer", TheirTokenizer),
        (tokenization_auto.REGISTERED_FAST_ALIASES, "BertTokenizer", TheirTokenizer),
        (tasks, "question-answering", theirs),
    ):
        monkeypatch.setitem(registry, name, value)
    before = registries()
    with hf_bert_impl.registered():
        assert type(AutoConfig.for_model("bert")) is BertConfig
        assert type(AutoTokenizer.from_pretrained(tmp_path)) is BertTokenizer
        _, task, _ = transformers.pipelines.check_task("question-answering")
        assert task["impl"] is hf_bert_impl.QuestionAnsweringPipeline
    assert registries() == before
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is TheirTokenizer
    # What is registered later stays.
    registry = tokenization_auto.REGISTERED_TOKENIZER_CLASSES
    with hf_bert_impl.registered():
        registry["BertTokenizer"] = TheirConfig
    assert registry["BertTokenizer"] is TheirConfig
