"""A checkpoint with NaN in it is refused, but for what is not taken from it."""

import pytest
import torch

import hf_bert_impl
from hf_bert_impl import QuestionAnsweringPipeline, TextEncoder
from tests.damage import spoil

SPOILT = "encoder.layer.1.attention.output.dense.weight"


def test_python_computes_nothing_with_them(save_tiny):
    said = (f"{SPOILT}, and 1 more", "take a checkpoint from before")
    for load, name, words in (
        (TextEncoder.from_pretrained, "BertModel", said),
        (QuestionAnsweringPipeline.from_pretrained, "BertForQuestionAnswering", said),
        (hf_bert_impl.load_any, "BertForMaskedLM", ()),
    ):
        folder = save_tiny(name)
        spoil(folder)
        with pytest.raises(ValueError, match="2 NaN among") as caught:
            load(folder)
        assert all(word in str(caught.value) for word in words)


def test_a_head_that_is_drawn_anew_may_be_spoilt(hf_bert, save_tiny, tmp_path):
    """What a task does not take is not looked at."""
    folder = save_tiny("BertForMaskedLM")
    model = hf_bert_impl.BertForMaskedLM.from_pretrained(folder)
    model.cls.predictions.transform.dense.weight.data.fill_(torch.nan)
    model.save_pretrained(folder)
    (tmp_path / "text.txt").write_text("nice to meet you\n")
    command = ("embed", folder, tmp_path / "text.txt", "-o", tmp_path / "out.npy")
    assert hf_bert(*command).status == 0


def test_narrow_types_make_infinities(hf_bert, one_error_line, save_tiny):
    folder = save_tiny("BertForQuestionAnswering")
    model = hf_bert_impl.BertForQuestionAnswering.from_pretrained(folder)
    model.bert.encoder.layer[0].output.dense.weight.data[4, 5] = 1e6
    model.save_pretrained(folder)
    command = ("answer", folder, "--question", "river?", "--context", "the river")
    one_error_line(hf_bert(*command, "--dtype", "float16"), "load it in float32")
    assert hf_bert(*command).status == 0
