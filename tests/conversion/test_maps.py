"""The tables on real checkpoints of every software, and back."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_bert_impl.conversion.architecture import check_config, fit, infer, require_complete
from hf_bert_impl.conversion.maps import names
from hf_bert_impl.conversion.maps.codertimo import CODERTIMO
from hf_bert_impl.conversion.maps.flax import FLAX
from hf_bert_impl.conversion.maps.google_tf1 import GOOGLE_TF1
from hf_bert_impl.conversion.maps.model_garden import MODEL_GARDEN, MODEL_GARDEN_PRETRAINER
from hf_bert_impl.conversion.maps.pytorch import PYTORCH_PRETRAINED_BERT, TRANSFORMERS
from hf_bert_impl.conversion.maps.tables import TABLES, detect
from hf_bert_impl.conversion.planning import invert, plan
from hf_bert_impl.conversion.tensors import TensorInfo
from hf_bert_impl.errors import InputError
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS
from tests.conversion.cases import (
    ANSWERING,
    CHECKPOINTS,
    CHOICE,
    CLASSES,
    CLASSIFICATION,
    MASKED,
    PRETRAINING,
    TOKENS,
    Memory,
    assert_same,
    converted,
    infos,
    random_model,
    reader,
)

TENSORS_OF = {PRETRAINING: 46, CLASSIFICATION: 41, MASKED: 42}


# --- checkpoints that the softwares themselves wrote ------------------------------------------


@pytest.mark.parametrize(("folder", "file", "table", "class_name", "labels"), CHECKPOINTS)
def test_every_tensor_is_mapped_or_ignored(folder, file, table, class_name, labels):
    with reader(folder) as source:
        assert detect(source.tensors) is table
        tensors = dict(source.tensors)
    state, cut, found = converted(folder)
    assert found.class_name == class_name
    assert found.num_labels == labels
    assert not cut.missing
    assert len(state) == TENSORS_OF.get(class_name, 39) + (2 if "relative" in folder else 0)
    used = [step.source.name for step in cut.steps.values()]
    used += [name for step in cut.steps.values() for name, _ in step.copies]
    assert sorted([*used, *cut.ignored]) == sorted(tensors)


@pytest.mark.parametrize(
    "folder",
    [
        *("tf1_sharded", "tf1_classifier", "tf2_h5", "tf2_h5_qa", "flax", "hf_legacy"),
        *("pytorch_pretrained_bert", "hf_base_no_prefix", "positions_relative_key"),
    ],
)
def test_inverse_gives_the_software_its_own_names_and_bits(folder):
    state, cut, found = converted(folder)
    ours = Memory(state)
    table = PYTORCH_PRETRAINED_BERT if folder.startswith("pytorch") else cut.table
    back = invert(table, ours.tensors, found.class_name)
    with reader(folder) as source:
        bookkeeping = {"global_step", "bert.embeddings.position_ids"}
        expected = {n: source.read(n).clone() for n in source.tensors if n not in bookkeeping}
    if folder == "positions_relative_key":  # safetensors leave out what a .bin file has
        expected |= {n: state[base] for n, base in names.TIED.items()}
    assert_same({name: back.read(ours, name) for name in back.steps}, expected)


# --- there and back on random models -----------------------------------------------------------

#: What a software has no place for, or reads back as another class.
NO_PLACE = {
    MODEL_GARDEN: {PRETRAINING, "BertForNextSentencePrediction", ANSWERING},
    MODEL_GARDEN_PRETRAINER: {CLASSIFICATION, CHOICE, TOKENS, ANSWERING},
}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.software)
@given(data=st.data())
@settings(deadline=None, max_examples=6)
def test_there_and_back_is_the_identity(table, data):
    classes = ("BertModel", PRETRAINING) if table is CODERTIMO else CLASSES
    class_name = data.draw(st.sampled_from(classes))
    count, size = data.draw(st.sampled_from([(1, 5), (3, 2), (2, 3)]))
    state, fields = random_model(
        class_name,
        **(CODERTIMO_FIELDS if table is CODERTIMO else {}),
        seed=data.draw(st.integers(0, 99)),
        hidden_size=count * size,
        num_attention_heads=count,
        num_hidden_layers=data.draw(st.integers(1, 11)),
        intermediate_size=data.draw(st.integers(1, 9)),
        vocab_size=data.draw(st.integers(1, 9)),
        num_labels=2 if class_name == ANSWERING else data.draw(st.integers(1, 5)),
    )
    ours = Memory(state)
    if class_name in NO_PLACE.get(table, ()):
        with pytest.raises(InputError, match="has no place"):
            invert(table, ours.tensors, class_name, count)
        return
    there = invert(table, ours.tensors, class_name, count)
    theirs = Memory({name: there.read(ours, name) for name in there.steps})
    assert {n: i for n, i in theirs.tensors.items()} == there.target_infos
    # Without next-sentence head both tables of TensorFlow 2 are right, but for the pooler.
    if table is not MODEL_GARDEN_PRETRAINER:
        assert detect(theirs.tensors) is table
    back = fit(plan(table, theirs.tensors), class_name, fields)
    require_complete(back, class_name)
    assert_same({name: back.read(theirs, name) for name in back.steps}, state)


def test_heads_that_do_not_divide_are_named():
    state, _ = random_model("BertModel")
    with pytest.raises(InputError, match=r"query\.weight has the shape \(6, 6\).* 4 heads"):
        invert(MODEL_GARDEN, Memory(state).tensors, "BertModel", 4)


def test_flax_keeps_a_decoder_that_is_not_tied():
    state, fields = random_model(MASKED, tie_word_embeddings=False)
    assert f"{names.DECODER}.weight" in state
    del state[f"{names.DECODER}.bias"]  # Flax has one bias
    ours = Memory(state)
    there = invert(FLAX, ours.tensors, MASKED)
    assert there.target_infos["cls/predictions/decoder/kernel"].shape == (6, 13)
    theirs = Memory({name: there.read(ours, name) for name in there.steps})
    whole = plan(FLAX, theirs.tensors)
    assert whole.untied(theirs) == (f"{names.DECODER}.weight",)
    back = fit(whole, MASKED, fields)
    found = {name: back.read(theirs, name) for name in back.steps}
    assert_same(found, {**state, f"{names.DECODER}.bias": state[names.SCORES_BIAS]})
    with pytest.raises(InputError, match=r"decoder\.weight\) for which google-research"):
        invert(GOOGLE_TF1, ours.tensors, MASKED)


# --- names around the weights ------------------------------------------------------------------


def test_training_state_of_tensorflow_1_is_ignored():
    with reader("tf1_classifier") as source:
        tensors = dict(source.tensors)
    kernel = "bert/encoder/layer_0/output/dense/kernel"
    slots = ("adam_m", "adam_v", "lamb_m", "Adam", "Adam_1", "LAMB_1", "accum")
    extra = (
        *(f"{kernel}/{slot}" for slot in (*slots, "ExponentialMovingAverage")),
        *("beta1_power", "beta2_power", "training/beta1_power_1", "local_step", "loss_scale"),
        *("good_steps", "batch_finite", "learning_rate"),
    )
    found = plan(detect(tensors), tensors | infos(dict.fromkeys(extra, (1,))))
    assert set(found.ignored) == {*extra, "global_step"}
    with pytest.raises(InputError, match=r"1 tensor \(bert/.*/kernel/sparsity_mask\) that google"):
        plan(GOOGLE_TF1, tensors | infos({f"{kernel}/sparsity_mask": (1,)}))


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module.model.", "state_dict.model."])
@pytest.mark.parametrize("class_name", [MASKED, "BertModel"])
def test_wrapped_models(wrapper, class_name):
    state, fields = random_model(class_name)
    source = Memory({wrapper + name: tensor for name, tensor in state.items()})
    step = {"optimizer_states.0.state.0.exp_avg": TensorInfo("", (6,), "float32")}
    assert detect(source.tensors) is TRANSFORMERS
    whole = plan(TRANSFORMERS, source.tensors | step)
    assert list(whole.ignored) == list(step)
    cut = fit(whole, class_name, fields)
    assert_same({name: cut.read(source, name) for name in cut.steps}, state)


def test_both_spellings_of_layer_norms_are_read():
    state, fields = random_model(MASKED)
    mixed = {
        re.sub(r"(layer\.1.*LayerNorm)\.weight", r"\1.gamma", name): t for name, t in state.items()
    }
    assert len(set(mixed) - set(state)) == 2
    source = Memory(mixed)
    cut = fit(plan(detect(source.tensors), source.tensors), MASKED, fields)
    assert_same({name: cut.read(source, name) for name in cut.steps}, state)


def test_decoder_with_cross_attention():
    state, fields = random_model("BertLMHeadModel", is_decoder=True, add_cross_attention=True)
    assert any("crossattention" in name for name in state)
    source = Memory(state)
    whole = plan(detect(source.tensors), source.tensors)
    assert infer(whole, {"is_decoder": True}).class_name == "BertLMHeadModel"
    assert infer(whole, {}).class_name == MASKED
    assert not fit(whole, "BertLMHeadModel", fields).missing


def test_keras_models_have_a_number_where_there_were_several():
    with reader("tf2_h5") as source:
        several = {
            name.replace("for_pre_training/", "for_pre_training_4/"): info
            for name, info in source.tensors.items()
        }
    assert len(plan(detect(several), several).steps) == 46


ALBERT = "bert/encoder/transformer/group_0/inner_group_0/ffn_1/intermediate/dense/kernel"


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("roberta.embeddings.word_embeddings.weight", "RoBERTa"),
        (ALBERT, "ALBERT"),
        ("electra/embeddings/word_embeddings", "ELECTRA"),
        ("distilbert.transformer.layer.0.attention.q_lin.weight", "DistilBERT"),
        ("bert/encoder/layer_0/bottleneck/input/dense/kernel", "MobileBERT"),
        ("transformer.h.0.attn.c_attn.weight", "GPT-2"),
        ("model.decoder.layers.0.encoder_attn.k_proj.weight", "BART"),
        ("model.embeddings.tok_embeddings.weight", "ModernBERT"),
    ],
)
def test_other_architectures_are_named(name, other):
    bert = {"bert.embeddings.word_embeddings.weight": (7, 3)}
    for tensors in ({name: (3, 3)}, bert | {name: (3, 3)}):
        with pytest.raises(InputError, match=f"is a tensor of .*{other}.*, not of BERT"):
            detect(infos(tensors))


# --- TensorFlow 2's object-based checkpoints ----------------------------------------------------


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
    first = next(iter(source.tensors)).removesuffix(end)
    noise = {
        "_CHECKPOINTABLE_OBJECT_GRAPH": TensorInfo("", (), "string"),
        f"save_counter/{end}": TensorInfo("", (), "int64"),
        f"optimizer/beta_1/{end}": TensorInfo("", (), "float32"),
        f"{first}.OPTIMIZER_SLOT/optimizer/m/{end}": TensorInfo("", (3,), "float32"),
    }
    table = MODEL_GARDEN
    if class_name == PRETRAINING:  # it has a pooler of its own
        table = MODEL_GARDEN_PRETRAINER
        unused = f"{root}layer_with_weights-6/kernel/{end}"
        noise[unused] = TensorInfo(unused, (6, 6), "float32")
    tensors = source.tensors | noise
    assert detect(tensors) is table
    whole = plan(table, tensors)
    assert set(whole.ignored) == set(noise)
    found = infer(whole, {})
    assert found.class_name == class_name
    cut = fit(whole, class_name, check_config({}, found))  # the shapes tell the heads
    assert found.sizes["num_attention_heads"] == 3
    assert not cut.missing
    assert_same({name: cut.read(source, name) for name in cut.steps}, state)
    with pytest.raises(InputError, match=r"num_attention_heads 2 \(the tensors have 3\)"):
        check_config({"num_attention_heads": 2}, found)
