"""The tables on real checkpoints of every software, and back."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_bert_impl.conversion.architecture import fit, infer, require_complete
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


OPTIMIZER = {"first moment of the optimizer", "second moment of the optimizer"}
TIES = {f"tied to {names.WORDS}.weight", f"tied to {names.SCORES_BIAS}"}


@pytest.mark.parametrize(
    ("folder", "reasons"),
    [
        ("tf1_squad", OPTIMIZER | {"count of training steps", f"not part of {ANSWERING}"}),
        ("flax_sharded", set()),
        ("pytorch_pretrained_bert", {f"tied to {names.WORDS}.weight"}),
        ("hf_legacy", TIES | {"a buffer that holds 0, 1, 2, …"}),
    ],
)
def test_reasons(folder, reasons):
    assert set(converted(folder)[1].ignored.values()) == reasons


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
@settings(deadline=None, max_examples=12)
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


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (["conv1.weight", "conv2.weight", "fc"], r"3 tensors \(conv\*\.weight \(2 times\), fc\)"),
        ([], "the checkpoint has no tensors"),
        (["bert.pooler.dense.weight"], "no tensor is the word embeddings"),
    ],
)
def test_no_known_software(given, match):
    with pytest.raises(InputError, match=match):
        detect(infos(dict.fromkeys(given, (3, 3))))
