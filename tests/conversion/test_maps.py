"""The tables of names: wrapped models, optimizers, and TensorFlow's Model Garden."""

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
    CLASSIFICATION,
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


#: Modules around the layers: of the functional encoder, and of the one with attributes.
AROUND = {
    "embeddings.word_embeddings": ("layer_with_weights-0", "_embedding_layer"),
    "embeddings.position_embeddings": ("layer_with_weights-1", "_position_embedding_layer"),
    "embeddings.token_type_embeddings": ("layer_with_weights-2", "_type_embedding_layer"),
    "embeddings.LayerNorm": ("layer_with_weights-3", "_embedding_norm_layer"),
    "pooler.dense": ("layer_with_weights-6", "_pooler_layer"),
}
INSIDE = {
    "attention.self.query": "_attention_layer/_query_dense",
    "attention.self.key": "_attention_layer/_key_dense",
    "attention.self.value": "_attention_layer/_value_dense",
    "attention.output.LayerNorm": "_attention_layer_norm",
    "intermediate.dense": "_intermediate_dense",
    "output.dense": "_output_dense",
    "output.LayerNorm": "_output_layer_norm",
}
MASKED_LM = {
    "embeddings.word_embeddings": "masked_lm/embedding_table",
    "cls.predictions": "masked_lm/output_bias.Sbias",
    "cls.predictions.transform.dense": "masked_lm/dense",
    "cls.predictions.transform.LayerNorm": "masked_lm/layer_norm",
}
END = "/.ATTRIBUTES/VARIABLE_VALUE"


def garden(state, root, output, named, tail):
    """Names and shapes as official.nlp 2.3.0 and 2.15.0 write them, made without the table.

    `tail` has the modules outside the encoder's `root`; three heads, two layers.
    """
    result = {}
    for name, tensor in state.items():
        module, _, part = name.removeprefix("bert.").rpartition(".")
        leaf = "/kernel" if part == "weight" else "/bias"
        if "Norm" in module:
            leaf = "/gamma" if part == "weight" else "/beta"
        elif "embeddings" in module:
            leaf = "/embeddings"
        elif part == "weight":
            tensor = tensor.t()
        if module in tail:
            path = tail[module]
            leaf = "" if path.endswith(("embedding_table", "Sbias")) else leaf
        elif module in AROUND:
            path = root + AROUND[module][named]
        else:
            layer, _, inside = module.removeprefix("encoder.layer.").partition(".")
            if ".self." in module:
                tensor = tensor.unflatten(-1, (3, -1))
            elif "attention.output.dense" in name and part == "weight":
                tensor = tensor.unflatten(0, (3, -1))
            block = f"_transformer_layers/{layer}"
            block = block if named else f"layer_with_weights-{int(layer) + 4}"
            path = f"{root}{block}/{INSIDE.get(inside, output)}"
        result[path + leaf + END] = tensor.contiguous()
    return result


def inside_model(names_of):
    return {name: f"model/{theirs}" for name, theirs in names_of.items()}


CLASSIFIER = {"classifier": "model/layer_with_weights-1/out_proj"}
SECOND = "model/classification_heads/0"
POOLER = {"pooler.dense": f"{SECOND}/dense", "cls.seq_relationship": f"{SECOND}/out_proj"}
LATER, BEFORE = "_attention_layer/_output_dense", "_attention_output_dense"


@pytest.mark.parametrize(
    ("class_name", "root", "output", "named", "tail"),
    [
        ("BertModel", "model/", BEFORE, False, {}),
        ("BertModel", "", LATER, True, {}),
        (MASKED, "encoder/", LATER, False, MASKED_LM),
        (MASKED, "model/encoder_network/", LATER, True, inside_model(MASKED_LM)),
        (CLASSIFICATION, "model/layer_with_weights-0/", LATER, False, CLASSIFIER),
        (PRETRAINING, "model/encoder_network/", LATER, False, POOLER | inside_model(MASKED_LM)),
    ],
)
def test_model_garden(class_name, root, output, named, tail):
    state, _ = random_model(class_name, num_labels=4)
    source = garden(state, root, output, named, tail)
    first = next(iter(source)).removesuffix(END[1:])
    noise = {
        "_CHECKPOINTABLE_OBJECT_GRAPH": Unread((), "string"),
        f"save_counter{END}": torch.tensor(3),
        f"optimizer/beta_1{END}": torch.tensor(0.5),
        f"{first}.OPTIMIZER_SLOT/optimizer/m{END}": torch.zeros(3),
    }
    table = MODEL_GARDEN
    if class_name == PRETRAINING:  # it has a pooler of its own
        table = MODEL_GARDEN_PRETRAINER
        noise[f"{root}layer_with_weights-6/kernel{END}"] = torch.zeros(6, 6)
    tensors = source | noise
    assert detect(tensors) is table
    whole = plan(table, tensors)
    assert set(whole.ignored) == set(noise)
    found = infer(whole, {})
    assert found.class_name == class_name
    cut = fit(whole, class_name, check_config({}, found))  # the shapes tell the heads
    assert found.sizes["num_attention_heads"] == 3
    assert not cut.missing
    assert_same(cut.tensors, state)
    with pytest.raises(InputError, match=r"num_attention_heads 2 \(the tensors have 3\)"):
        check_config({"num_attention_heads": 2}, found)
