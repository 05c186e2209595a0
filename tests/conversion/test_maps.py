"""The tables on real checkpoints of every software, and back."""

import re

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
    CHECKPOINTS,
    CLASSIFICATION,
    MASKED,
    PRETRAINING,
    assert_same,
    converted,
    random_model,
    tensors_of,
    zeros,
)

TENSORS_OF = {PRETRAINING: 46, CLASSIFICATION: 41, MASKED: 42}


# --- checkpoints that the softwares themselves wrote ------------------------------------------


@pytest.mark.parametrize(("folder", "file", "table", "class_name", "labels"), CHECKPOINTS)
def test_every_tensor_is_mapped_or_ignored(folder, file, table, class_name, labels):
    tensors = tensors_of(folder)
    assert detect(tensors) is table
    cut, found = converted(folder)
    assert found.class_name == class_name
    assert found.num_labels == labels
    assert not cut.missing
    assert len(cut.tensors) == TENSORS_OF.get(class_name, 39) + (2 if "relative" in folder else 0)
    whole = plan(table, tensors)
    copies = whole.becomes.keys() - {name for name, _ in whole.origins.values()}
    used = [name for name, _ in cut.origins.values()]
    assert sorted([*used, *copies, *cut.ignored]) == sorted(tensors)


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


def _garden(state, root, tail, output="_attention_layer/_output_dense", named=False):
    """Names and shapes as official.nlp 2.3.0 and 2.15.0 write them, made without the table.

    `tail` has the names outside the encoder's `root`; three heads, two layers.
    """
    bare = {n.removeprefix("bert."): t for n, t in state.items()}
    width = bare["embeddings.word_embeddings.weight"].shape[1]
    apart = (3, width // 3)
    block = "_transformer_layers/{}" if named else "layer_with_weights-{}"
    ends = {
        "attention.self.query": "_attention_layer/_query_dense",
        "attention.self.key": "_attention_layer/_key_dense",
        "attention.self.value": "_attention_layer/_value_dense",
        "attention.output.dense": output,
        "attention.output.LayerNorm": "_attention_layer_norm",
        "intermediate.dense": "_intermediate_dense",
        "output.dense": "_output_dense",
        "output.LayerNorm": "_output_layer_norm",
    }
    result = {}
    for name, tensor in bare.items():
        if match := re.fullmatch(r"encoder\.layer\.(\d+)\.(.*)\.(weight|bias)", name):
            layer = block.format(int(match[1]) + (0 if named else 4))
            theirs = f"{layer}/{ends[match[2]]}"
            norm, weight = "LayerNorm" in name, match[3] == "weight"
            end = {(True, True): "gamma", (True, False): "beta"}.get((norm, weight))
            theirs += f"/{end or ('kernel' if weight else 'bias')}"
            if weight and not norm:
                tensor = tensor.t()
            if ".self." in name:
                tensor = tensor.reshape(*tensor.shape[:-1], *apart)
            elif "attention.output.dense.weight" in name:
                tensor = tensor.reshape(*apart, width)
        else:
            numbered, attribute = AROUND.get(name, ("/", ""))
            plain = f"{attribute}/{numbered.split('/')[1]}"
            theirs = tail.get(name) or (plain if named else f"layer_with_weights{numbered}")
            if theirs.endswith("kernel"):
                tensor = tensor.t()
        inside = "" if name in tail else root
        result[f"{inside}{theirs}/.ATTRIBUTES/VARIABLE_VALUE"] = tensor.contiguous()
    return result


#: Around the layers: of the functional encoder, and of the one whose layers are attributes.
AROUND = {
    "embeddings.word_embeddings.weight": ("-0/embeddings", "_embedding_layer"),
    "embeddings.position_embeddings.weight": ("-1/embeddings", "_position_embedding_layer"),
    "embeddings.token_type_embeddings.weight": ("-2/embeddings", "_type_embedding_layer"),
    "embeddings.LayerNorm.weight": ("-3/gamma", "_embedding_norm_layer"),
    "embeddings.LayerNorm.bias": ("-3/beta", "_embedding_norm_layer"),
    "pooler.dense.weight": ("-6/kernel", "_pooler_layer"),
    "pooler.dense.bias": ("-6/bias", "_pooler_layer"),
}
MASKED_LM = {
    "embeddings.word_embeddings.weight": "masked_lm/embedding_table",
    "cls.predictions.bias": "masked_lm/output_bias.Sbias",
    "cls.predictions.transform.dense.weight": "masked_lm/dense/kernel",
    "cls.predictions.transform.dense.bias": "masked_lm/dense/bias",
    "cls.predictions.transform.LayerNorm.weight": "masked_lm/layer_norm/gamma",
    "cls.predictions.transform.LayerNorm.bias": "masked_lm/layer_norm/beta",
}


def inside_model(names_of):
    return {name: f"model/{theirs}" for name, theirs in names_of.items()}


CLASSIFIER = {
    "classifier.weight": "model/layer_with_weights-1/out_proj/kernel",
    "classifier.bias": "model/layer_with_weights-1/out_proj/bias",
}
SECOND = "model/classification_heads/0"
POOLER = {
    "pooler.dense.weight": f"{SECOND}/dense/kernel",
    "pooler.dense.bias": f"{SECOND}/dense/bias",
    "cls.seq_relationship.weight": f"{SECOND}/out_proj/kernel",
    "cls.seq_relationship.bias": f"{SECOND}/out_proj/bias",
}
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
    source = _garden(state, root, tail, output, named)
    end = ".ATTRIBUTES/VARIABLE_VALUE"
    first = next(iter(source)).removesuffix(end)
    noise = {
        "_CHECKPOINTABLE_OBJECT_GRAPH": Unread((), "string"),
        f"save_counter/{end}": torch.tensor(3),
        f"optimizer/beta_1/{end}": torch.tensor(0.5),
        f"{first}.OPTIMIZER_SLOT/optimizer/m/{end}": torch.zeros(3),
    }
    table = MODEL_GARDEN
    if class_name == PRETRAINING:  # it has a pooler of its own
        table = MODEL_GARDEN_PRETRAINER
        noise[f"{root}layer_with_weights-6/kernel/{end}"] = torch.zeros(6, 6)
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
