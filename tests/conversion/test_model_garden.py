"""TensorFlow 2's object-based checkpoints, by names and shapes made without the table."""

import re

import pytest

from hf_bert_impl.conversion.architecture import check_config, fit, infer
from hf_bert_impl.conversion.maps.model_garden import MODEL_GARDEN, MODEL_GARDEN_PRETRAINER
from hf_bert_impl.conversion.maps.tables import detect
from hf_bert_impl.conversion.planning import plan
from hf_bert_impl.conversion.tensors import TensorInfo
from hf_bert_impl.errors import InputError
from tests.conversion.cases import (
    CLASSIFICATION,
    MASKED,
    PRETRAINING,
    Memory,
    assert_same,
    random_model,
)


def _garden(state, root, tail, output="_attention_layer/_output_dense", named=False):
    """Names and shapes as official.nlp 2.3.0 and 2.15.0 write them, made without the table.

    `tail` has the names that do not lie under the encoder's `root`; three heads, two layers.
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
    return Memory(result)


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
LATER, BEFORE = "_attention_layer/_output_dense", "_attention_output_dense"


@pytest.mark.parametrize(
    ("class_name", "root", "output", "named", "tail"),
    [
        ("BertModel", "model/", BEFORE, False, {}),
        ("BertModel", "", LATER, True, {}),
        (MASKED, "encoder/", LATER, False, MASKED_LM),
        (MASKED, "model/encoder_network/", LATER, True, inside_model(MASKED_LM)),
        (CLASSIFICATION, "model/layer_with_weights-0/", LATER, False, CLASSIFIER),
    ],
)
def test_model_garden(class_name, root, output, named, tail):
    state, _ = random_model(class_name, num_labels=4)
    source = _garden(state, root, tail, output, named)
    end = ".ATTRIBUTES/VARIABLE_VALUE"
    first = next(iter(source.tensors)).removesuffix(end)
    noise = {
        "_CHECKPOINTABLE_OBJECT_GRAPH": TensorInfo("", (), "string"),
        f"save_counter/{end}": TensorInfo("", (), "int64"),
        f"optimizer/beta_1/{end}": TensorInfo("", (), "float32"),
        f"{first}.OPTIMIZER_SLOT/optimizer/m/{end}": TensorInfo("", (3,), "float32"),
    }
    tensors = source.tensors | noise
    assert detect(tensors) is MODEL_GARDEN
    whole = plan(MODEL_GARDEN, tensors)
    assert set(whole.ignored) == set(noise)
    found = infer(whole, {})
    assert found.class_name == class_name
    cut = fit(whole, class_name, check_config({}, found))  # the shapes tell the heads
    assert found.sizes["num_attention_heads"] == 3
    assert not cut.missing
    assert_same({name: cut.read(source, name) for name in cut.steps}, state)
    with pytest.raises(InputError, match=r"num_attention_heads 2 \(the tensors have 3\)"):
        check_config({"num_attention_heads": 2}, found)


def test_model_garden_pretrainer_has_a_pooler_of_its_own():
    state, fields = random_model(PRETRAINING)
    tail = inside_model(MASKED_LM) | {
        "pooler.dense.weight": "model/classification_heads/0/dense/kernel",
        "pooler.dense.bias": "model/classification_heads/0/dense/bias",
        "cls.seq_relationship.weight": "model/classification_heads/0/out_proj/kernel",
        "cls.seq_relationship.bias": "model/classification_heads/0/out_proj/bias",
    }
    root = "model/encoder_network/"
    source = _garden(state, root, tail)
    unused = f"{root}layer_with_weights-6/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    tensors = source.tensors | {unused: TensorInfo(unused, (6, 6), "float32")}
    assert detect(tensors) is MODEL_GARDEN_PRETRAINER
    whole = plan(MODEL_GARDEN_PRETRAINER, tensors)
    assert list(whole.ignored) == [unused]
    cut = fit(whole, infer(whole, {}).class_name, fields)
    assert_same({name: cut.read(source, name) for name in cut.steps}, state)
