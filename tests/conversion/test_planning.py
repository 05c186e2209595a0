"""Plans: the rules' engine on a small table, and which model a checkpoint holds."""

import pytest
import torch

from hf_bert_impl.conversion.architecture import check_config, infer
from hf_bert_impl.conversion.maps.google_tf1 import GOOGLE_TF1
from hf_bert_impl.conversion.maps.pytorch import TRANSFORMERS
from hf_bert_impl.conversion.maps.tables import detect
from hf_bert_impl.conversion.planning import plan
from hf_bert_impl.conversion.rules import Operation, Rule, Table
from hf_bert_impl.conversion.tensors import Unread
from hf_bert_impl.errors import InputError
from tests.conversion.cases import (
    ANSWERING,
    CLASSIFICATION,
    MASKED,
    PRETRAINING,
    TOKENS,
    random_model,
    tensors_of,
    zeros,
)

DENSE = "bert.encoder.layer.{layer}.dense.weight"
SMALL = Table(
    software="small",
    rules=(
        Rule("words", "bert.embeddings.word_embeddings.weight"),
        Rule("{scope}/b{layer+4}/w", DENSE, Operation.TRANSPOSE),
        Rule("{scope}/b{layer+4}/old", DENSE),
        Rule("{scope}/b{layers+4}/p", "bert.pooler.dense.weight", Operation.TRANSPOSE),
        Rule("[{wrapper}]out.bias", "cls.predictions.bias"),
        Rule("out.words", "bert.embeddings.word_embeddings.weight", repeats=True),
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


# --- plans -----------------------------------------------------------------------------------


def test_copies_must_equal():
    source = zeros(SHAPES) | {"words": torch.randn(7, 3)}
    name = "bert.embeddings.word_embeddings.weight"
    alone = {"out.words": source["words"].clone()}
    found = plan(SMALL, alone | source | alone)
    assert found.origins[name] == ("words", Operation.IDENTITY)
    assert found.becomes["out.words"] == name
    with pytest.raises(InputError, match=r"words and out\.words are both "):
        plan(SMALL, source)
    assert plan(SMALL, alone).origins[name][0] == "out.words"


MOVED = {name.replace("b6", "b7"): shape for name, shape in SHAPES.items()}
UNKNOWN = SHAPES | {f"crf/layer_{n}/kernel": (2,) for n in range(12)} | {"Words": (7, 3)}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (zeros(SHAPES | {"x/b4/old": (5, 3)}), r"x/b4/w and x/b4/old are both .*layer\.0\.dense"),
        (zeros(SHAPES | {"y/b4/w": (3, 5)}), r"x/b4/w and y/b4/w are both"),
        (zeros(SHAPES | {"out.words": (6, 3)}), r"words and out\.words are both bert\.embeddings"),
        (zeros(UNKNOWN), r"13 tensors \(crf/layer_\*/kernel \(12 times\), Words\) unknown"),
        (zeros(MOVED), r"1 tensor \(x/b\*/p\) unknown to small"),  # the pooler behind the layers
        (zeros(SHAPES | {"x/b4/w": (3,)}), r"x/b4/w has shape \(3,\), .*layer\.0\.dense"),
        ({"words": torch.zeros(7, 3, dtype=torch.int8)}, "words is int8, not floating"),
        ({"words": Unread((7, 3), "string")}, "words is string"),
    ],
)
def test_tensors_that_have_no_place(tensors, message):
    with pytest.raises(InputError, match=message):
        plan(SMALL, tensors)


# --- which model -------------------------------------------------------------------------------


def whole_plan(class_name, **sizes):
    state, fields = random_model(class_name, **sizes)
    return plan(detect(state), state), fields


@pytest.mark.parametrize(
    ("held", "config", "head", "expected"),
    [
        (CLASSIFICATION, {}, None, CLASSIFICATION),
        (CLASSIFICATION, {"architectures": [TOKENS]}, None, TOKENS),
        (CLASSIFICATION, {"architectures": ["TFBertForTokenClassification"]}, None, TOKENS),
        (CLASSIFICATION, {"architectures": [TOKENS]}, "sequence-classification", CLASSIFICATION),
        (CLASSIFICATION, {"architectures": [None, 3]}, None, CLASSIFICATION),
        (PRETRAINING, {"architectures": [MASKED]}, None, PRETRAINING),  # loses nothing
        (PRETRAINING, {}, "masked-lm", MASKED),
        (PRETRAINING, {}, "BertModel", "BertModel"),
        ("BertForNextSentencePrediction", {}, None, "BertForNextSentencePrediction"),
        (MASKED, {"is_decoder": True}, None, "BertLMHeadModel"),
        (MASKED, {"architectures": ["BertLMHeadModel"]}, None, "BertLMHeadModel"),
        ("BertModel", {"architectures": [ANSWERING]}, None, "BertModel"),
    ],
)
def test_inferred_class(held, config, head, expected):
    whole, _ = whole_plan(held)
    found = infer(whole, config, head)
    assert found.class_name == expected
    assert found.reason


def test_a_classifier_trained_without_pooler_is_one_of_tokens():
    slots = {"output_weights/adam_m": (3, 32), "output_bias/adam_m": (3,)}
    tensors = tensors_of("tf1_classifier") | zeros(slots)
    assert infer(plan(GOOGLE_TF1, tensors), {}).class_name == TOKENS
    tensors |= zeros({"bert/pooler/dense/kernel/adam_m": (32, 32)})
    assert infer(plan(GOOGLE_TF1, tensors), {}).class_name == CLASSIFICATION


def test_heads_that_cannot_be():
    state, _ = random_model(PRETRAINING)
    whole = plan(TRANSFORMERS, state | {"classifier.weight": torch.ones(2, 6)})
    with pytest.raises(InputError, match=r"several heads \(classifier and cls\.pred.*`head`"):
        infer(whole, {})
    assert infer(whole, {}, "sequence-classification").num_labels == 2
    with pytest.raises(InputError, match="`head` is 'mlm'"):
        infer(whole, {}, "mlm")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 9}, r"hidden_size 9 \(the tensors have 6\)"),
        ({"num_hidden_layers": 3}, r"num_hidden_layers 3 .* Give all files"),
        ({"num_hidden_layers": 3, "vocab_size": 1}, r"vocab_size 1 .*, num_hidden_layers 3"),
        ({"num_attention_heads": 4}, r"num_attention_heads is 4, .* hidden size 6"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": None}, r"heads is unknown.*`num_attention_heads`"),
        ({"id2label": {"0": "a", "1": "b"}}, r"2 labels \(the tensors have 4\)"),
    ],
)
def test_configs_that_do_not_fit(changes, message):
    whole, fields = whole_plan(CLASSIFICATION, num_labels=4)
    found = infer(whole, {})
    assert check_config(fields, found) == fields
    with pytest.raises(InputError, match=message):
        check_config(fields | changes, found)
