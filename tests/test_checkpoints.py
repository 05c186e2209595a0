"""Checkpoints by name: what is wrong with one is one line, before anything is computed.

A command on each damaged file is in `tests/cli/snapshots`.
"""

import json
import pickle
import re
import resource
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from hf_bert_impl import BertTokenizer, TextEncoder
from hf_bert_impl.checkpoints import class_name, open_checkpoint
from hf_bert_impl.errors import InputError
from hf_bert_impl.finite import check_finite, not_finite
from hf_bert_impl.inference.loading import (
    load_model,
    load_own_tokenizer,
    load_tokenizer,
    load_whole,
)
from tests.conversion.cases import Runs
from tests.model.cases import random_config, random_model
from tests.support.damage import DEEP, MODULES, PROMPTS, fields, save_usable, write


def refuses(error, said, call, *arguments, **options):
    """Hold that a call ends in one short line."""
    with pytest.raises(error, match=said) as caught:
        call(*arguments, **options)
    line = str(caught.value)
    assert "\n" not in line and len(line) < 900


#: Functions that open a checkpoint.
WAYS = {
    "model": lambda folder: load_whole(open_checkpoint(str(folder)), "base"),
    "encoder": lambda folder: TextEncoder(folder),
    "tokenizer": lambda folder: load_tokenizer(str(folder)),
}


# --- weights ---------------------------------------------------------------------------------


def pickled(folder):
    """Unpickling the weights would run code."""
    (folder / "model.safetensors").unlink()
    code = pickle.dumps(Runs(pytest.fail, "code of a pickle was run"))
    (folder / "pytorch_model.bin").write_bytes(code)


def spoil(folder):
    """Puts NaN in one tensor, and an infinity in another."""
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layer.1.attention.output.dense.weight"][3, 7:9] = torch.nan
    tensors["encoder.layer.1.output.dense.bias"][-1] = torch.inf
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


INDEX = "model.safetensors.index.json"
#: The reader of the file, the damage, and words of the line.
KINDS = [
    ("model", pickled, "pytorch_model.bin cannot be"),
    ("model", lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
    ("model", spoil, "NaN or infinite weights: 2 NaN among the 900 of"),
    ("encoder", write("modules.json", [MODULES[0] | {"path": None}]), "without 'type' or 'path'"),
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
        for way, file in (
            ("model", "config.json"),
            ("tokenizer", "tokenizer.json"),
            ("tokenizer", "tokenizer_config.json"),
            ("tokenizer", "special_tokens_map.json"),
            ("encoder", "modules.json"),
            ("encoder", "sentence_bert_config.json"),
            ("encoder", PROMPTS),
        )
        for content in ("null", DEEP)
    ),
    ("tokenizer", write("tokenizer.json", r'{"a": "\ud800"}'), "half a surrogate"),
    ("encoder", write("sentence_bert_config.json", r'{"a": "\ud800"}'), "half a surrogate"),
]


def split(folder, index):
    """Puts an index before the weights."""
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    write(INDEX, index)(folder)


@pytest.mark.parametrize(("way", "damage", "words"), KINDS)
def test_damage(tmp_path, way, damage, words):
    folder = save_usable(tmp_path / "model", "BertModel")
    damage(folder)
    refuses((ValueError, OSError), re.escape(words), WAYS[way], folder)


# --- sizes ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A classifier of three labels."""
    model = random_model("BertForSequenceClassification", random_config(1, num_labels=3))
    model.save_pretrained(tmp_path)
    return tmp_path


def load(folder, head="BertForSequenceClassification", **options):
    return load_model(open_checkpoint(str(folder)), head, **options)


def test_sizes_that_do_not_fit(folder):
    said = r"classifier.bias is \(3,\), the model has \(5,\)"
    refuses(ValueError, said, load, folder, num_labels=5)
    refuses(ValueError, "num_labels=3 does not fit", load, folder, "BertForQuestionAnswering")
    weights = load_file(folder / "model.safetensors")
    name = "bert.encoder.layer.0.output.dense.weight"
    weights[name] = weights[name][:, :-1].contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refuses(ValueError, f"{name} is", load, folder)


@pytest.fixture
def little_memory():
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, limits)


def test_a_config_too_large_takes_no_memory(folder, little_memory, minilm_path):
    shutil.copy(minilm_path / "vocab.txt", folder)
    config = json.loads((folder / "config.json").read_text()) | {"id2label": None, "label2id": None}
    for field, value in (
        ("num_hidden_layers", 100_000),
        *((f"{table}_size", 10**9) for table in ("hidden", "vocab", "type_vocab")),
        *((size, 10**9) for size in ("max_position_embeddings", "num_labels")),
        ("vocab_size", 10**30),
    ):
        write("config.json", config | {field: value})(folder)
        for call in (load, TextEncoder):
            said = rf"makes a model of \d+ numbers|{field}=.* is not valid"
            refuses(ValueError, said, call, folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_not_finite_wherever_it_is(dtype, value):
    """The largest numbers of a type are numbers, however many; tied weights are named once."""
    model = random_model("BertForMaskedLM", random_config(3, "BertForMaskedLM")).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.finfo(dtype).max)
    check_finite(model, "it")
    names = [name for name, _ in model.named_parameters()]
    for number, name in enumerate(names):
        with torch.no_grad():
            model.get_parameter(name).view(-1)[number % 3] = value
    assert list(not_finite(model)) == names
    what = "1 NaN" if value != value else "1 infinities"
    words = rf"{what} among the \d+ of {names[0]}, and {len(names) - 1} other"
    with pytest.raises(ValueError, match=words):
        check_finite(model, "it")


# --- names -----------------------------------------------------------------------------------


def test_names_that_are_nowhere(monkeypatch):
    def fail(name, file):
        raise OSError(f"{name} is not a repository.\nSign in. There is more advice.")

    for path in ("/no/model", "./model", "a/b/c", "a/"):
        for kind in (BertTokenizer, TextEncoder):
            said = f"^There is no folder {path}. Give a folder"
            refuses(OSError, said, kind.from_pretrained, path)
    monkeypatch.setattr(transformers.utils, "cached_file", fail)
    words = r"^no/such is not .* from the hub \(no/such is not a repository\)\. Check the name"
    refuses(InputError, words, open_checkpoint, "no/such")


def test_the_class_of_a_checkpoint(save_tiny, monkeypatch):
    folder = save_tiny()
    monkeypatch.setenv("HOME", str(folder.parent))
    found = open_checkpoint(f"~/{folder.name}")
    assert class_name(found) == "BertForMaskedLM" and class_name(found, "base") == "BertModel"
    fields("config.json", architectures=["MyBert"])(folder)
    said = "the architecture 'MyBert'. Choose a `head`"
    refuses(InputError, said, class_name, open_checkpoint(str(folder)))
    assert class_name(open_checkpoint(str(folder)), "masked-lm") == "BertForMaskedLM"
    # The first repositories name neither.
    fields("config.json", model_type=None, architectures=None)(folder)
    assert class_name(open_checkpoint(str(folder))) == "BertModel"


# --- what is missing -------------------------------------------------------------------------


def test_a_base_model_may_lack_its_pooler(save_tiny):
    model, left_out = load_whole(open_checkpoint(str(save_tiny("BertForMaskedLM"))), "base")
    assert model.pooler is None and not model.training
    assert left_out and all(name.startswith("cls.") for name in left_out)


def test_a_folder_without_tokenizer(save_tiny):
    assert load_own_tokenizer(str(save_tiny(tokenizer=False))) is None
