"""Which model a checkpoint holds, and what of it one class takes."""

import pytest
import torch

from hf_bert_impl.conversion.architecture import check_config, fit, infer
from hf_bert_impl.conversion.maps.google_tf1 import GOOGLE_TF1
from hf_bert_impl.conversion.maps.pytorch import TRANSFORMERS
from hf_bert_impl.conversion.maps.tables import detect
from hf_bert_impl.conversion.planning import plan
from hf_bert_impl.errors import InputError
from tests.conversion.cases import (
    ANSWERING,
    CLASSIFICATION,
    MASKED,
    PRETRAINING,
    TOKENS,
    Memory,
    infos,
    random_model,
    reader,
)


def whole_plan(class_name, **sizes):
    state, fields = random_model(class_name, **sizes)
    tensors = Memory(state).tensors
    return plan(detect(tensors), tensors), fields


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


def test_inferred_sizes():
    whole, fields = whole_plan(CLASSIFICATION, num_labels=4, num_hidden_layers=12)
    found = infer(whole, {})
    del fields["num_attention_heads"]
    assert found.sizes | {"num_labels": found.num_labels} == fields
    whole, _ = whole_plan("BertModel", num_hidden_layers=0)
    assert infer(whole, {}).sizes["num_hidden_layers"] == 0


def test_a_classifier_trained_without_pooler_is_one_of_tokens():
    with reader("tf1_classifier") as source:
        slots = {"output_weights/adam_m": (3, 32), "output_bias/adam_m": (3,)}
        whole = plan(GOOGLE_TF1, source.tensors | infos(slots))
        assert infer(whole, {}).class_name == TOKENS
        slots["bert/pooler/dense/kernel/adam_m"] = (32, 32)
        whole = plan(GOOGLE_TF1, source.tensors | infos(slots))
        assert infer(whole, {}).class_name == CLASSIFICATION


def test_heads_that_cannot_be():
    state, _ = random_model(PRETRAINING)
    tensors = Memory(state | {"classifier.weight": torch.ones(2, 6)}).tensors
    whole = plan(TRANSFORMERS, tensors)
    with pytest.raises(InputError, match=r"several heads \(classifier and cls\.pred.*`head`"):
        infer(whole, {})
    assert infer(whole, {}, "sequence-classification").num_labels == 2
    with pytest.raises(InputError, match="`head` is 'mlm'; expected one of base, pretraining"):
        infer(whole, {}, "mlm")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 9}, r"hidden_size 9 \(the tensors have 6\)"),
        ({"num_hidden_layers": 3}, r"num_hidden_layers 3 .*; the layers from 2 on may be in files"),
        ({"num_hidden_layers": 3, "vocab_size": 1}, r"vocab_size 1 .*, num_hidden_layers 3"),
        ({"num_attention_heads": 4}, r"num_attention_heads is 4; .* divides the hidden size 6"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": None}, r"nothing says how many .*`num_attention_heads`"),
        ({"id2label": {"0": "a", "1": "b"}}, r"2 labels \(the tensors have 4\)"),
    ],
)
def test_configs_that_do_not_fit(changes, message):
    whole, fields = whole_plan(CLASSIFICATION, num_labels=4)
    found = infer(whole, {})
    assert check_config(fields, found) == fields
    with pytest.raises(InputError, match=message):
        check_config(fields | changes, found)


def test_shapes_must_be_those_of_the_class():
    state, fields = random_model(MASKED)
    state["bert.encoder.layer.1.attention.self.key.weight"] = torch.ones(6, 5)
    with pytest.raises(InputError, match=r"1 of the tensors .*key\.weight gives \(6, 5\) for"):
        fit(plan(TRANSFORMERS, Memory(state).tensors), MASKED, fields)
