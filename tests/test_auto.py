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
from hf_bert_impl.model import modeling_bert
from hf_bert_impl.model.configuration_bert import EXTENDED_MODEL_TYPE, BertConfig
from hf_bert_impl.model.tokenization_bert import BertTokenizer
from tests.checkpoints import save_checkpoint

AUTO_NAMES = sorted(MODEL_CLASSES)
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on a mat good bad is this about sport . ,"
VOCABULARY = {word: number for number, word in enumerate(WORDS.split())}
SIZES = {
    "vocab_size": len(WORDS.split()),
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 17,
}


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
        if name.startswith("AutoModel"):
            mapping = getattr(modeling_auto, name)._model_mapping
            if mapping is not None:
                found[name] = mapping._extra_content
    return {name: dict(registry) for name, registry in found.items()}


def model_class(auto_name: str) -> type:
    return getattr(modeling_bert, MODEL_CLASSES[auto_name])


def save_stock(folder: Path, head: str = "BertForMaskedLM", **fields) -> Path:
    """A checkpoint as transformers itself saves it, with a vocabulary."""
    words = tuple(WORDS.split())
    return save_checkpoint(folder, head, words=words, library=transformers, **SIZES, **fields)


def is_ours(thing: object) -> bool:
    return type(thing).__module__.startswith("hf_bert_impl.")


# What is registered


@pytest.mark.parametrize("auto_name", AUTO_NAMES)
def test_auto_models_load_ours_from_a_stock_checkpoint(registered, tmp_path, auto_name):
    auto = getattr(transformers, auto_name)
    stock_head = MODEL_CLASSES[auto_name]
    save_stock(tmp_path, stock_head, is_decoder=stock_head == "BertLMHeadModel")
    model = auto.from_pretrained(tmp_path)
    assert type(model) is type(auto.from_config(BertConfig(**SIZES))) is model_class(auto_name)
    assert type(model.config) is BertConfig
    assert not is_ours(auto.from_config(transformers.BertConfig(**SIZES)))
    stock = getattr(transformers, stock_head).from_pretrained(tmp_path)
    ids = torch.tensor([[2, 5, 6, 7, 3]])
    if stock_head == "BertForMultipleChoice":
        ids = ids.unsqueeze(1)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(ids)[0], stock.eval()(ids)[0])


@pytest.mark.parametrize("auto_name", AUTO_NAMES)
def test_models_that_stock_would_compute_wrongly_load(registered, tmp_path, auto_name):
    decoder = auto_name == "AutoModelForCausalLM"
    config = BertConfig(**SIZES, position_embedding_type="relative_key", is_decoder=decoder)
    model_class(auto_name)(config).save_pretrained(tmp_path)
    loaded, info = getattr(transformers, auto_name).from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert type(loaded) is model_class(auto_name)
    assert loaded.config.position_embedding_type == "relative_key"
    assert not info["missing_keys"] and not info["unexpected_keys"]


@pytest.mark.parametrize("name", ["BertTokenizer", "BertTokenizerFast", None, "no file"])
@pytest.mark.parametrize("model_type", ["bert", EXTENDED_MODEL_TYPE])
@pytest.mark.parametrize("file", ["vocab.txt", "tokenizer.json"])
def test_auto_tokenizer(registered, tmp_path, name, model_type, file):
    BertTokenizer(VOCABULARY).save_pretrained(tmp_path)
    (tmp_path / ("tokenizer.json" if file == "vocab.txt" else "vocab.txt")).unlink()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, **SIZES}))
    config_file = tmp_path / "tokenizer_config.json"
    if name == "no file":
        config_file.unlink()
    else:
        config_file.write_text(json.dumps({"tokenizer_class": name} if name else {}))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert type(tokenizer) is BertTokenizer
    assert tokenizer.tokenize("The cat, unseen") == ["the", "cat", ",", "[UNK]"]


def test_tokenizers_of_others(registered, tmp_path):
    """A stock one without a config is ours, that of another model is its own."""
    transformers.BertTokenizer(VOCABULARY, do_lower_case=True).save_pretrained(tmp_path / "bert")
    assert type(AutoTokenizer.from_pretrained(tmp_path / "bert")) is BertTokenizer
    words = {word: n for n, word in enumerate([*VOCABULARY, "<s>", "</s>", "<pad>", "<unk>"])}
    transformers.MPNetTokenizer({**words, "<mask>": 23}).save_pretrained(tmp_path / "mpnet")
    (tmp_path / "mpnet/config.json").write_text(json.dumps({"model_type": "mpnet"}))
    assert not is_ours(AutoTokenizer.from_pretrained(tmp_path / "mpnet"))


# Undoing it


@pytest.mark.slow
def test_a_fresh_process():
    # A process of its own, because other tests have imported and registered in this one.
    program = """
# Importing the package registers nothing.
import sys, hf_bert_impl, hf_bert_impl.auto, hf_bert_impl.model.modeling_bert, transformers
from transformers.models.auto import configuration_auto as c, tokenization_auto as t
assert not c.CONFIG_MAPPING._extra_content, c.CONFIG_MAPPING._extra_content
assert not t.REGISTERED_TOKENIZER_CLASSES and not t.REGISTERED_FAST_ALIASES
assert not t.TOKENIZER_MAPPING._extra_content and "hf_bert_impl" not in t.TOKENIZER_MAPPING_NAMES
assert not transformers.AutoModel._model_mapping._extra_content
assert "question-answering" not in transformers.pipelines.get_supported_tasks()
hf_bert_impl.unregister()
assert transformers.AutoConfig.for_model("bert").__class__ is transformers.BertConfig
# Where it did, stock classes can be imported: transformers completes their docstrings.
hf_bert_impl.register()
assert "transformers.models.bert.modeling_bert" not in sys.modules
from transformers.models.bert import modeling_bert
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stdout + done.stderr


def test_unregister_gives_stock_classes_back(tmp_path):
    save_stock(tmp_path)
    hf_bert_impl.register()
    assert is_ours(transformers.AutoModelForMaskedLM.from_pretrained(tmp_path))
    hf_bert_impl.unregister()
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert type(model) is transformers.BertForMaskedLM
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is transformers.BertTokenizer
    with pytest.raises(ValueError, match=EXTENDED_MODEL_TYPE):
        AutoConfig.for_model(EXTENDED_MODEL_TYPE)


def test_calls_may_be_repeated_and_blocks_nest():
    start = registries()
    hf_bert_impl.unregister()
    assert registries() == start
    with hf_bert_impl.registered():
        inside = registries()
        assert inside != start
        hf_bert_impl.register()
        with hf_bert_impl.registered():
            assert registries() == inside
        assert registries() == inside
        hf_bert_impl.unregister()
        assert registries() == start
    with pytest.raises(KeyError, match="mine"), hf_bert_impl.registered():
        raise KeyError("mine")
    assert registries() == start


def test_what_was_registered_before_the_block_stays():
    hf_bert_impl.register()
    before = registries()
    with hf_bert_impl.registered():
        hf_bert_impl.unregister()
        assert registries() != before
    assert registries() == before


class TheirConfig(transformers.BertConfig):
    pass


class TheirTokenizer(transformers.BertTokenizer):
    pass


def test_what_a_third_party_registered_before_comes_back(tmp_path):
    configs = configuration_auto.CONFIG_MAPPING._extra_content
    classes = tokenization_auto.REGISTERED_TOKENIZER_CLASSES
    aliases = tokenization_auto.REGISTERED_FAST_ALIASES
    BertTokenizer(VOCABULARY).save_pretrained(tmp_path)
    AutoConfig.register("bert", TheirConfig, exist_ok=True)
    classes["BertTokenizer"] = aliases["BertTokenizer"] = TheirTokenizer
    try:
        before = registries()
        with hf_bert_impl.registered():
            assert type(AutoConfig.for_model("bert")) is BertConfig
            assert type(AutoTokenizer.from_pretrained(tmp_path)) is BertTokenizer
        assert registries() == before
        assert type(AutoConfig.for_model("bert")) is TheirConfig
        assert type(AutoTokenizer.from_pretrained(tmp_path)) is TheirTokenizer
    finally:
        del configs["bert"], classes["BertTokenizer"], aliases["BertTokenizer"]


# Pipelines


def test_question_answering_is_a_task_again():
    """That of a third party comes back."""
    tasks = transformers.pipelines.PIPELINE_REGISTRY.supported_tasks
    with hf_bert_impl.registered():
        supported = transformers.pipelines.get_supported_tasks()
        assert {"question-answering", "document-question-answering"} <= {*supported}
        _, task, _ = transformers.pipelines.check_task("question-answering")
        assert task["impl"] is hf_bert_impl.QuestionAnsweringPipeline
    with pytest.raises(KeyError, match="question-answering"):
        transformers.pipelines.check_task("question-answering")
    tasks["question-answering"] = theirs = {"impl": object, "pt": (), "type": "text"}
    try:
        with hf_bert_impl.registered():
            assert tasks["question-answering"]["impl"] is hf_bert_impl.QuestionAnsweringPipeline
        assert tasks["question-answering"] is theirs
    finally:
        del tasks["question-answering"]
