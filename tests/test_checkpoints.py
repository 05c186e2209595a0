"""Checkpoints by name: what is wrong with one is one line, before anything is computed.

A command on each damaged file is in `tests/cli/snapshots`.
"""

import json
import pickle
import shutil

import pytest
import transformers

from hf_bert_impl import TextEncoder
from hf_bert_impl.checkpoints import class_name, open_checkpoint
from hf_bert_impl.errors import InputError
from hf_bert_impl.inference.loading import load_own_tokenizer, load_tokenizer, load_whole
from tests.support.damage import (
    DEEP,
    MODULES,
    PROMPTS,
    cut,
    fields,
    make_folder,
    save_usable,
    spoil,
    write,
)


@pytest.fixture(scope="module")
def usable(tmp_path_factory):
    """A model in the layout of sentence-transformers."""
    return save_usable(tmp_path_factory.mktemp("checkpoints") / "model", "BertModel")


#: Functions that open a checkpoint.
WAYS = {
    "model": lambda folder: load_whole(open_checkpoint(str(folder)), "base"),
    "encoder": lambda folder: TextEncoder(folder),
    "tokenizer": lambda folder: load_tokenizer(str(folder)),
}


# --- weights ---------------------------------------------------------------------------------


def pickled(content):
    """Weights in a .bin of these bytes."""

    def damage(folder):
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(content)

    return damage


class Code:
    """Unpickling it would run code."""

    def __reduce__(self):
        return pytest.fail, ("code of a pickle was run",)


INDEX = "model.safetensors.index.json"
#: The reader of the file, the damage, and words of the line.
KINDS = [
    ("model", pickled(pickle.dumps(Code())), "pytorch_model.bin cannot be"),
    ("model", make_folder("model.safetensors"), "no weights"),
    ("model", spoil, "NaN or infinite weights: 2 NaN among the 900 of"),
    ("model", cut, "9000 bytes"),
    (
        "encoder",
        write("modules.json", [MODULES[0] | {"path": None}]),
        "a module without 'type' or 'path'",
    ),
    ("encoder", write("2_Dense/model.safetensors", b"x" * 99), "could not be loaded (Safetens"),
    *(
        ("model", lambda folder, content=content: split(folder, content), words)
        for content, words in (
            ([], "index.json holds a list"),
            ({"metadata": [], "weight_map": {}}, "'metadata' is []"),
            ({"metadata": {}, "weight_map": {"a": "b.safetensors"}}, "no b.safetens"),
            ({"metadata": {}, "weight_map": {"a": "../b"}}, "'../b'"),
        )
    ),
    *(
        (way, fields(file, **{name: value}), words)
        for way, file, name, value, words in (
            ("model", "config.json", "num_labels", "x", "num_labels='x'"),
            ("model", "config.json", "hidden_act", ["gelu"], "gelu"),
            ("model", "config.json", "id2label", [1], "id2label=[1]"),
            ("model", "config.json", "hidden_size", 35, "does not fit the config"),
            ("tokenizer", "tokenizer.json", "model", 3, "no tokenizer ("),
            ("tokenizer", "tokenizer_config.json", "tokenizer_class", 3, "=3, not a text"),
            ("tokenizer", "tokenizer_config.json", "do_lower_case", "x", "not true or false"),
            ("encoder", "sentence_bert_config.json", "max_seq_length", "x", "max_seq_length='x'"),
            ("encoder", PROMPTS, "prompts", [1], "prompts=[1]"),
            ("encoder", PROMPTS, "truncate_dim", True, "=True, not a whole number from"),
            ("encoder", "1_Pooling/config.json", "pooling_mode", 3, "pooling_mod"),
            ("encoder", "2_Dense/config.json", "out_features", 10**12, "not be loaded"),
        )
    ),
    *(
        (way, write(file, content), "json")
        for way, file, content in (
            ("model", "config.json", "null"),
            ("model", "config.json", DEEP),
            ("tokenizer", "tokenizer.json", "null"),
            ("tokenizer", "tokenizer_config.json", DEEP),
            ("encoder", "modules.json", DEEP),
            ("encoder", PROMPTS, "null"),
            ("tokenizer", "tokenizer.json", '{"a": '),
            ("tokenizer", "tokenizer.json", r'{"a": "\ud800"}'),
            ("tokenizer", "tokenizer_config.json", "null"),
            ("tokenizer", "special_tokens_map.json", ""),
            ("encoder", "modules.json", b'{"\xff": 1}'),
            ("encoder", "sentence_bert_config.json", r'{"a": "\ud800"}'),
            ("encoder", PROMPTS, "{}\0"),
        )
    ),
]


def split(folder, index):
    """Puts an index before the weights."""
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    write(INDEX, index)(folder)


@pytest.mark.parametrize(("way", "damage", "words"), KINDS)
def test_damage(usable, tmp_path, way, damage, words):
    folder = shutil.copytree(usable, tmp_path / "model")
    damage(folder)
    with pytest.raises((ValueError, OSError)) as raised:
        WAYS[way](folder)
    line = " ".join(str(raised.value).split())
    assert words in line, line
    assert len(line) < 900


# --- names -----------------------------------------------------------------------------------


def test_a_name_that_the_hub_does_not_have(monkeypatch):
    def fail(name, file):
        raise OSError(f"{name} is not a repository.\nSign in. There is more advice.")

    monkeypatch.setattr(transformers.utils, "cached_file", fail)
    words = r"^no/such is not .* from the hub \(no/such is not a repository\)\. Check the name"
    with pytest.raises(InputError, match=words):
        open_checkpoint("no/such")


def test_what_is_opened(save_tiny, monkeypatch):
    folder = save_tiny("BertForQuestionAnswering")
    monkeypatch.setenv("HOME", str(folder.parent))
    found = open_checkpoint(f"~/{folder.name}")
    assert (found.name, found.folder) == (f"~/{folder.name}", folder)
    assert found.architecture == class_name(found) == "BertForQuestionAnswering"
    assert class_name(found, "base") == "BertModel"
    assert found.config["num_attention_heads"] == 5


def test_models_that_are_no_bert(save_tiny):
    folder = save_tiny()
    fields("config.json", model_type="gpt2")(folder)
    with pytest.raises(InputError, match=r"has model_type 'gpt2'. Supported: bert"):
        open_checkpoint(str(folder))
    fields("config.json", model_type="bert", architectures=["MyBert"])(folder)
    with pytest.raises(InputError, match=r"the architecture 'MyBert'\. Choose a `head`"):
        class_name(open_checkpoint(str(folder)))
    assert class_name(open_checkpoint(str(folder)), "masked-lm") == "BertForMaskedLM"
    # The first repositories name neither.
    config = json.loads((folder / "config.json").read_text())
    kept = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
    write("config.json", kept)(folder)
    assert class_name(open_checkpoint(str(folder))) == "BertModel"


# --- what is missing -------------------------------------------------------------------------


def test_a_base_model_may_lack_its_pooler(save_tiny):
    model, left_out = load_whole(open_checkpoint(str(save_tiny("BertForMaskedLM"))), "base")
    assert model.pooler is None and not model.training
    assert left_out and all(name.startswith("cls.") for name in left_out)


def test_a_folder_without_tokenizer(save_tiny):
    assert load_own_tokenizer(str(save_tiny(tokenizer=False))) is None
