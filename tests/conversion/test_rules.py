"""Rules and the engine: patterns, operations, plans there and back, and their errors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_bert_impl.conversion.planning import invert, listing, plan, same_bits
from hf_bert_impl.conversion.rules import Ignore, Operation, Rule, Table, write
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
    ignores=(Ignore("{any}/slot", "a slot"), Ignore("step", "a count")),
    slots={"scope": "[a-z]+", "wrapper": "(?:module\\.)+", "any": ".+"},
    written=lambda class_name: {"scope": class_name[:4].lower()},
    tied={"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight"},
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
        ("words", "xwords", None),
        ("a.b", "aXb", None),  # a dot is a dot
        ("{scope}/b{layer+4}/w", "abc/b16/w", {"scope": "abc", "layer": 12}),
        ("{scope}/b{layer+4}/w", "abc/b3/w", None),  # would be layer -1
        ("{scope}/b{layer+4}/w", "abc/d/b7/w", None),
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


@given(
    operation=st.sampled_from(Operation),
    sizes=st.tuples(*[st.integers(1, 7)] * 3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
)
@settings(deadline=None, max_examples=60)
def test_operations_are_undone_by_their_inverse(operation, sizes, dtype):
    a, heads, size = sizes
    shape = {
        Operation.IDENTITY: sizes,
        Operation.TRANSPOSE: (a, size),
        Operation.MERGE_OUT: sizes,
        Operation.MERGE_IN: (heads, size, a),
        Operation.MERGE: (heads, size),
        Operation.SPLIT_OUT: (heads * size, a),
        Operation.SPLIT_IN: (a, heads * size),
        Operation.SPLIT: (heads * size,),
    }[operation]
    tensor = torch.randn(shape).to(dtype)
    there = operation.shape(shape, heads)
    result = operation.apply(tensor, there)
    assert result.shape == there
    assert result.is_contiguous()
    assert operation.inverse.shape(there, heads) == shape
    assert same_bits(operation.inverse.apply(result, shape), tensor)
    assert operation.inverse.inverse is operation


@pytest.mark.parametrize(
    ("operation", "shape"),
    [
        (Operation.TRANSPOSE, (3,)),
        (Operation.MERGE_OUT, (3, 4)),
        (Operation.MERGE_IN, ()),
        (Operation.MERGE, (3,)),
        (Operation.SPLIT, (9,)),
        (Operation.SPLIT_OUT, (9, 4)),
        (Operation.SPLIT_IN, (4, 9)),
    ],
)
def test_operations_refuse_other_shapes(operation, shape):
    assert operation.shape(shape, 4) is None


def test_same_bits():
    zero, nan = torch.tensor([0.0, 1.0]), torch.tensor([float("nan"), 1.0])
    for other in (torch.tensor([-0.0, 1.0]), zero.double(), zero[:1]):
        assert not same_bits(zero, other)
    assert same_bits(nan, nan.clone())
    assert same_bits(zero.bfloat16(), zero.bfloat16())


# --- plans -----------------------------------------------------------------------------------


def test_plan_maps_and_ignores():
    source = random(SHAPES)
    extra = infos({"x/b4/w/slot": (3, 5)}) | infos({"step": ()}, "int64")
    found = plan(SMALL, {**source.tensors, **extra})
    assert found.ignored == {"x/b4/w/slot": "a slot", "step": "a count"}
    assert found.target_infos == infos(
        {
            "bert.embeddings.word_embeddings.weight": (7, 3),
            "bert.encoder.layer.0.dense.weight": (5, 3),
            "bert.encoder.layer.1.dense.weight": (5, 3),
            "bert.pooler.dense.weight": (2, 3),
            "cls.predictions.bias": (7,),
        }
    )
    second = found.read(source, "bert.encoder.layer.1.dense.weight")
    assert torch.equal(second, source.values["x/b5/w"].t())
    assert second.is_contiguous()


def test_copies_are_written_beside_their_head_only():
    ours = infos({"bert.embeddings.word_embeddings.weight": (7, 3)})
    assert list(invert(SMALL, ours, "x").steps) == ["words"]
    ours |= infos({"cls.predictions.bias": (7,)})
    assert set(invert(SMALL, ours, "x").steps) == {"words", "out.words", "out.bias"}


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


def test_listing():
    text = listing([f"{chr(97 + n)}.bias" for n in range(14)], "tensor")
    assert text.startswith("14 tensors (a.bias, b.bias,")
    assert text.endswith("j.bias and 4 more)")
    assert listing([], "tensor") == "no tensors"
    assert len(listing(["x" * 10**6], "tensor")) < 300
    assert listing(["a\nb"], "tensor") == r"1 tensor ('a\nb')"


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
        (infos(SHAPES | {"x/b4/w": (3, 5, 1)}), r"has the shape \(3, 5, 1\)"),
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


def test_ties_are_compared():
    decoder = Rule("decoder", "cls.predictions.decoder.weight")
    table = Table("tied", (*SMALL.rules[:1], decoder), tied=SMALL.tied)
    words = torch.randn(5, 3)
    source = Memory({"words": words, "decoder": words.clone()})
    found = plan(table, source.tensors)
    assert found.ties == dict(SMALL.tied)
    assert found.untied(source) == ()
    source.values["decoder"][0, 0] += 1
    assert found.untied(source) == ("cls.predictions.decoder.weight",)
    assert plan(table, infos({"words": (5, 3)})).ties == {}
    wider = infos({"words": (5, 3), "decoder": (6, 3)})
    assert plan(table, wider).untied(source) == ("cls.predictions.decoder.weight",)
