"""`from_pretrained(..., prepare=...)`: loaded and prepared in one call."""

import json

import pytest
import torch
import transformers

import hf_bert_impl
from hf_bert_impl.model import cpu_kernels, prepared
from tests.model.cases import model_and_batch, outputs


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    model, batch = model_and_batch("BertForMaskedLM", 7)
    if prepared.why_not(model.bert.encoder) is not None:
        pytest.skip("prepared inference does not run here")
    model.save_pretrained(folder)
    return folder, model, batch


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (True, None),
        ("auto", "auto"),
        ("float32", "float32"),
        (torch.float32, torch.float32),
        ("int8", "int8"),
        ("bfloat16", "bfloat16"),
    ],
)
def test_as_by_prepare_for_inference(saved, given, dtype):
    folder, _, batch = saved
    found = hf_bert_impl.BertForMaskedLM.from_pretrained(folder, prepare=given)
    expected = hf_bert_impl.BertForMaskedLM.from_pretrained(folder).prepare_for_inference(dtype)
    assert found.bert.encoder.prepared is not None and not found.training
    kernels = [str(one.bert.encoder.prepared.kernels) for one in (found, expected)]
    assert kernels[0] == kernels[1] and found.dtype == expected.dtype
    assert torch.equal(outputs(found, batch)[0], outputs(expected, batch)[0])


@pytest.mark.parametrize("given", [False, None])
def test_not_prepared(saved, given):
    folder, model, batch = saved
    found = hf_bert_impl.BertForMaskedLM.from_pretrained(folder, prepare=given)
    assert found.bert.encoder.prepared is None
    assert torch.equal(outputs(found, batch)[0], outputs(model, batch)[0])


def test_through_auto_classes_with_the_dtype_that_is_loaded(saved):
    folder, _, _ = saved
    with hf_bert_impl.registered():
        model, info = transformers.AutoModelForMaskedLM.from_pretrained(
            folder, prepare=True, dtype=torch.bfloat16, output_loading_info=True
        )
    assert not info["missing_keys"] and model.dtype == torch.bfloat16
    if cpu_kernels.why_no_kernels(torch.bfloat16) is None:
        assert model.bert.encoder.prepared.kernels.dtype == torch.bfloat16


def test_a_saved_model_does_not_remember_it(saved, tmp_path):
    model = hf_bert_impl.BertForMaskedLM.from_pretrained(saved[0], prepare="int8")
    model.save_pretrained(tmp_path)
    assert "prepare" not in json.loads((tmp_path / "config.json").read_text())
    assert hf_bert_impl.BertModel.from_pretrained(tmp_path).encoder.prepared is None


@pytest.mark.parametrize("given", ["float7", "", "int4", 1, 0, 8, torch.int32, ["int8"], "True"])
def test_a_wrong_value_is_refused_before_anything_is_read(given):
    with pytest.raises(ValueError, match=r"^prepare=.*is not known; use one of .*int8") as error:
        hf_bert_impl.BertModel.from_pretrained("/no/such/folder", prepare=given)
    assert "\n" not in str(error.value)
