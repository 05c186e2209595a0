"""State dicts in both directions, every kind of checkpoint file, dtypes, devices, tying."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import hf_bert_impl
from hf_bert_impl import BertConfig, BertForMaskedLM, BertModel
from hf_bert_impl.model.preparing import prepared_kernels
from hf_bert_impl.parity import reference_model
from tests.model.cases import (
    MASKED_LM,
    assert_as_fixture,
    model_and_batch,
    of_fixture,
    outputs,
    random_config,
    random_model,
)


def load(name, folder, **options):
    return getattr(hf_bert_impl, name).from_pretrained(folder, output_loading_info=True, **options)


def new_decoder(model):
    decoder = torch.nn.Linear(model.config.hidden_size, model.config.vocab_size)
    model.set_output_embeddings(decoder)


@pytest.mark.parametrize("saver", ["ours", "theirs"])
@pytest.mark.parametrize(
    "change", [new_decoder, lambda m: m.resize_token_embeddings(m.config.vocab_size), None]
)
@pytest.mark.parametrize("head", ["BertForMaskedLM", "BertLMHeadModel"])
def test_an_untied_bias_is_loaded(tmp_path, head, change, saver):
    """Also from a file that has it under one of its names, as transformers' own files may."""
    ours = random_model(head, random_config(2, head, tie_word_embeddings=False))
    model = ours if saver == "ours" else reference_model(ours)
    if change is not None:
        change(model)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    names = ["cls.predictions.bias", "cls.predictions.decoder.bias"]
    if saver == "ours":
        assert tensors.keys() >= set(names)
    ids = {"input_ids": torch.tensor([[5, 6, 7]])}
    for name in [name for name in names if name in tensors]:
        value = tensors[names[1]] if names[1] in tensors else tensors[names[0]]
        rest = {key: tensor for key, tensor in tensors.items() if key not in names}
        save_file(rest | {name: value}, tmp_path / "model.safetensors", {"format": "pt"})
        again, info = load(head, tmp_path)
        assert not any(info.values()), info
        assert (outputs(again, ids)[0] - outputs(model, ids)[0]).abs().max() < 2e-5
        words = again.get_input_embeddings().weight
        assert again.get_output_embeddings().weight is not words
        assert again.cls.predictions.bias is not again.cls.predictions.decoder.bias


CHECKPOINTS = (
    *("hf_legacy", "hf_legacy_sharded", "hf_safetensors", "hf_safetensors_sharded"),
    *("hf_base_no_prefix", "hf_mlm_no_pooler", "hf_bf16_classifier"),
    "hf_legacy_fp16_token_classifier",
    # Of 2018: other names in LayerNorm, no decoder bias, and no config.json.
    "pytorch_pretrained_bert",
)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_of_older_software(fixtures_dir, tmp_path, name):
    """Files with position_ids, tied decoders, half precision, shards: outputs of who wrote them."""
    folder = shutil.copytree(fixtures_dir / name, tmp_path, dirs_exist_ok=True)
    if not (folder / "config.json").exists():
        fields = json.loads((folder / "bert_config.json").read_text())
        BertConfig(**fields, architectures=["BertForPreTraining"]).save_pretrained(folder)
    (head,) = BertConfig.from_pretrained(folder).architectures
    source = folder if (folder / "expected.npz").exists() else fixtures_dir / "hf_legacy"
    values, batch = of_fixture(source)
    for padding_free in (True, False):
        model, info = load(head, folder, padding_free=padding_free)
        assert not any(info.values()), info
        compared = assert_as_fixture(model.float(), values, batch, batch["attention_mask"].bool())
        assert len(compared) >= 4


def tie_holds(model):
    decoder, words = model.get_output_embeddings(), model.get_input_embeddings()
    return decoder.weight is words.weight and decoder.bias is model.cls.predictions.bias


@pytest.mark.parametrize("head", [*MASKED_LM, "BertLMHeadModel"])
def test_tying_survives_save_load_and_resize(tmp_path, head):
    config = random_config(1, head, tie_word_embeddings=True, vocab_size=50)
    model = random_model(head, config)
    assert tie_holds(model)
    model.save_pretrained(tmp_path)
    model = load(head, tmp_path)[0]
    before = model.get_input_embeddings().weight.detach().clone()
    model.resize_token_embeddings(57)
    assert tie_holds(model)
    assert torch.equal(model.get_input_embeddings().weight[:50], before)
    ids = torch.tensor([[56, 3]])
    assert model(ids)[0].shape == (1, 2, 57)
    model.resize_token_embeddings(41)
    assert tie_holds(model)
    with pytest.raises(ValueError, match="vocab_size=41"):
        model(ids)


# --- from_pretrained(..., prepare=...) -------------------------------------------------------


@pytest.fixture
def saved(needs_kernels, tmp_path):
    model, batch = model_and_batch("BertForMaskedLM", 7)
    model.save_pretrained(tmp_path)
    return tmp_path, batch


@pytest.mark.parametrize(
    ("given", "dtype"),
    [(True, None), ("auto", "auto"), (torch.float32, torch.float32), ("int8", "int8")],
)
def test_prepared_in_the_same_call(saved, given, dtype):
    folder, batch = saved
    found = BertForMaskedLM.from_pretrained(folder, prepare=given)
    expected = BertForMaskedLM.from_pretrained(folder).prepare_for_inference(dtype)
    assert prepared_kernels(found) is not None and not found.training
    assert prepared_kernels(found) == prepared_kernels(expected) and found.dtype == expected.dtype
    assert torch.equal(outputs(found, batch)[0], outputs(expected, batch)[0])


def test_prepared_through_auto_classes_and_not_remembered(saved, registered):
    folder, _ = saved
    auto = transformers.AutoModelForMaskedLM
    model = auto.from_pretrained(folder, prepare=True, dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    auto.from_pretrained(folder, prepare="int8").save_pretrained(folder)
    assert "prepare" not in json.loads((folder / "config.json").read_text())
    for given in ({}, {"prepare": False}, {"prepare": None}):
        assert prepared_kernels(BertModel.from_pretrained(folder, **given)) is None


@pytest.mark.parametrize("given", ["float7", "", 1, 0, torch.int32, ["int8"], "True"])
def test_prepare_of_a_wrong_value_is_refused_before_anything_is_read(given):
    with pytest.raises(ValueError, match=r"^prepare=.*is not known; use one of .*int8") as error:
        BertModel.from_pretrained("/no/such/folder", prepare=given)
    assert "\n" not in str(error.value)
