"""The codertimo variant: outputs of its own software, and its formulas written anew in float64."""

import math

import pytest
import torch
from torch.nn import functional

from hf_bert_impl import (
    BertConfig,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertModel,
)
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS
from tests.model.cases import (
    BACKENDS,
    assert_as_fixture,
    assert_same,
    largest,
    of_fixture,
    outputs,
    random_config,
    random_labels,
    random_model,
)

#: Sizes of tests/fixtures/codertimo; 512 positions are hard-wired in the original.
FIXTURE_SIZES = dict(
    vocab_size=139,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=512,
)
LAYER_NAMES = {
    "attention.linear_layers.0": "attention.self.query",
    "attention.linear_layers.1": "attention.self.key",
    "attention.linear_layers.2": "attention.self.value",
    "attention.output_linear": "attention.output.dense",
    "input_sublayer.norm": "attention.output.LayerNorm",
    "feed_forward.w_1": "intermediate.dense",
    "feed_forward.w_2": "output.dense",
    "output_sublayer.norm": "output.LayerNorm",
}
HEAD_NAMES = {
    "bert.embedding.token.weight": "bert.embeddings.word_embeddings.weight",
    "bert.embedding.segment.weight": "bert.embeddings.token_type_embeddings.weight",
    "mask_lm.linear.weight": "cls.predictions.decoder.weight",
    "mask_lm.linear.bias": "cls.predictions.decoder.bias",
    "next_sentence.linear.weight": "cls.seq_relationship.weight",
    "next_sentence.linear.bias": "cls.seq_relationship.bias",
}
ENDINGS = {"weight": "weight", "bias": "bias", "a_2": "weight", "b_2": "bias"}


def names(layers):
    """The original's parameter names to ours."""
    table = dict(HEAD_NAMES)
    for number in range(layers):
        for theirs, ours in LAYER_NAMES.items():
            pair = ("a_2", "b_2") if theirs.endswith("norm") else ("weight", "bias")
            for ending in pair:
                table[f"bert.transformer_blocks.{number}.{theirs}.{ending}"] = (
                    f"bert.encoder.layer.{number}.{ours}.{ENDINGS[ending]}"
                )
    return table


def codertimo(head="BertForPreTraining", **fields):
    """A random model, a batch as the original's data set makes it, and what is not padding."""
    values = dict(intermediate_size=52, num_hidden_layers=3, max_position_embeddings=23)
    config = random_config(3, head, **(CODERTIMO_FIELDS | values | fields))
    generator = torch.Generator().manual_seed(0)
    real = torch.arange(11) < torch.tensor((11, 4, 7, 1, 7))[:, None]
    ids = torch.randint(1, config.vocab_size, real.shape, generator=generator) * real
    segments = (1 + (torch.arange(11) > 2).long()) * real  # padding is 0 in both
    return random_model(head, config), {"input_ids": ids, "token_type_ids": segments}, real


@pytest.fixture(scope="module")
def original(request):
    """The weights of the original software, its outputs, and for which batch."""
    folder = request.path.parents[2] / "fixtures" / "codertimo"
    return torch.load(folder / "bertlm.state_dict.pt", weights_only=True), *of_fixture(folder)


@pytest.fixture(scope="module")
def saved(original, tmp_path_factory):
    weights, _, _ = original
    model = BertForPreTraining(BertConfig(**CODERTIMO_FIELDS, **FIXTURE_SIZES))
    table = names(2)
    assert set(weights) == {*table, "bert.embedding.position.pe"}
    model.load_state_dict({table[name]: weights[name] for name in table}, strict=True)
    folder = tmp_path_factory.mktemp("codertimo")
    model.save_pretrained(folder)
    return folder


# What follows is the original's arithmetic, from its formulas. `p` are the dropout probabilities.


def original_norm(x, scale, shift):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / (x.shape[-1] - 1)
    return scale * (x - mean) / (variance.sqrt() + 1e-6) + shift


def original_positions(length, width):
    table = torch.zeros(length, width, dtype=torch.float64)
    for place in range(length):
        for column in range(width):
            angle = place * math.exp(-(column // 2 * 2) * math.log(10000.0) / width)
            table[place, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


def original_forward(w, config, ids, segments, p=0.0, p_attention=0.0):
    """Next-sentence and masked-LM log-probabilities, embeddings and layers' outputs."""

    def drop(x, rate=p):
        return functional.dropout(x, rate, training=rate > 0)

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    heads = config.num_attention_heads
    rows, length = ids.shape
    x = functional.embedding(ids, w["bert.embedding.token.weight"], padding_idx=0)
    x = x + original_positions(length, x.shape[-1])
    x = x + functional.embedding(segments, w["bert.embedding.segment.weight"], padding_idx=0)
    x = drop(x)
    states = [x]
    for number in range(config.num_hidden_layers):
        block = f"bert.transformer_blocks.{number}"
        norm = f"{block}.input_sublayer.norm"
        normed = original_norm(x, w[f"{norm}.a_2"], w[f"{norm}.b_2"])
        query, key, value = (
            linear(normed, f"{block}.attention.linear_layers.{i}")
            .view(rows, length, heads, -1)
            .transpose(1, 2)
            for i in range(3)
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        scores = scores.masked_fill((ids > 0)[:, None, None, :] == 0, -1e9)
        attended = drop(scores.softmax(-1), p_attention) @ value
        attended = attended.transpose(1, 2).reshape(rows, length, -1)
        x = x + drop(linear(attended, f"{block}.attention.output_linear"))
        norm = f"{block}.output_sublayer.norm"
        inner = linear(
            original_norm(x, w[f"{norm}.a_2"], w[f"{norm}.b_2"]), f"{block}.feed_forward.w_1"
        )
        inner = (
            0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        )
        x = drop(x + drop(linear(drop(inner), f"{block}.feed_forward.w_2")))
        states.append(x)
    nsp = linear(x[:, 0], "next_sentence.linear").log_softmax(-1)
    return nsp, linear(x, "mask_lm.linear").log_softmax(-1), states


def original_weights(model):
    """The model's weights under the original's names, as leaves of their own."""
    state = model.state_dict()
    return {
        theirs: state[ours].detach().clone().requires_grad_()
        for theirs, ours in names(model.config.num_hidden_layers).items()
    }


def double(model):
    """In float64, the position table too, which is kept rounded to the model's dtype."""
    model.double().bert.embeddings.position_embeddings.reset_table()
    return model


def original_loss(weights, config, batch, labels, **dropout):
    nsp, mlm, _ = original_forward(
        weights, config, batch["input_ids"], batch["token_type_ids"], **dropout
    )
    return functional.nll_loss(nsp, labels["next_sentence_label"]) + functional.nll_loss(
        mlm.transpose(1, 2), labels["labels"], ignore_index=-100
    )


# Outputs of the original software.


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_of_the_original(original, saved, backend, padding_free, masked):
    _, values, batch = original
    model, info = BertForPreTraining.from_pretrained(
        saved, attn_implementation=backend, padding_free=padding_free, output_loading_info=True
    )
    assert not any(info.values()), info
    real = batch["input_ids"] > 0
    batch = batch | ({"attention_mask": real.long()} if masked else {})
    values = values | {"pooled_output": values["sequence_output"][:, 0]}
    compared = assert_as_fixture(model, values, batch, real if padding_free else None)
    assert values.keys() - compared == {"input_ids", "segment_info"}


# The formulas, in float64.


@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_the_originals(backend, padding_free):
    model, batch, real = codertimo(attn_implementation=backend, padding_free=padding_free)
    config = double(model).config
    labels = random_labels("BertForPreTraining", config, batch)
    labels["labels"][~real] = -100
    weights = original_weights(model)
    theirs = original_loss(weights, config, batch, labels)
    theirs.backward()
    ours = model(**batch, **labels).loss
    ours.backward()
    assert largest(ours - theirs) < 1e-10
    parameters = dict(model.named_parameters())
    assert len(parameters) == len(weights)
    for name, ours_name in names(config.num_hidden_layers).items():
        assert largest(parameters[ours_name].grad - weights[name].grad) < 1e-9, name
    assert not parameters["bert.embeddings.token_type_embeddings.weight"].grad[0].any()
    assert not parameters["bert.embeddings.word_embeddings.weight"].grad[0].any()


def test_dropout_stands_where_the_original_has_it():
    """Same seed, same random numbers in the same order, so the same loss in train mode."""
    model, batch, real = codertimo(attn_implementation="eager", padding_free=False)
    config = double(model).train().config
    labels = random_labels("BertForPreTraining", config, batch)
    labels["labels"][~real] = -100
    weights = original_weights(model)
    torch.manual_seed(5)
    theirs = original_loss(weights, config, batch, labels, p=0.13, p_attention=0.17)
    theirs.backward()
    torch.manual_seed(5)
    ours = model(**batch, **labels).loss
    ours.backward()
    assert largest(ours - theirs) < 1e-10
    name = "bert.transformer_blocks.0.feed_forward.w_1.weight"
    gradient = model.bert.encoder.layer[0].intermediate.dense.weight.grad
    assert largest(gradient - weights[name].grad) < 1e-9


def test_new_weights_are_initialised(saved, tmp_path):
    """A checkpoint of the encoder alone, as the original's trainer saves it, takes heads."""
    BertModel.from_pretrained(saved).save_pretrained(tmp_path)
    model, info = BertForNextSentencePrediction.from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"] == {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}
    assert not info["unexpected_keys"]
    fresh = BertModel(model.config)
    assert bool((fresh.encoder.layer[0].output.LayerNorm.weight == 1).all())
    assert not fresh.embeddings.token_type_embeddings.weight[0].any()


# The mask, segments and vocabulary.


def test_padding_is_told_by_the_ids():
    model, batch, real = codertimo()
    wanted = dict(output_hidden_states=True, output_attentions=True)
    expected = outputs(model, batch, **wanted)
    of_queries = real[:, None, None, :].expand(-1, -1, real.shape[1], -1)
    for mask in (real.long(), of_queries):
        assert_same(outputs(model, batch, attention_mask=mask, **wanted), expected, real)
    ones = torch.ones_like(batch["input_ids"])  # a mask that is given is used
    seen = outputs(model, batch, attention_mask=ones).prediction_logits
    assert largest((seen - expected.prediction_logits)[1:][real[1:]]) > 1e-3
    assert largest((seen - expected.prediction_logits)[0]) < 1e-5


def test_resized_vocabulary(tmp_path):
    model, batch, _ = codertimo()
    size, keys = model.config.vocab_size + 6, set(model.state_dict())
    model.resize_token_embeddings(size)
    assert set(model.state_dict()) == keys
    model.save_pretrained(tmp_path)
    found = outputs(BertForPreTraining.from_pretrained(tmp_path), batch)
    assert found.prediction_logits.shape[-1] == size
    assert_same(found, outputs(model, batch), batch)


# The config.


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"variant": "codertim"}, "variant='codertim' is not valid; use one of bert, codertimo"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' does not fit.*hidden_act='gelu_new'"),
        ({"is_decoder": True}, "is_decoder=True does not fit variant='codertimo'"),
        ({"pad_token_id": 3}, "pad_token_id=3"),
        ({"type_vocab_size": 2}, "type_vocab_size=2.*type_vocab_size=3.*CODERTIMO_FIELDS"),
        ({"hidden_size": 1, "num_attention_heads": 1}, "hidden_size=1.*use 2 or more"),
    ],
)
def test_fields_that_do_not_fit(fields, said):
    with pytest.raises(ValueError, match=said) as caught:
        BertConfig(**(CODERTIMO_FIELDS | fields))
    assert "\n" not in str(caught.value)


def test_config_round_trip(tmp_path):
    config = BertConfig(**CODERTIMO_FIELDS, **FIXTURE_SIZES)
    config.save_pretrained(tmp_path)
    again = BertConfig.from_pretrained(tmp_path)
    assert again == config and again.variant == "codertimo"
    config.type_vocab_size = 2
    with pytest.raises(ValueError, match="type_vocab_size=2"):
        BertModel(config)
