"""BertConfig: defaults, ranges, JSON."""

import copy
import json

import pytest
import torch
import transformers
from transformers import BertConfig as UpstreamConfig

from hf_bert_impl import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS, EXTENDED_MODEL_TYPE

SMALL = dict(hidden_size=24, num_attention_heads=3, num_hidden_layers=1, intermediate_size=29)
IDS = torch.tensor([[5, 6, 7]])


def test_upstreams_fields_and_defaults():
    ours, upstream = BertConfig(), UpstreamConfig()
    fields = upstream.to_dict()
    assert {name: ours.to_dict()[name] for name in fields} == fields
    assert ours.position_embedding_type == "absolute"
    assert ours.padding_free is True
    assert ours.model_type == "bert"


def test_a_model_has_a_config_of_its_own(tmp_path):
    """Pruned heads, a new vocabulary and what labels decide are one model's; its parts share it."""
    config = BertConfig(**SMALL)
    first, second = BertForMaskedLM(config), BertForSequenceClassification(config)
    first.prune_heads({0: [1]})
    first.resize_token_embeddings(71)
    second(IDS, labels=torch.tensor([1]))
    assert config.problem_type is None
    for model, pruned in ((first, {0: [1]}), (second, {})):
        assert model.config.pruned_heads == pruned
        attention = model.bert.encoder.layer[0].attention.self
        assert model.config is model.bert.config is attention.config
        model.save_pretrained(tmp_path)
        type(model).from_pretrained(tmp_path)
    first.config = other = copy.deepcopy(config)
    assert first.bert.encoder.config is other  # as where EncoderDecoderModel gives it its own


def test_json_round_trip_keeps_unknown_fields(tmp_path):
    unknown = dict(finetuning_task="mnli", pooler_fc_size=768)
    config = BertConfig(num_labels=4, **unknown, pruned_heads={"1": [3, 0], "0": []})
    config.save_pretrained(tmp_path)
    again = BertConfig.from_pretrained(tmp_path)
    assert {name: again.to_dict()[name] for name in unknown} == unknown
    assert again == config != BertConfig(num_labels=4)
    assert again.pruned_heads == {1: [0, 3]}


KINDS = ("relative_key", "relative_key_query", "sinusoidal")


@pytest.mark.parametrize(
    "fields", [*({"position_embedding_type": kind} for kind in KINDS), CODERTIMO_FIELDS], ids=str
)
def test_what_upstream_would_compute_wrongly_does_not_load_there(tmp_path, fields):
    BertConfig(**fields).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == EXTENDED_MODEL_TYPE
    with pytest.raises(ValueError, match=EXTENDED_MODEL_TYPE):
        transformers.AutoConfig.from_pretrained(tmp_path)
    assert fields.items() <= vars(BertConfig.from_pretrained(tmp_path)).items()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hidden_size": 25}, "hidden_size=25 is not a multiple of num_attention_heads=12"),
        *(
            ({name: value}, f"{name}={value!r}")
            for name, value in (
                *(("hidden_size", 0), ("vocab_size", -3), ("vocab_size", "many")),
                *(("num_hidden_layers", 1.5), ("num_attention_heads", 0), ("type_vocab_size", 0)),
                *(("intermediate_size", 0), ("max_position_embeddings", 0)),
                *(("attention_probs_dropout_prob", -0.1), ("classifier_dropout", 2)),
                *(("layer_norm_eps", -1e-5), ("initializer_range", -0.02)),
                ("chunk_size_feed_forward", -1),
            )
        ),
        ({"batch_invariant": "yes"}, "batch_invariant='yes' is not valid; use True or False"),
        ({"hidden_act": "gulu"}, "hidden_act='gulu' is not valid.*gelu"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob=1.5.*0 to 1"),
        ({"position_embedding_type": "rotary"}, "position_embedding_type='rotary'.*relative_key"),
        ({"pad_token_id": 30522}, "pad_token_id=30522.*vocab_size=30522"),
        ({"add_cross_attention": True}, "is_decoder=True"),
        ({"per_layer_config": {0: {"intermediate_size": 64}}}, "per_layer_config is not valid"),
        ({"pruned_heads": {12: [0]}}, "pruned_heads"),
        ({"pruned_heads": {0: [12]}}, "pruned_heads"),
        ({"pruned_heads": {0: [1, 1]}}, "different heads"),
        ({"variant": "codertim"}, "variant='codertim' is not valid; use one of bert, codertimo"),
        *(
            (CODERTIMO_FIELDS | fields, said)
            for fields, said in (
                ({"hidden_act": "gelu"}, "hidden_act='gelu' does not fit.*hidden_act='gelu_new'"),
                ({"is_decoder": True}, "is_decoder=True does not fit variant='codertimo'"),
                ({"pad_token_id": 3}, "pad_token_id=3"),
                ({"type_vocab_size": 2}, "type_vocab_size=2.*type_vocab_size=3.*CODERTIMO_FIELDS"),
                ({"hidden_size": 1, "num_attention_heads": 1}, "hidden_size=1.*use 2 or more"),
            )
        ),
    ],
)
def test_bad_values(fields, said):
    with pytest.raises(ValueError, match=said) as caught:
        BertConfig(**fields)
    assert "\n" not in str(caught.value)


def test_a_subclass_maps_names():
    class Mapped(BertConfig):
        attribute_map = {"width": "hidden_size"}  # noqa: RUF012 (transformers' own form)

    assert Mapped(width=24).hidden_size == Mapped(hidden_size=24).width == 24


def test_how_a_model_takes_it(tmp_path):
    """A field that is set later is checked; a stock config makes our model."""
    config = BertConfig(**SMALL, output_attentions=True)
    BertModel._from_config(config, attn_implementation="sdpa").save_pretrained(tmp_path)
    assert BertConfig.from_pretrained(tmp_path).output_attentions is True
    config.hidden_size = 25
    with pytest.raises(ValueError, match="hidden_size=25"):
        BertModel(config)
    model = BertModel(UpstreamConfig(**SMALL))
    assert type(model.config) is BertConfig and model.config.hidden_size == 24
