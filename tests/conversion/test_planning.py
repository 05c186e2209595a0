"""Plans of the tables: what each tensor becomes, and which model a checkpoint holds."""

import json

import pytest
import torch

from hf_bert_impl import BertConfig
from hf_bert_impl.conversion.architecture import check_config, fit, infer
from hf_bert_impl.conversion.maps import names
from hf_bert_impl.conversion.maps.google_tf1 import GOOGLE_TF1
from hf_bert_impl.conversion.maps.model_garden import MODEL_GARDEN, MODEL_GARDEN_PRETRAINER
from hf_bert_impl.conversion.maps.pytorch import TRANSFORMERS
from hf_bert_impl.conversion.maps.tables import detect
from hf_bert_impl.conversion.planning import plan
from hf_bert_impl.conversion.tensors import Unread
from hf_bert_impl.errors import InputError
from tests.conversion.cases import FIXTURES, assert_same, tensors_of
from tests.model import cases

PRETRAINING, CLASSIFICATION = "BertForPreTraining", "BertForSequenceClassification"
ANSWERING, TOKENS = "BertForQuestionAnswering", "BertForTokenClassification"
MASKED = "BertForMaskedLM"


def zeros(shapes):
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


def random_model(class_name, **sizes):
    """The state of a random model, without its tied tensors, and its config."""
    fields = dict(vocab_size=13, hidden_size=6, num_hidden_layers=2, num_attention_heads=3)
    fields |= dict(intermediate_size=7, max_position_embeddings=11, type_vocab_size=5) | sizes
    state = cases.random_model(class_name, BertConfig(**fields)).state_dict()
    return {name: tensor for name, tensor in state.items() if name not in names.TIED}, fields


# --- tensors without a place -------------------------------------------------------------------

TF1 = "tf1_classifier"
KERNEL = "bert/encoder/layer_0/output/dense/kernel"
QUERY = "bert/encoder/layer_1/attention/self/query/kernel"
NORM = "bert.embeddings.LayerNorm"
COPY = "mlm___cls/tf_bert_for_pre_training/bert/embeddings/token_type_embeddings/embeddings:0"
UNKNOWN = {f"crf/layer_{n}/kernel": (2,) for n in range(12)} | {"Words": (7, 3)}


@pytest.mark.parametrize(
    ("folder", "change", "message"),
    [
        ("pytorch_pretrained_bert", zeros({f"{NORM}.weight": (32,)}), f"{NORM}.gamma and {NORM}"),
        ("tf2_h5", {COPY: torch.ones(2, 64)}, r"token_type_embeddings/embeddings:0 are both "),
        (TF1, zeros(UNKNOWN), r"13 tensors \(crf/layer_\*/kernel \(12 times\), Words\) unknown"),
        (TF1, zeros({KERNEL: (3,)}), r"kernel has shape \(3,\), .*layer\.0\.output\.dense"),
        (TF1, {KERNEL: torch.zeros(7, 3).char()}, "kernel is int8, not floating"),
        (TF1, {KERNEL: Unread((7, 3), "string")}, "kernel is string"),
        # An optimizer's slot of another shape, or of no variable.
        (TF1, zeros({f"{QUERY}/new": (3, 5)}), r"1 tensor \(.*/new\) unknown to google"),
        (TF1, zeros({"crf/kernel/adam_m": (3, 5)}), r"1 tensor \(.*/adam_m\) unknown to google"),
    ],
)
def test_tensors_that_have_no_place(folder, change, message):
    tensors = tensors_of(folder)
    table = detect(tensors)
    with pytest.raises(InputError, match=message):
        plan(table, tensors | change)


# --- which model -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "config", "head", "expected"),
    [
        (CLASSIFICATION, {"architectures": [TOKENS]}, None, TOKENS),
        (CLASSIFICATION, {"architectures": ["TFBertForTokenClassification"]}, None, TOKENS),
        (CLASSIFICATION, {"architectures": [TOKENS]}, "sequence-classification", CLASSIFICATION),
        (CLASSIFICATION, {"architectures": [None, 3]}, None, CLASSIFICATION),
        (PRETRAINING, {"architectures": [MASKED]}, None, PRETRAINING),  # loses nothing
        (PRETRAINING, {}, "masked-lm", MASKED),
        (PRETRAINING, {}, "BertModel", "BertModel"),
        ("BertForNextSentencePrediction", {}, None, "BertForNextSentencePrediction"),
        (MASKED, {"architectures": ["BertLMHeadModel"]}, None, "BertLMHeadModel"),
        ("BertModel", {"architectures": [ANSWERING]}, None, "BertModel"),
    ],
)
def test_inferred_class(held, config, head, expected):
    state, _ = random_model(held)
    found = infer(plan(TRANSFORMERS, state), config, head)
    assert found.class_name == expected
    assert found.reason


def test_a_classifier_trained_without_pooler_is_one_of_tokens():
    slots = {"output_weights/adam_m": (3, 32), "output_bias/adam_m": (3,)}
    tensors = tensors_of(TF1) | zeros(slots)
    assert infer(plan(GOOGLE_TF1, tensors), {}).class_name == TOKENS
    tensors |= zeros({"bert/pooler/dense/kernel/adam_m": (32, 32)})
    assert infer(plan(GOOGLE_TF1, tensors), {}).class_name == CLASSIFICATION


def test_heads_that_cannot_be():
    state, _ = random_model(PRETRAINING)
    whole = plan(TRANSFORMERS, state | {"classifier.weight": torch.ones(2, 6)})
    with pytest.raises(InputError, match=r"several heads \(classifier and cls\.pred.*`head`"):
        infer(whole, {})
    assert infer(whole, {}, "sequence-classification").num_labels == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 3, "vocab_size": 1}, r"vocab_size 1 .*, num_hidden_layers 3 .* all"),
        ({"num_attention_heads": 4}, r"num_attention_heads is 4, .* hidden size 6"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": None}, r"heads is unknown.*`num_attention_heads`"),
        ({"id2label": {"0": "a", "1": "b"}}, r"2 labels \(the tensors have 4\)"),
    ],
)
def test_configs_that_do_not_fit(changes, message):
    state, fields = random_model(CLASSIFICATION, num_labels=4)
    found = infer(plan(TRANSFORMERS, state), {})
    assert check_config(fields, found) == fields
    with pytest.raises(InputError, match=message):
        check_config(fields | changes, found)


# --- names around the weights ------------------------------------------------------------------


def test_training_state_of_tensorflow_1_is_ignored():
    tensors = tensors_of(TF1)
    slots = ("adam_m", "BERTAdam", "BERTAdam_1", "LAMB_1", "accum", "Own/m")
    steps = ("beta1_power", "training/beta1_power_1", "local_step", "loss_scale", "learning_rate")
    extra = {f"{KERNEL}/{slot}": tensors[KERNEL].shape for slot in slots}
    extra |= dict.fromkeys(steps, (1,))
    found = plan(detect(tensors), tensors | zeros(extra))
    assert set(found.ignored) == {*extra, "global_step"}
    assert found.ignored[f"{KERNEL}/BERTAdam"] == "BERTAdam, state of the optimizer"


CROSSED = {"is_decoder": True, "add_cross_attention": True}


@pytest.mark.parametrize("wrapper", ["", "_orig_mod.", "module.model.", "state_dict.model."])
@pytest.mark.parametrize(
    ("class_name", "options"), [(MASKED, {}), ("BertModel", {}), ("BertLMHeadModel", CROSSED)]
)
def test_wrapped_models(wrapper, class_name, options):
    state, fields = random_model(class_name, **options)
    source = {wrapper + name: tensor for name, tensor in state.items()}
    step = zeros({"optimizer_states.0.state.0.exp_avg": (6,)})
    assert detect(source) is TRANSFORMERS
    whole = plan(TRANSFORMERS, source | step)
    assert list(whole.ignored) == list(step)
    assert infer(whole, options).class_name == class_name
    assert_same(fit(whole, class_name, fields).tensors, state)


# --- TensorFlow 2's object-based checkpoints ----------------------------------------------------


#: By layout: the class, and for each name that official.nlp wrote its shape and our name, or null.
GARDEN = json.loads((FIXTURES / "model_garden/names.json").read_text())


@pytest.mark.parametrize("layout", GARDEN)
def test_model_garden(layout):
    """The random models of this file, with three heads, as releases 2.3.0 and 2.15.0 store them."""
    class_name, listed = GARDEN[layout].values()
    state, _ = random_model(class_name, num_labels=4)
    tensors = {"_CHECKPOINTABLE_OBJECT_GRAPH": Unread((), "string")}
    for name, (shape, ours) in listed.items():
        tensor = state.get(ours, torch.zeros(shape))
        is_transposed = ours and "/kernel/" in name
        tensors[name] = (tensor.t() if is_transposed else tensor).reshape(shape)
    table = detect(tensors)
    assert table is (MODEL_GARDEN_PRETRAINER if class_name == PRETRAINING else MODEL_GARDEN)
    whole = plan(table, tensors)
    left_out = {name for name, (_, ours) in listed.items() if ours is None}
    assert set(whole.ignored) == left_out | {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    found = infer(whole, {})
    assert found.class_name == class_name
    cut = fit(whole, class_name, check_config({}, found))  # the shapes tell the heads
    assert found.sizes["num_attention_heads"] == 3
    assert not cut.missing
    assert_same(cut.tensors, state)
    with pytest.raises(InputError, match=r"num_attention_heads 2 \(the tensors have 3\)"):
        check_config({"num_attention_heads": 2}, found)
    pooler = {name: name.replace("weights-6/", "weights-7/") for name in tensors}
    if table is MODEL_GARDEN and any(name != moved for name, moved in pooler.items()):
        with pytest.raises(InputError, match="unknown to tensorflow"):  # far behind the layers
            plan(table, {moved: tensors[name] for name, moved in pooler.items()})
