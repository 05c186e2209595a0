"""Folders that cannot be loaded: one line each, what is wrong and what would do.

Damaged files are in tests/test_checkpoints.py.
"""

import resource
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import hf_bert_impl
from hf_bert_impl import TextEncoder
from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.finite import check_finite, not_finite
from hf_bert_impl.inference.loading import load_model
from tests.model.cases import random_config, random_model
from tests.support.damage import fields


@pytest.fixture
def folder(tmp_path):
    """A classifier of three labels."""
    model = random_model("BertForSequenceClassification", random_config(1, num_labels=3))
    model.save_pretrained(tmp_path)
    return tmp_path


def load(folder, head="BertForSequenceClassification", **options):
    return load_model(open_checkpoint(str(folder)), head, **options)


def refuses(error, said, call, *arguments, **options):
    with pytest.raises(error, match=said) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["BertTokenizer", "TextEncoder"])
def test_a_path_that_does_not_exist(name):
    open_it = getattr(hf_bert_impl, name).from_pretrained
    for path in ("/no/model", "./model", "a/b/c", "a/"):
        refuses(OSError, f"^There is no folder {path}. Give a folder", open_it, path)


def test_sizes_that_do_not_fit(folder):
    said = r"classifier.bias is \(3,\), the model has \(5,\)"
    refuses(ValueError, said, load, folder, num_labels=5)
    refuses(ValueError, "num_labels=3 does not fit", load, folder, "BertForQuestionAnswering")
    weights = load_file(folder / "model.safetensors")
    name = "bert.encoder.layer.0.output.dense.weight"
    weights[name] = weights[name][:, :-1].contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refuses(ValueError, f"{name} is", load, folder)


class TestConfigsTooLarge:
    """A small config with small weights does not take the machine's memory."""

    @pytest.fixture
    def little_memory(self):
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, limits[1]))
        yield
        resource.setrlimit(resource.RLIMIT_DATA, limits)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("num_hidden_layers", 100_000),
            ("hidden_size", 10**9),
            *((f"{table}_size", 10**9) for table in ("vocab", "type_vocab")),
            ("max_position_embeddings", 10**9),
            *(("num_labels", 10**9), ("vocab_size", 10**30)),
        ],
    )
    def test_refused_before_memory_is_taken(self, folder, little_memory, minilm_path, field, value):
        fields("config.json", id2label=None, label2id=None, **{field: value})(folder)
        shutil.copy(minilm_path / "vocab.txt", folder)
        for call in (load, lambda folder: TextEncoder(str(folder))):
            refuses(ValueError, r"makes a model of \d+ numbers|is not valid; use", call, folder)


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
