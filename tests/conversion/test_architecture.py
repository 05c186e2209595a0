"""Which model a checkpoint holds, and what of it one class takes."""

import re

import pytest
import torch

from hf_bert_impl.conversion.architecture import check_config, fit, infer, require_complete
from hf_bert_impl.conversion.maps import names
from hf_bert_impl.conversion.maps.google_tf1 import GOOGLE_TF1
from hf_bert_impl.conversion.maps.pytorch import TRANSFORMERS
from hf_bert_impl.conversion.maps.tables import detect
from hf_bert_impl.conversion.planning import plan, same_bits
from hf_bert_impl.errors import InputError
from tests.conversion.cases import (
    ANSWERING,
    CHOICE,
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
        (CLASSIFICATION, {"architectures": ["FlaxBertForMultipleChoice"]}, None, CHOICE),
        (CLASSIFICATION, {"architectures": [MASKED]}, None, CLASSIFICATION),
        (CLASSIFICATION, {"architectures": [TOKENS]}, "sequence-classification", CLASSIFICATION),
        (CLASSIFICATION, {"architectures": [None, 3]}, None, CLASSIFICATION),
        (TOKENS, {}, None, TOKENS),
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
    ("lacking", "match"),
    [
        (r"layer\.[13]\.", "has layer 4, but not 1, 3; expected all layers"),
        ("word_embeddings", "has no word embeddings, but 86 other tensors"),
    ],
)
def test_missing_layers_and_embeddings(lacking, match):
    state, _ = random_model("BertModel", num_hidden_layers=5)
    tensors = Memory({n: t for n, t in state.items() if not re.search(lacking, n)}).tensors
    with pytest.raises(InputError, match=match):
        infer(plan(TRANSFORMERS, tensors), {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 9}, r"hidden_size 9 \(the tensors have 6\)"),
        ({"intermediate_size": "7"}, r"intermediate_size '7' \(the tensors have 7\)"),
        ({"type_vocab_size": 2}, r"type_vocab_size 2 \(the tensors have 5\)"),
        ({"num_hidden_layers": 1}, r"num_hidden_layers 1 \(the tensors have 2\)"),
        ({"num_hidden_layers": 3}, r"num_hidden_layers 3 .*; the layers from 2 on may be in files"),
        ({"num_hidden_layers": 3, "vocab_size": 1}, r"vocab_size 1 .*, num_hidden_layers 3"),
        ({"num_attention_heads": 4}, r"num_attention_heads is 4; .* divides the hidden size 6"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": None}, r"nothing says how many .*`num_attention_heads`"),
        ({"id2label": {"0": "a", "1": "b"}}, r"2 labels \(the tensors have 4\)"),
        ({"num_labels": 3}, r"3 labels \(the tensors have 4\)"),
    ],
)
def test_configs_that_do_not_fit(changes, message):
    whole, fields = whole_plan(CLASSIFICATION, num_labels=4)
    found = infer(whole, {})
    assert check_config(fields, found) == fields
    with pytest.raises(InputError, match=message):
        check_config(fields | changes, found)


def test_configs_are_completed():
    whole, fields = whole_plan(CLASSIFICATION, num_labels=4)
    given = {"num_attention_heads": 3, "hidden_act": "gelu_new"}
    assert check_config(given, infer(whole, {})) == fields | given
    labels = {"id2label": {str(n): f"l{n}" for n in range(4)}}
    assert "num_labels" not in check_config(given | labels, infer(whole, {}))


def test_another_head_drops_and_lacks():
    whole, fields = whole_plan(PRETRAINING)
    masked = fit(whole, MASKED, fields)
    dropped = {n for n, reason in masked.ignored.items() if reason == f"not part of {MASKED}"}
    assert dropped == {
        *("bert.pooler.dense.weight", "bert.pooler.dense.bias"),
        *("cls.seq_relationship.weight", "cls.seq_relationship.bias"),
    }
    require_complete(masked, MASKED)
    answering = fit(whole, ANSWERING, fields)
    assert answering.missing == {"qa_outputs.weight": (2, 6), "qa_outputs.bias": (2,)}
    with pytest.raises(InputError, match=r"lacks 2 tensors \(qa_outputs\.weight, qa_outputs"):
        require_complete(answering, ANSWERING)
    bare = fit(whole, "BertModel", fields)
    assert "embeddings.word_embeddings.weight" in bare.steps
    assert bare.target_infos["pooler.dense.bias"].name == "pooler.dense.bias"


def test_a_bare_encoder_gets_the_prefix_of_a_head():
    whole, fields = whole_plan("BertModel")
    cut = fit(whole, CLASSIFICATION, fields)
    assert set(cut.missing) == {"classifier.weight", "classifier.bias"}
    assert cut.steps["bert.pooler.dense.bias"].source.name == "pooler.dense.bias"


def test_ties_follow_the_config():
    state, fields = random_model(MASKED)
    source = Memory(state | {f"{names.DECODER}.weight": torch.randn(13, 6)})
    whole = plan(TRANSFORMERS, source.tensors)
    assert whole.untied(source) == (f"{names.DECODER}.weight",)
    tied = fit(whole, MASKED, fields)
    assert set(tied.steps) == set(state)
    assert tied.ignored == {f"{names.DECODER}.weight": f"tied to {names.WORDS}.weight"}
    untied = fit(whole, MASKED, fields | {"tie_word_embeddings": False})
    assert not untied.missing
    decoder = untied.read(source, f"{names.DECODER}.weight")
    assert same_bits(decoder, source.values[f"{names.DECODER}.weight"])
    assert untied.steps[f"{names.DECODER}.bias"].source.name == names.SCORES_BIAS
    # The bias may be stored under its other name only.
    other = {n.replace(names.SCORES_BIAS, f"{names.DECODER}.bias"): t for n, t in state.items()}
    cut = fit(plan(TRANSFORMERS, Memory(other).tensors), MASKED, fields)
    assert not cut.missing
    assert cut.steps[names.SCORES_BIAS].source.name == f"{names.DECODER}.bias"


def test_shapes_must_be_those_of_the_class():
    state, fields = random_model(MASKED)
    state["bert.encoder.layer.1.attention.self.key.weight"] = torch.ones(6, 5)
    with pytest.raises(InputError, match=r"1 of the tensors .*key\.weight gives \(6, 5\) for"):
        fit(plan(TRANSFORMERS, Memory(state).tensors), MASKED, fields)


@pytest.mark.parametrize("changes", [{"layer_norm_eps": "x"}, {"pruned_heads": 5}], ids=str)
def test_configs_that_cannot_be_used(changes):
    whole, fields = whole_plan(MASKED)
    with pytest.raises(InputError, match="the config cannot be used"):
        fit(whole, MASKED, fields | changes)
