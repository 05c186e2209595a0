"""Sequences end to end in one row: never attending across, one pooled vector each."""

import pytest
import torch
from transformers import DataCollatorWithFlattening, DynamicCache

from hf_bert_impl import BertModel
from hf_bert_impl.model.layers import BertEmbeddings
from hf_bert_impl.parity.comparison import reference_model
from tests.model.cases import HEADS, random_config, random_labels, random_model

LENGTHS = (5, 1, 8, 5, 3)
BACKENDS = ("eager", "sdpa")


def sequences(config, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "input_ids": torch.randint(1, config.vocab_size, (n,), generator=generator),
            "token_type_ids": torch.randint(0, config.type_vocab_size, (n,), generator=generator),
        }
        for n in LENGTHS
    ]


def packed(rows):
    """One row, as DataCollatorWithFlattening lays it out, with token types."""
    return {name: torch.cat([row[name] for row in rows])[None] for name in rows[0]}


def positions():
    return torch.cat([torch.arange(n) for n in LENGTHS])[None]


def totals():
    return torch.tensor([0, *LENGTHS]).cumsum(0).int()


FORMS = {
    "positions": lambda: {"position_ids": positions()},
    "totals": lambda: {"cu_seq_lens_q": totals(), "max_length_q": 8},
    "both": lambda: {
        "position_ids": positions(),
        "cu_seq_lens_q": totals(),
        "cu_seq_lens_k": totals(),
        "max_length_q": 8,
        "max_length_k": 8,
    },
}


def alone(model, rows):
    with torch.no_grad():
        return [model(**{k: v[None] for k, v in row.items()}) for row in rows]


@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("kind", ["absolute", "relative_key_query", "sinusoidal"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_sequence_is_as_if_alone(backend, form, kind, padding_free):
    config = random_config(
        1,
        type_vocab_size=3,
        position_embedding_type=kind,
        attn_implementation=backend,
        padding_free=padding_free,
    )
    model = random_model("BertModel", config)
    rows = sequences(config)
    with torch.no_grad():
        output = model(**packed(rows), **FORMS[form](), output_hidden_states=True)
    assert output.last_hidden_state.shape == (1, 22, config.hidden_size)
    assert output.pooler_output.shape == (len(LENGTHS), config.hidden_size)
    start = 0
    for number, single in enumerate(alone(model, rows)):
        stop = start + LENGTHS[number]
        states = output.last_hidden_state[0, start:stop]
        assert (states - single.last_hidden_state[0]).abs().max() < 1e-5
        assert (output.pooler_output[number] - single.pooler_output[0]).abs().max() < 1e-5
        assert output.hidden_states[1].shape == (1, 22, config.hidden_size)
        start = stop


def test_the_collator_of_transformers():
    config = random_config(2, "BertForTokenClassification")
    model = random_model("BertForTokenClassification", config)
    rows = [{"input_ids": row["input_ids"].tolist()} for row in sequences(config)]
    for options in ({}, {"return_flash_attn_kwargs": True}):
        batch = DataCollatorWithFlattening(return_tensors="pt", **options)(
            [{**row, "labels": [1] * len(row["input_ids"])} for row in rows]
        )
        batch.pop("labels")
        with torch.no_grad():
            logits = model(**batch).logits
            single = model(torch.tensor([rows[2]["input_ids"]])).logits
        assert (logits[0, 6:14] - single[0]).abs().max() < 1e-5


def test_a_changed_document_leaves_the_others_bit_by_bit():
    config = random_config(1, type_vocab_size=3)
    model = random_model("BertModel", config)
    batch = packed(sequences(config)) | FORMS["positions"]()
    with torch.no_grad():
        before = model(**batch).last_hidden_state[0]
        batch["input_ids"][0, 7] = (batch["input_ids"][0, 7] + 1) % config.vocab_size
        after = model(**batch).last_hidden_state[0]
    assert torch.equal(before[:6], after[:6])
    assert torch.equal(before[14:], after[14:])
    assert not torch.equal(before[6:14], after[6:14])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "head",
    [
        "BertForPreTraining",
        "BertForMaskedLM",
        "BertForNextSentencePrediction",
        "BertForSequenceClassification",
        "BertForTokenClassification",
    ],
)
def test_losses_equal_those_of_the_padded_batch(head, training):
    config = random_config(
        3,
        head,
        type_vocab_size=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout=0.0,
    )
    model = random_model(head, config).train(training)
    rows = sequences(config)
    flat = packed(rows)
    padded = {
        name: torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], batch_first=True)
        for name in flat
    }
    mask = torch.arange(8) < torch.tensor(LENGTHS)[:, None]
    labels = random_labels(head, config, padded)
    flat_labels = dict(labels)
    if "labels" in labels and labels["labels"].dim() == 2:
        labels["labels"] = labels["labels"].masked_fill(~mask, -100)
        flat_labels["labels"] = labels["labels"][mask][None]
    a = model(**padded, attention_mask=mask.long(), **labels)
    b = model(**flat, position_ids=positions(), **flat_labels)
    assert torch.allclose(a.loss, b.loss, rtol=1e-5)
    a.loss.backward()
    padded_gradients = {
        n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
    }
    model.zero_grad()
    b.loss.backward()
    for name, gradient in padded_gradients.items():
        other = model.get_parameter(name).grad
        assert (gradient - other).abs().max() < 2e-5 * gradient.abs().max().clamp(min=0.1), name


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_decoder_does_not_look_back_into_another_document(backend, use_cache):
    config = random_config(1, "BertLMHeadModel", attn_implementation=backend)
    model = random_model("BertLMHeadModel", config)
    rows = [{"input_ids": row["input_ids"]} for row in sequences(config)]
    with torch.no_grad():
        logits = model(**packed(rows), position_ids=positions(), use_cache=use_cache).logits
    start = 0
    for number, single in enumerate(alone(model, rows)):
        stop = start + LENGTHS[number]
        assert (logits[0, start:stop] - single.logits[0]).abs().max() < 1e-5
        start = stop


WAYS = {
    "as it comes": lambda model: model,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "compiled whole": lambda model: torch.compile(model, backend="eager", fullgraph=True),
}
GIVEN = {
    "positions": lambda: {"position_ids": positions()},
    "positions, ones": lambda: {"position_ids": positions(), "attention_mask": ones()},
    "totals": lambda: {"cu_seq_lens_q": totals(), "max_length_q": 8},
    "totals, ones": lambda: {"cu_seq_lens_q": totals(), "attention_mask": ones()},
    # Totals say where a sequence ends, positions only what is added to a token.
    "totals, positions through": lambda: {"cu_seq_lens_q": totals(), "position_ids": through()},
}


def ones():
    return torch.ones(1, 22, dtype=torch.long)


def through():
    return torch.arange(22)[None]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def split(found, expected):
    """Largest difference of outputs by key: one row of `found`, and each sequence alone."""
    differences = {}
    for key in expected[0]:
        value = found[key]
        if key in ("past_key_values", "hidden_states"):
            continue
        by_token = value.ndim == 3 or key in ("start_logits", "end_logits")
        whole = torch.cat([single[key] for single in expected], 1 if by_token else 0)
        assert value.shape == whole.shape, key
        differences[key] = (value - whole).abs().max().item()
    return differences


EVERY_HEAD = [(head, "as it comes") for head in HEADS if head != "BertForMultipleChoice"]
# Compiling takes its time: the head whose outputs are of both kinds.
COMPILED = [("BertForPreTraining", "compiled"), ("BertForPreTraining", "compiled whole")]


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("head", "way"), EVERY_HEAD + COMPILED)
def test_every_head_as_upstream_computes_each_sequence_alone(head, backend, given, way):
    config = random_config(
        5,
        head,
        type_vocab_size=3,
        num_hidden_layers=2,
        max_position_embeddings=33,
        attn_implementation=backend,
    )
    model = random_model(head, config)
    reference = reference_model(model)
    rows = sequences(config)
    inputs = GIVEN[given]()
    at = inputs["position_ids"] if "through" in given else positions()
    expected = [
        reference(**{name: value[None] for name, value in row.items()}, position_ids=place)
        for row, place in zip(rows, at.split(LENGTHS, 1), strict=True)
    ]
    with torch.no_grad():
        found = WAYS[way](model)(**packed(rows), **inputs)
    assert max(split(found, expected).values()) < 2e-5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize(
    ("way", "pooled"), [("as it comes", True), ("as it comes", False), ("compiled whole", True)]
)
def test_decoders(way, given, backend, pooled):
    config = random_config(
        1,
        type_vocab_size=3,
        num_hidden_layers=2,
        is_decoder=True,
        max_position_embeddings=33,
        attn_implementation=backend,
    )
    model = random_model("BertModel", config) if pooled else BertModel(config, False).eval()
    rows, inputs = sequences(config), GIVEN[given]()
    at = inputs["position_ids"] if "through" in given else positions()
    with torch.no_grad():
        expected = [
            model(**{name: value[None] for name, value in row.items()}, position_ids=place)
            for row, place in zip(rows, at.split(LENGTHS, 1), strict=True)
        ]
        expected = [{k: v for k, v in e.items() if torch.is_tensor(v)} for e in expected]
        found = WAYS[way](model)(**packed(rows), **inputs, use_cache=False)
    assert max(split(found, expected).values()) < 2e-5


@pytest.mark.parametrize(
    ("given", "way", "is_decoder"),
    [
        ("positions", "as it comes", True),
        ("positions", "compiled", False),
        ("totals", "compiled", True),
    ],
)
def test_flex_attention(given, way, is_decoder):
    config = random_config(
        1,
        type_vocab_size=3,
        hidden_size=32,
        num_attention_heads=2,
        num_hidden_layers=1,
        is_decoder=is_decoder,
    )
    model = random_model("BertModel", config)
    rows = sequences(config)
    with torch.no_grad():
        expected = model(**packed(rows), **GIVEN[given]())
        model.set_attn_implementation("flex_attention")
        found = WAYS[way](model)(**packed(rows), **GIVEN[given]())
    assert found.pooler_output.shape == expected.pooler_output.shape
    for key in ("last_hidden_state", "pooler_output"):
        assert (found[key] - expected[key]).abs().max() < 1e-5


@pytest.mark.parametrize("head", ["BertForPreTraining", "BertForSequenceClassification"])
@pytest.mark.parametrize("given", ["positions", "totals"])
@pytest.mark.parametrize("way", ["traced", "exported"])
def test_recorded_programs_take_other_lengths(way, given, head):
    config = random_config(5, head, type_vocab_size=3, num_hidden_layers=2)
    model = random_model(head, config)
    rows = sequences(config)
    batch = packed(rows)

    class Program(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, token_type_ids, told):
            name = "position_ids" if given == "positions" else "cu_seq_lens_q"
            out = self.model(input_ids, token_type_ids=token_type_ids, **{name: told})
            return {k: v for k, v in out.items() if k != "past_key_values"}

    def told(lengths):
        if given == "positions":
            return torch.cat([torch.arange(n) for n in lengths])[None]
        return torch.tensor([0, *lengths]).cumsum(0)

    example = (batch["input_ids"], batch["token_type_ids"], told((9, 2, 4, 4, 3)))
    with torch.no_grad():
        if way == "traced":
            program = torch.jit.trace(Program(), example, strict=False)
        else:
            program = torch.export.export(Program(), example).module()
        found = program(batch["input_ids"], batch["token_type_ids"], told(LENGTHS))
        expected = model(**batch, **GIVEN[given]())
    for key, value in found.items():
        assert value.shape == expected[key].shape
        assert (value - expected[key]).abs().max() < 1e-5


def test_on_meta():
    """Shapes are those of the computed outputs, where they can be known."""
    config = random_config(1, type_vocab_size=3)
    model = random_model("BertModel", config)
    batch = packed(sequences(config))
    expected = model(**batch, cu_seq_lens_q=totals())
    model.to("meta")
    batch = {name: value.to("meta") for name, value in batch.items()}
    found = model(**batch, cu_seq_lens_q=totals().to("meta"))
    for key in expected:
        assert found[key].shape == expected[key].shape
    found = model(**batch, position_ids=positions().to("meta"))
    assert found.last_hidden_state.shape == expected.last_hidden_state.shape


def test_compiled_with_positions_of_one_sequence():
    config = random_config(1, type_vocab_size=3, num_hidden_layers=2, max_position_embeddings=33)
    model = random_model("BertModel", config)
    batch = packed(sequences(config))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for place in (through(), positions().flip(1), torch.zeros(1, 22, dtype=torch.long)):
        with torch.no_grad():
            a = model(**batch, position_ids=place)
            b = compiled(**batch, position_ids=place)
        assert b.pooler_output.shape == a.pooler_output.shape == (1, config.hidden_size)
        assert (a.last_hidden_state - b.last_hidden_state).abs().max() < 1e-5
        assert (a.pooler_output - b.pooler_output).abs().max() < 1e-5


@pytest.mark.slow
def test_one_program_for_rows_of_any_length():
    config = random_config(5, type_vocab_size=3, num_hidden_layers=2)
    model = random_model("BertModel", config)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for lengths in ((5, 1, 8), (2, 7, 3, 4), (9,), (1, 1)):
        ids = torch.randint(1, config.vocab_size, (1, sum(lengths)))
        ends = torch.tensor([0, *lengths]).cumsum(0)
        places = torch.cat([torch.arange(n) for n in lengths])[None]
        with torch.no_grad():
            for given in ({"cu_seq_lens_q": ends}, {"position_ids": places}):
                a, b = model(ids, **given), compiled(ids, **given)
                for key in a:
                    assert a[key].shape == b[key].shape
                    assert (a[key] - b[key]).abs().max() < 1e-5


@pytest.mark.parametrize("head", [head for head in HEADS if head != "BertForMultipleChoice"])
def test_what_is_no_packed_input_is_upstreams(head):
    """All positions 0, other orders, or a mask that decides: every token sees every other."""
    config = random_config(5, head, type_vocab_size=3, max_position_embeddings=33, is_decoder=False)
    model = random_model(head, config)
    reference = reference_model(model)
    batch = packed(sequences(config))
    holes = ones()
    holes[0, [3, 17]] = 0
    wide = torch.ones(1, 22, 22, dtype=torch.long)
    for given, theirs in (
        ({"position_ids": torch.zeros(1, 22, dtype=torch.long)}, {}),
        ({"position_ids": positions() + 1}, {}),
        ({"position_ids": positions().flip(1)}, {}),
        ({"position_ids": positions(), "attention_mask": holes}, {}),
        (
            {"position_ids": positions(), "attention_mask": wide},
            {"attention_mask": wide[:, None].bool()},
        ),
    ):
        with torch.no_grad():
            a, b = model(**batch, **given), reference(**batch, **given | theirs)
        attended = given.get("attention_mask", ones())
        attended = (attended if attended.ndim == 2 else ones()).bool()
        for key in b:
            if torch.is_tensor(b[key]):
                there = attended if b[key].shape[:2] == (1, 22) else slice(None)
                assert torch.allclose(a[key][there], b[key][there], atol=1e-5), key


TWO_ROWS = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6]])


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("with_ones", [True, False])
def test_two_packed_rows(head, with_ones, monkeypatch):
    config = random_config(5, head)
    model = random_model(head, config)
    batch = {"input_ids": torch.randint(1, 61, (2, 7)), "position_ids": TWO_ROWS}
    if with_ones:
        batch["attention_mask"] = torch.ones(2, 7)
    if head == "BertForMultipleChoice":
        batch = {name: value[None] for name, value in batch.items()}
    monkeypatch.setattr(BertEmbeddings, "forward", lambda *a, **k: pytest.fail("computed first"))
    with pytest.raises(
        ValueError, match=r"start again at 0 .* batch of 2; .*\(batch, sequence, seq"
    ):
        model(**batch)


@pytest.mark.parametrize("dynamic", [None, True])
def test_two_packed_rows_compiled(dynamic):
    config = random_config(5)
    model = random_model("BertModel", config)
    ids = torch.randint(1, 61, (2, 7))
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=dynamic)
    with torch.no_grad():
        compiled(ids, position_ids=TWO_ROWS[1].expand(2, 7))
        holes = torch.ones(2, 7)
        holes[0, :3] = 0
        compiled(ids, position_ids=TWO_ROWS, attention_mask=holes)
        with pytest.raises(RuntimeError, match=r"start again at 0 .* batch of several"):
            compiled(ids, position_ids=TWO_ROWS)


def test_masks_make_positions_of_two_rows_mere_positions():
    """As tokenizers that pad on the left give them."""
    config = random_config(5)
    model = random_model("BertModel", config)
    reference = reference_model(model)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    places = torch.tensor([[0, 0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6]])
    ids = torch.randint(1, 61, (2, 7), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        a = model(ids, attention_mask=mask, position_ids=places).last_hidden_state
        b = reference(ids, attention_mask=mask, position_ids=places).last_hidden_state
        wide = torch.ones(2, 7, 7)
        c = model(ids, attention_mask=wide, position_ids=TWO_ROWS).last_hidden_state
        d = reference(ids, position_ids=TWO_ROWS).last_hidden_state
    assert (a - b)[mask == 1].abs().max() < 1e-5
    assert (c - d).abs().max() < 1e-5


WRONG_TOTALS = [
    [0, 5, 21],
    [0, 5, 5, 22],
    [1, 22],
    [0],
    [0, 30, 22],
    [0.0, 22.0],
    [[0, 5, 22]],
]


@pytest.mark.parametrize(
    ("wrong", "way"),
    [(wrong, "as it comes") for wrong in WRONG_TOTALS]
    + [([0, 5, 21], "compiled"), ([0, 5, 5, 22], "compiled whole"), ([[0, 22]], "compiled whole")],
)
def test_totals_that_do_not_fit(wrong, way):
    config = random_config(1, type_vocab_size=3)
    model = random_model("BertModel", config)
    error = ValueError if way == "as it comes" else (ValueError, RuntimeError)
    with pytest.raises(error, match=r"cu_seq_lens_q.*(does not fit|ValueError)"):
        WAYS[way](model)(**packed(sequences(config)), cu_seq_lens_q=torch.tensor(wrong))


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"attention_mask": torch.ones(1, 22).index_fill(1, torch.tensor(3), 0)}, "has zeros.*out"),
        ({"attention_mask": torch.ones(1, 22, 22)}, "has 3 dim.*leave the mask out"),
        ({"attention_mask": torch.zeros(1, 1, 22, 22)}, "has 4 dim.*leave the mask out"),
        (
            {"input_ids": torch.ones(2, 11).long(), "token_type_ids": None},
            r"fit.*\(2, 11\).*one row",
        ),
        ({"cu_seq_lens_q": None, "cu_seq_lens_k": totals()}, "cu_seq_lens_k is given without"),
        ({"input_ids": torch.ones(22).long()}, r"input_ids has shape \(22,\)"),
    ],
)
def test_what_does_not_go_with_totals(given, said, is_decoder, monkeypatch):
    config = random_config(1, type_vocab_size=3, is_decoder=is_decoder)
    model = random_model("BertModel", config)
    monkeypatch.setattr(BertEmbeddings, "forward", lambda *a, **k: pytest.fail("computed first"))
    batch = packed(sequences(config)) | {"cu_seq_lens_q": totals()} | given
    with pytest.raises(ValueError, match=said) as caught:
        model(**batch)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["positions", "totals"])
def test_no_cache_holds_packed_input(given):
    model = random_model("BertLMHeadModel", random_config(1, "BertLMHeadModel"))
    ids = torch.randint(1, 61, (1, 22))
    with pytest.raises(ValueError, match=r"past_key_values.*one sequence a row"):
        model(ids, **GIVEN[given](), past_key_values=DynamicCache(config=model.config))


def test_a_packed_decoder_reads_an_encoder():
    config = random_config(1, "BertLMHeadModel", add_cross_attention=True, num_hidden_layers=2)
    model = random_model("BertLMHeadModel", config)
    rows = [{"input_ids": row["input_ids"]} for row in sequences(config)]
    states = torch.randn(1, 9, config.hidden_size, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = [model(row["input_ids"][None], encoder_hidden_states=states) for row in rows]
        for given in ("positions", "totals"):
            found = model(**packed(rows), **GIVEN[given](), encoder_hidden_states=states)
            singles = [{"logits": single.logits} for single in expected]
            assert split(found, singles)["logits"] < 1e-5


@pytest.mark.parametrize("given", [{"position_ids": torch.tensor([[[0, 1, 0, 1]]])}, {}])
def test_multiple_choice_takes_none(given):
    config = random_config(1, "BertForMultipleChoice")
    model = random_model("BertForMultipleChoice", config)
    given = given or {"cu_seq_lens_q": torch.tensor([0, 2, 4])}
    with pytest.raises(ValueError, match="multiple choice takes no packed input"):
        model(torch.ones(1, 1, 4).long(), **given)


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("given", ["positions", "totals"])
def test_the_default_device_is_not_asked(given, is_decoder):
    """A caller may make other things on another device meanwhile, or nothing at all."""
    config = random_config(1, type_vocab_size=3, is_decoder=is_decoder)
    model = random_model("BertModel", config)
    batch = packed(sequences(config)) | GIVEN[given]()
    expected = model(**batch, output_attentions=True)
    with torch.device("meta"):
        found = model(**batch, output_attentions=True)
    assert torch.equal(found.last_hidden_state, expected.last_hidden_state)
    assert torch.equal(found.pooler_output, expected.pooler_output)


@pytest.mark.parametrize("given", ["positions", "totals, ones"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("head", ["BertForSequenceClassification", "BertForNextSentencePrediction"])
def test_losses_of_programs(head, way, given):
    """One label a sequence, as in the call that is computed as it comes."""
    config = random_config(1, head, num_labels=2, type_vocab_size=3)
    model = random_model(head, config)
    batch = packed(sequences(config)) | GIVEN[given]() | {"labels": torch.tensor([0, 1, 1, 0, 1])}
    with torch.no_grad():
        expected = model(**batch | {"position_ids": positions()})
        found = WAYS[way](model)(**batch)
    assert found.logits.shape == (5, 2)
    assert torch.allclose(found.loss, expected.loss, rtol=1e-5)


def test_labels_are_one_a_sequence():
    config = random_config(1, "BertForSequenceClassification", num_labels=3, type_vocab_size=3)
    model = random_model("BertForSequenceClassification", config)
    batch = packed(sequences(config)) | FORMS["positions"]()
    with pytest.raises(ValueError, match=r"this batch needs \(5,\)"):
        model(**batch, labels=torch.tensor([1]))
    assert model(**batch, labels=torch.tensor([0, 1, 2, 0, 1])).logits.shape == (5, 3)


def test_a_compiled_decoder_with_a_cache_sees_its_past():
    """One row, positions and no mask: a step of generation, not packed input."""
    config = random_config(1, "BertLMHeadModel", num_hidden_layers=2)
    model = random_model("BertLMHeadModel", config)
    tokens = torch.tensor([[3, 4, 5, 6, 7]])
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        whole = model(tokens).logits[:, 3:]
        past = model(tokens[:, :3]).past_key_values
        position_ids = torch.tensor([[3, 4]])
        step = compiled(tokens[:, 3:], position_ids=position_ids, past_key_values=past).logits
    assert (whole - step).abs().max() < 1e-5
