"""Checkpoints by name: what is wrong with one is one line, before anything is computed.

Every way to damage a file is tried here. `tests/cli/test_commands.py` shows that each command that
reads the file comes by here.
"""

import io
import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig

from hf_bert_impl.checkpoints import (
    class_name,
    load_encoder,
    load_own_tokenizer,
    load_tokenizer,
    load_whole,
    open_checkpoint,
)
from hf_bert_impl.errors import InputError
from tests.damage import (
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


#: What opens a checkpoint; a kind of damage names those that read the damaged file.
WAYS = {
    "model": lambda folder: load_whole(open_checkpoint(str(folder)), "base"),
    "encoder": lambda folder: load_encoder(str(folder)),
    "tokenizer": lambda folder: load_tokenizer(open_checkpoint(str(folder))),
}
BERT, WORD_PIECES, SENTENCES = ("model", "encoder"), ("tokenizer", "encoder"), ("encoder",)


def refuse(way, folder, words):
    with pytest.raises((ValueError, OSError)) as raised:
        WAYS[way](folder)
    line = " ".join(str(raised.value).split())
    assert words in line, line
    assert len(line) < 900


# --- weights ---------------------------------------------------------------------------------


def pickled(content):
    """Weights in a .bin of these bytes."""

    def damage(folder):
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(content)

    return damage


def saved(value):
    """What torch.save writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def index(content=None, **changes):
    """Splits the weights, with this index or a good one with changes."""

    def damage(folder):
        shard = "model-00001-of-00001.safetensors"
        names = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").rename(folder / shard)
        good = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, shard)}
        table = {name: value for name, value in (good | changes).items() if value is not None}
        write("model.safetensors.index.json", table if content is None else content)(folder)

    return damage


class Code:
    """Unpickling it would run code."""

    def __reduce__(self):
        return pytest.fail, ("code of a pickle was run",)


#: Name to: what reads the file, the damage, and words of the line.
KINDS = {
    "bin of a pickle": (BERT, pickled(pickle.dumps(Code())), "pytorch_model.bin cannot be"),
    "bin of garbage": (BERT, pickled(b"garbage" * 99), "pytorch_model.bin cannot be read"),
    "bin of a list": (BERT, pickled(saved([1])), "no table of names and tensors"),
    "safetensors of garbage": (BERT, write("model.safetensors", b"x" * 99), "99 bytes"),
    "safetensors cut": (BERT, cut, "9000 bytes"),
    "safetensors a folder": (BERT, make_folder("model.safetensors"), "no weights"),
    "index a list": (BERT, index([]), "index.json holds a list"),
    "index metadata a list": (BERT, index(metadata=[]), "'metadata' is []"),
    "index of missing": (BERT, index(weight_map={"a": "b.safetensors"}), "lacks b.safetens"),
    "index of outside": (BERT, index(weight_map={"a": "../b"}), "'../b'"),
    "weights with NaN": (BERT, spoil, "no finite numbers: 2 NaN among the 900 of"),
    "modules without path": (
        SENTENCES,
        write("modules.json", [MODULES[0] | {"path": None}, *MODULES[1:]]),
        "no list of modules",
    ),
    "dense of garbage": (
        SENTENCES,
        write("2_Dense/model.safetensors", b"x" * 99),
        "could not be loaded (SafetensorError",
    ),
}
#: What reads the file, the file, wrong values of its fields, words of the line.
FIELDS = (
    (BERT, "config.json", {"hidden_size": 35}, "LayerNorm.bias"),
    (BERT, "config.json", {"num_labels": "x"}, "num_labels='x'"),
    (BERT, "config.json", {"id2label": [1]}, "id2label=[1]"),
    (BERT, "config.json", {"dtype": "nosuch"}, "dtype='nosuch'"),
    (BERT, "config.json", {"hidden_act": ["gelu"]}, "gelu"),
    (WORD_PIECES, "tokenizer.json", {"model": 3}, "no tokenizer ("),
    (WORD_PIECES, "tokenizer_config.json", {"tokenizer_class": 3}, "=3; expected a text"),
    (WORD_PIECES, "tokenizer_config.json", {"do_lower_case": "x"}, "='x'; expected true or false"),
    (WORD_PIECES, "tokenizer_config.json", {"model_max_length": "x"}, "='x'; expected a number"),
    (SENTENCES, "sentence_bert_config.json", {"max_seq_length": "x"}, "max_seq_length='x'"),
    (SENTENCES, PROMPTS, {"prompts": [1]}, "prompts=[1]"),
    *(
        (SENTENCES, PROMPTS, {"truncate_dim": value}, f"={value!r}; expected a whole number from")
        for value in ("x", 0, True)
    ),
    (SENTENCES, "1_Pooling/config.json", {"pooling_mode": 3}, "pooling_mod"),
    (SENTENCES, "2_Dense/config.json", {"in_features": 10**9, "out_features": 10**9}, "2_Dense"),
    (SENTENCES, "2_Dense/config.json", {"activation_function": 3}, "=3"),
)
KINDS |= {
    f"{file} {changes!a}": (ways, fields(file, **changes), words)
    for ways, file, changes, words in FIELDS
}
#: JSON files in which every text is read, then all of a checkpoint; and what reads them.
READ_WHOLE = dict.fromkeys(("tokenizer.json", "added_tokens.json"), WORD_PIECES) | dict.fromkeys(
    (
        *("modules.json", "sentence_bert_config.json", PROMPTS),
        *("1_Pooling/config.json", "2_Dense/config.json"),
    ),
    SENTENCES,
)
JSON_FILES = READ_WHOLE | {
    "config.json": BERT,
    "tokenizer_config.json": WORD_PIECES,
    "special_tokens_map.json": WORD_PIECES,
}
CONTENTS = {
    "deep": DEEP,
    "null": "null",
    "a number": "3",
    "cut": '{"a": ',
    "empty": "",
    "not UTF-8": b'{"\xff": 1}',
    "with NUL": "{}\0",
}
KINDS |= {
    f"{name} half a pair": (ways, write(name, r'{"a": "\ud800"}'), "json")
    for name, ways in READ_WHOLE.items()
}


@pytest.mark.parametrize("kind", KINDS)
def test_damage(usable, tmp_path, kind):
    ways, damage, words = KINDS[kind]
    folder = shutil.copytree(usable, tmp_path / "model")
    damage(folder)
    refuse(ways[0], folder, words)


def test_json_that_is_none(usable, tmp_path, subtests):
    """Every file with one of the contents, and every content in one of the files."""
    for number, (name, ways) in enumerate(JSON_FILES.items()):
        kind = list(CONTENTS)[number % len(CONTENTS)]
        with subtests.test(file=name, kind=kind):
            folder = shutil.copytree(usable, tmp_path / str(number))
            write(name, CONTENTS[kind])(folder)
            for way in ways:
                refuse(way, folder, "json")


# --- names -----------------------------------------------------------------------------------


def test_names_of_no_checkpoint(save_tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = save_tiny()
    (tmp_path / "empty").mkdir()
    for name, words in (
        (" ", "the model's name is empty"),
        ("./none", "there is no folder ./none; .*; check the path"),
        ("a/b/c", "there is no folder a/b/c"),
        ("~/none/of/these", "there is no folder ~/none/of/these"),
        (f"{good}/config.json", f"is a file; .*; give {good} instead"),
        ("empty", "no config.json"),
    ):
        with pytest.raises((ValueError, OSError), match=words):
            open_checkpoint(name)

    def fail(name):
        raise OSError(f"{name} is not a repository.\nSign in. There is more advice.")

    monkeypatch.setattr(PreTrainedConfig, "get_config_dict", fail)
    words = r"^no/such is neither .* from the hub \(no/such is not a repository\); .*check the name"
    with pytest.raises(InputError, match=words):
        open_checkpoint("no/such")


def test_what_is_opened(save_tiny, monkeypatch):
    folder = save_tiny("BertForQuestionAnswering")
    monkeypatch.setenv("HOME", str(folder.parent))
    found = open_checkpoint(f"~/{folder.name}")
    assert (found.name, found.path) == (f"~/{folder.name}", str(folder))
    assert found.folder == folder
    assert found.architecture == class_name(found) == "BertForQuestionAnswering"
    assert class_name(found, "base") == "BertModel"
    assert found.config["num_attention_heads"] == 5
    assert open_checkpoint(str(folder), with_tokenizer=True).config == found.config


def test_models_that_are_no_bert(save_tiny):
    folder = save_tiny()
    fields("config.json", model_type="gpt2")(folder)
    with pytest.raises(InputError, match="has model_type 'gpt2'; expected a BERT"):
        open_checkpoint(str(folder))
    fields("config.json", model_type="bert", architectures=["MyBert"])(folder)
    with pytest.raises(InputError, match=r"the architecture 'MyBert'; .* choose a `head` "):
        class_name(open_checkpoint(str(folder)))
    assert class_name(open_checkpoint(str(folder)), "masked-lm") == "BertForMaskedLM"
    with pytest.raises(InputError, match=r"'tail'; .*masked-lm"):
        class_name(open_checkpoint(str(folder)), "tail")
    # The first repositories name neither.
    config = json.loads((folder / "config.json").read_text())
    kept = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
    write("config.json", kept)(folder)
    assert class_name(open_checkpoint(str(folder))) == "BertModel"


# --- what is missing -------------------------------------------------------------------------


def test_random_weights_are_not_used(save_tiny):
    with pytest.raises(InputError, match=r"lacks \d weights of BertForMaskedLM \(cls\.predict"):
        load_whole(open_checkpoint(str(save_tiny("BertModel"))), "masked-lm")
    folder = save_tiny()
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "layer.1.attention" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    words = r"lacks .. weights of BertModel \(encoder\.layer\.1\.attention.*and \d+ more\)"
    with pytest.raises(InputError, match=words):
        load_whole(open_checkpoint(str(folder)), "base")


def test_a_base_model_may_lack_its_pooler(save_tiny):
    model, left_out = load_whole(open_checkpoint(str(save_tiny("BertForMaskedLM"))), "base")
    assert model.pooler is None and not model.training
    assert left_out and all(name.startswith("cls.") for name in left_out)


def test_a_folder_without_tokenizer(save_tiny):
    folder = str(save_tiny(tokenizer=False))
    assert load_own_tokenizer(open_checkpoint(folder)) is None
    for load in (load_tokenizer, lambda found: open_checkpoint(found.name, with_tokenizer=True)):
        with pytest.raises(InputError, match=r"has no tokenizer; .*vocab\.txt"):
            load(open_checkpoint(folder))
