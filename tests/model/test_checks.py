"""Bad input ends in one clear line before anything is computed."""

import pytest
import torch

from hf_bert_impl.model.layers import BertEmbeddings
from hf_bert_impl.model.modeling_bert import BertModel
from tests.model.cases import random_config, random_model

SIZES = dict(vocab_size=61, max_position_embeddings=19, type_vocab_size=2)


@pytest.fixture
def nothing_is_computed(monkeypatch):
    monkeypatch.setattr(BertEmbeddings, "forward", lambda *_, **__: pytest.fail("computed first"))


IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
ONES, LONG = torch.ones(2, 4), torch.ones(1, 25).long()
TOO_LONG = "20 tokens.*at most 19.*truncat"


def refuses(model, said, *args, **inputs):
    with pytest.raises(ValueError, match=said) as caught:
        model(*args, **inputs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"input_ids": IDS + 60}, r"input_ids holds 72; allowed is 0 to 60 \(vocab_size=61\)"),
        ({"input_ids": IDS.float()}, "input_ids has dtype torch.float32"),
        ({"input_ids": LONG[:, :20]}, TOO_LONG),
        ({"input_ids": LONG, "cu_seq_lens_q": torch.tensor([0, 5, 25])}, TOO_LONG),
        ({"input_ids": None}, "exactly one of input_ids or inputs_embeds; neither"),
        ({"inputs_embeds": torch.ones(2, 4, 30)}, "both"),
        ({"input_ids": IDS[:0]}, "empty"),
        *(
            ({"attention_mask": torch.ones(shape)}, "attention_mask has shape")
            for shape in ((2, 5), (1, 4), (4,), (2, 3, 4), (2, 1, 4, 5), (2, 1, 3, 4))
        ),
        (
            {"attention_mask": torch.tensor([[0.0, 0, 0, -torch.inf]] * 2)},
            r"holds -inf; a 2-D mask has 1 where .* give attention_mask\[:, None, None\]$",
        ),
        ({"attention_mask": (ONES * -1e4).long()}, r"attention_mask\[:, None, None\].float\(\)$"),
        ({"token_type_ids": IDS}, "token_type_ids holds 12; allowed is 0 to 1"),
        ({"position_ids": IDS + 10}, "position_ids holds 22; allowed is 0 to 18"),
        ({"position_ids": torch.ones(3, 4).long()}, "position_ids has shape"),
        ({"encoder_hidden_states": torch.ones(2, 3, 30)}, "cross-attention"),
        *(
            ({"head_mask": torch.ones(shape)}, "head_mask has shape")
            for shape in ((99,), (3, 5), (1, 1), (3, 2, 1))
        ),
        ({"required_positions": ONES[:, :3] > 0}, r"bool tensor of shape \(2, 4\)"),
        ({"query_expansion_positions": [[1]]}, "query_expansion_positions is a list"),
    ],
)
@pytest.mark.usefixtures("nothing_is_computed")
def test_inputs(inputs, said):
    model = random_model("BertModel", random_config(1, **SIZES))
    refuses(model, said, **{"input_ids": IDS} | inputs)


CLASSIFIER = "BertForSequenceClassification"


@pytest.mark.parametrize(
    ("head", "labels", "said"),
    [
        ("BertForMaskedLM", {"labels": IDS + 60}, r"labels holds 72; .*vocab_size=61.*-100"),
        ("BertForMaskedLM", {"labels": IDS[:, :3]}, r"labels has shape \(2, 3\).*\(2, 4\)"),
        ("BertForNextSentencePrediction", {"labels": torch.tensor([0, 2])}, "holds 2; allowed"),
        (CLASSIFIER, {"labels": [0, 1]}, "labels is a list"),
        (CLASSIFIER, {"labels": torch.tensor([0, 3])}, "num_labels=3"),
        (CLASSIFIER, {"labels": torch.tensor([0, 1, 1])}, r"shape \(3,\)"),
        (CLASSIFIER, {"labels": torch.ones(2, 4)}, r"needs \(2, 3\).* model.config.num_labels = 4"),
        (CLASSIFIER, {"labels": torch.ones(2, 3).long()}, r"or give floats: labels.float\(\)"),
        ("BertLMHeadModel", {"labels": IDS, "shift_labels": IDS + 60}, "shift_labels holds 72"),
        (
            "BertLMHeadModel",
            {"labels": IDS, "logits_to_keep": 2},
            r"shift_labels of shape \(2, 2\)",
        ),
        ("BertForTokenClassification", {"labels": IDS}, "num_labels=3"),
        ("BertForMultipleChoice", {"labels": torch.tensor([0, 4])}, "choices=3"),
        ("BertForQuestionAnswering", {"start_positions": torch.tensor([1])}, "start_positions"),
    ],
)
@pytest.mark.usefixtures("nothing_is_computed")
def test_labels(head, labels, said):
    num_labels = 2 if head == "BertForQuestionAnswering" else 3
    model = random_model(head, random_config(1, head, **SIZES, num_labels=num_labels))
    ids = IDS[:, None].repeat(1, 3, 1) if head == "BertForMultipleChoice" else IDS
    refuses(model, said, ids, **labels)
    assert model.config.problem_type is None  # a failing call sets no problem type


def test_calls_of_other_kinds():
    config = random_config(1, **SIZES, is_decoder=True, add_cross_attention=True)
    model = random_model("BertModel", config)
    rows = torch.ones(3, 3, config.hidden_size)
    refuses(model, "encoder_hidden_states has shape", IDS, encoder_hidden_states=rows)
    for mask, said in ((-1e9 * torch.ones(2, 3), "holds -1e"), (torch.ones(2, 4), "has shape")):
        other = {"encoder_hidden_states": rows[:2], "encoder_attention_mask": mask}
        refuses(model, f"encoder_attention_mask {said}", IDS, **other)
    choices = random_model("BertForMultipleChoice", random_config(1, **SIZES))
    for given in ({"input_ids": IDS}, {}, {"inputs_embeds": torch.ones(2, 3, 4)}):
        refuses(choices, "batch, choices, sequence", **given)


def test_values_are_looked_at_on_the_cpu_only():
    """On another device a look would wait for it; shapes are still checked."""
    with torch.device("meta"):
        model = BertModel(random_config(1, **SIZES))
        longest = torch.full((2, 19), 99)
        assert model(longest).last_hidden_state.shape[:2] == (2, 19)
        with pytest.raises(ValueError, match="attention_mask has shape"):
            model(IDS.to("meta"), attention_mask=torch.ones(2, 5))
