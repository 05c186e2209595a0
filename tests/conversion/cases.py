"""What the tests of maps and heads share: fixtures, models of random weights, comparison."""

import json
import pathlib

import torch

import hf_bert_impl
from hf_bert_impl.conversion.heads import HEADS, check_config, fit, infer
from hf_bert_impl.conversion.maps import names
from hf_bert_impl.conversion.maps.tables import detect
from hf_bert_impl.conversion.planning import plan, same_bits
from hf_bert_impl.conversion.readers.flax import FlaxReader
from hf_bert_impl.conversion.readers.h5 import H5Reader
from hf_bert_impl.conversion.readers.safetensors import SafetensorsReader
from hf_bert_impl.conversion.readers.tf1 import Tf1Reader
from hf_bert_impl.conversion.readers.torch_pickle import TorchReader
from hf_bert_impl.conversion.tensors import TensorInfo

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
CLASSES = tuple(HEADS.values())
PRETRAINING, CLASSIFICATION = "BertForPreTraining", "BertForSequenceClassification"
ANSWERING, TOKENS = "BertForQuestionAnswering", "BertForTokenClassification"
MASKED, CHOICE = "BertForMaskedLM", "BertForMultipleChoice"


class Memory:
    """Tensors by name, read as a reader gives them."""

    def __init__(self, values):
        self.values = values
        self.tensors = {
            name: TensorInfo(name, tuple(t.shape), str(t.dtype).removeprefix("torch."))
            for name, t in values.items()
        }

    def read(self, name):
        return self.values[name]


def names_only(tensors):
    return {name: TensorInfo(name, shape, "float32") for name, shape in tensors.items()}


def reader(folder, file):
    file = FIXTURES / folder / file
    kinds = {"ckpt": Tf1Reader, ".h5": H5Reader, ".msgpack": FlaxReader, ".saf": SafetensorsReader}
    kind = next((kinds[part] for part in kinds if part in file.name), TorchReader)
    return kind(file)


def config_of(folder):
    file = FIXTURES / folder / "config.json"
    file = file if file.exists() else FIXTURES / folder / "bert_config.json"
    return json.loads(file.read_text())


def converted(folder, file):
    """All tensors of a fixture under our names, and the plan."""
    with reader(folder, file) as source:
        whole = plan(detect(source.tensors), source.tensors)
        found = infer(whole, config_of(folder))
        cut = fit(whole, found.class_name, check_config(config_of(folder), found))
        return {name: cut.read(source, name).clone() for name in cut.steps}, cut, found


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert same_bits(found[name], tensor.contiguous()), name


def random_model(class_name, seed=0, **sizes):
    """The state of a random model, without its tied tensors, and its config."""
    fields = {
        "vocab_size": 13,
        "hidden_size": 6,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 7,
        "max_position_embeddings": 11,
        "type_vocab_size": 5,
        **sizes,
    }
    config = hf_bert_impl.BertConfig(**fields)
    with torch.device("meta"):
        shapes = getattr(hf_bert_impl, class_name)(config).state_dict()
    generator = torch.Generator().manual_seed(seed)
    tied = names.TIED if config.tie_word_embeddings else ()
    state = {
        name: torch.randn(tensor.shape, generator=generator)
        for name, tensor in shapes.items()
        if name not in tied
    }
    return state, fields
