"""The tables of names: wrapped models, optimizers, and TensorFlow's Model Garden."""

import json

import pytest
import torch

from hf_bert_impl.conversion.architecture import check_config, fit, infer
from hf_bert_impl.conversion.maps.google_tf1 import GOOGLE_TF1
from hf_bert_impl.conversion.maps.model_garden import MODEL_GARDEN, MODEL_GARDEN_PRETRAINER
from hf_bert_impl.conversion.maps.pytorch import TRANSFORMERS
from hf_bert_impl.conversion.maps.tables import detect
from hf_bert_impl.conversion.planning import plan
from hf_bert_impl.conversion.tensors import Unread
from hf_bert_impl.errors import InputError
from tests.conversion.cases import (
    FIXTURES,
    MASKED,
    PRETRAINING,
    assert_same,
    random_model,
    tensors_of,
    zeros,
)

# --- names around the weights ------------------------------------------------------------------


def test_training_state_of_tensorflow_1_is_ignored():
    tensors = tensors_of("tf1_classifier")
    kernel = "bert/encoder/layer_0/output/dense/kernel"
    slots = ("adam_m", "BERTAdam", "BERTAdam_1", "LAMB_1", "accum", "Own/m")
    steps = ("beta1_power", "training/beta1_power_1", "local_step", "loss_scale", "learning_rate")
    shape = tuple(tensors[kernel].shape)
    extra = {f"{kernel}/{slot}": shape for slot in slots} | dict.fromkeys(steps, (1,))
    found = plan(detect(tensors), tensors | zeros(extra))
    assert set(found.ignored) == {*extra, "global_step"}
    assert found.ignored[f"{kernel}/BERTAdam"] == "BERTAdam, state of the optimizer"
    for name in (f"{kernel}/adam_m", "crf/kernel/adam_m"):  # of another shape, of no variable
        with pytest.raises(InputError, match=r"1 tensor \(.*/adam_m\) unknown to google"):
            plan(GOOGLE_TF1, tensors | zeros({name: (3, 5)}))


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module.model.", "state_dict.model."])
@pytest.mark.parametrize("class_name", [MASKED, "BertModel"])
def test_wrapped_models(wrapper, class_name):
    state, fields = random_model(class_name)
    source = {wrapper + name: tensor for name, tensor in state.items()}
    step = zeros({"optimizer_states.0.state.0.exp_avg": (6,)})
    assert detect(source) is TRANSFORMERS
    whole = plan(TRANSFORMERS, source | step)
    assert list(whole.ignored) == list(step)
    assert_same(fit(whole, class_name, fields).tensors, state)


def test_decoder_with_cross_attention():
    state, fields = random_model("BertLMHeadModel", is_decoder=True, add_cross_attention=True)
    assert any("crossattention" in name for name in state)
    whole = plan(detect(state), state)
    assert infer(whole, {"is_decoder": True}).class_name == "BertLMHeadModel"
    assert infer(whole, {}).class_name == MASKED
    assert not fit(whole, "BertLMHeadModel", fields).missing


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
