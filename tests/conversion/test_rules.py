"""Rules and the engine: patterns, operations, plans there and back, and their errors."""

import pytest
import torch

from hf_bert_impl.conversion.planning import invert, plan, same_bits
from hf_bert_impl.conversion.rules import Operation, Rule, Table, write
from hf_bert_impl.errors import InputError
from tests.conversion.cases import Memory, infos

SMALL = Table(
    software="small",
    rules=(
        Rule("words", "bert.embeddings.word_embeddings.weight"),
        Rule(
            "{scope}/b{layer+4}/w", "bert.encoder.layer.{layer}.dense.weight", Operation.TRANSPOSE
        ),
        Rule("{scope}/b{layer+4}/old", "bert.encoder.layer.{layer}.dense.weight", alias=True),
        Rule("{scope}/b{layers+4}/p", "bert.pooler.dense.weight", Operation.TRANSPOSE),
        Rule("[{wrapper}]out.bias", "cls.predictions.bias"),
        Rule(
            "out.words",
            "bert.embeddings.word_embeddings.weight",
            repeated_with="cls.predictions.bias",
        ),
    ),
    slots={"scope": "[a-z]+", "wrapper": "(?:module\\.)+", "any": ".+"},
)
SHAPES = {
    "words": (7, 3),
    "x/b4/w": (3, 5),
    "x/b5/w": (3, 5),
    "x/b6/p": (3, 2),
    "out.bias": (7,),
    "out.words": (7, 3),
}


def random(shapes):
    generator = torch.Generator().manual_seed(3)
    memory = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    memory["out.words"] = memory["words"].clone()
    return Memory(memory)


# --- patterns --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "name", "values"),
    [
        ("words", "words", {}),
        ("a.b", "aXb", None),  # a dot is a dot
        ("{scope}/b{layer+4}/w", "abc/b16/w", {"scope": "abc", "layer": 12}),
        ("{scope}/b{layer+4}/w", "abc/b3/w", None),  # would be layer -1
        ("b{layer}", "b٣", None),  # another script's digit
        ("b{layer}", "b" + "9" * 5000, None),
        ("[{wrapper}]out.bias", "out.bias", {"wrapper": None}),
        ("[{wrapper}]out.bias", "module.module.out.bias", {"wrapper": "module.module."}),
        ("{any}/slot", "a\nb/slot", {"any": "a\nb"}),
    ],
)
def test_match_and_write(pattern, name, values):
    assert SMALL.match(pattern, name) == values
    if values is not None:
        assert write(pattern, {slot: value for slot, value in values.items() if value}) == name


# --- operations ------------------------------------------------------------------------------


def test_same_bits():
    zero, nan = torch.tensor([0.0, 1.0]), torch.tensor([float("nan"), 1.0])
    for other in (torch.tensor([-0.0, 1.0]), zero.double(), zero[:1]):
        assert not same_bits(zero, other)
    assert same_bits(nan, nan.clone())
    assert same_bits(zero.bfloat16(), zero.bfloat16())


# --- plans -----------------------------------------------------------------------------------


def test_copies_must_equal():
    source = random(SHAPES)
    found = plan(SMALL, source.tensors)
    name = "bert.embeddings.word_embeddings.weight"
    assert found.steps[name].copies == (("out.words", Operation.IDENTITY),)
    found.read(source, name)
    source.values["out.words"][6, 2] += 1e-6
    with pytest.raises(InputError, match=r"words and out\.words differ; expected one tensor"):
        found.read(source, name)
    alone = {n: i for n, i in source.tensors.items() if n != "words"}
    assert plan(SMALL, alone).steps[name].source.name == "out.words"


MOVED = {name.replace("b6", "b7"): shape for name, shape in SHAPES.items()}
UNKNOWN = SHAPES | {f"crf/layer_{n}/kernel": (2,) for n in range(12)} | {"Words": (7, 3)}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (infos(SHAPES | {"x/b4/old": (5, 3)}), r"x/b4/w and x/b4/old are both .*layer\.0\.dense"),
        (infos(SHAPES | {"y/b4/w": (3, 5)}), r"x/b4/w and y/b4/w are both"),
        (infos(SHAPES | {"out.words": (6, 3)}), r"words and out\.words are both bert\.embeddings"),
        (infos(UNKNOWN), r"13 tensors \(crf/layer_\*/kernel \(12 times\), Words\) that small"),
        (infos(MOVED), r"1 tensor \(x/b\*/p\) that small"),  # the pooler behind the layers
        (infos(SHAPES | {"x/b4/w": (3,)}), r"x/b4/w has the shape \(3,\); .*layer\.0\.dense"),
        (infos(SHAPES) | infos({"words": (7, 3)}, "int8"), "words holds int8; expected floating"),
        (infos(SHAPES) | infos({"words": (7, 3)}, "string"), "words holds string"),
    ],
)
def test_tensors_that_have_no_place(tensors, message):
    with pytest.raises(InputError, match=message):
        plan(SMALL, tensors)


def test_inverse_refuses_what_the_software_has_no_place_for():
    ours = infos({"bert.embeddings.word_embeddings.weight": (7, 3), "classifier.weight": (2, 3)})
    with pytest.raises(InputError, match=r"1 tensor \(classifier\.weight\) for which small"):
        invert(SMALL, ours, "BertForSequenceClassification")
