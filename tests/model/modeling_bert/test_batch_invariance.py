"""`BertConfig.batch_invariant`: equal bits, never a tolerance."""

import itertools
import random

import pytest
import torch

from hf_bert_impl.model import linear
from hf_bert_impl.model.preparing import prepared_kernels
from hf_bert_impl.parity.tensors import selected_tensors
from tests.model.cases import ENCODER_HEADS, outputs, random_config, random_model

pytestmark = pytest.mark.usefixtures("needs_kernels")
#: Sizes and numbers of heads that fill vectors and threads, and such that do not.
SIZES = [(64, 4), (96, 12), (35, 5), (24, 3), (40, 1), (18, 2)]
LAYOUTS = ("right", "left", "wide", "holes", "words", "packed")


@pytest.fixture(autouse=True)
def same_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def lay_out(sequences, layout, rng):
    """A batch that holds the sequences, and the places of their tokens, (B, S) bool."""
    tokens, lengths = torch.cat(sequences), [len(sequence) for sequence in sequences]
    if layout == "packed":
        totals = torch.tensor([0, *lengths]).cumsum(0)
        return {"input_ids": tokens[None], "cu_seq_lens_q": totals}, tokens[None] > 0
    width = max(lengths) + {"right": 0, "left": 2, "wide": 11, "holes": 5, "words": 3}[layout]
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    if layout == "left":
        mask = mask.flip(1)
    elif layout == "holes":  # the pooler reads column 0
        for row, length in zip(mask, lengths, strict=True):
            row[:] = False
            row[[0, *rng.sample(range(1, width), length - 1)]] = True
    places = torch.cat([torch.arange(length) for length in lengths])
    ids, positions = (
        torch.zeros(mask.shape, dtype=torch.long).masked_scatter(mask, values)
        for values in (tokens, places)
    )
    if layout == "words":  # masked-out ones are computed too
        ids[~mask] = 5
    return {"input_ids": ids, "attention_mask": mask.long(), "position_ids": positions}, mask


def numbers(model, sequences, layout="right", rng=None, **options):
    """The outputs of all sequences, end to end, by name."""
    batch, mask = lay_out(sequences, layout, rng)
    if type(model).__name__ == "BertForMultipleChoice":
        batch = {name: tensor[:, None] for name, tensor in batch.items()}
    found = selected_tensors(model(**batch, output_hidden_states=True, **options), mask)
    if layout == "left":  # there the pooler reads padding
        found = {name: values for name, values in found.items() if len(values) == mask.sum()}
    return found


def assert_as_alone(model, lengths, layout, rng, **options):
    """Compares the bits of sequences in two batches with each sequence alone."""
    sequences = [torch.randint(1, model.config.vocab_size, (n,)) for n in lengths]
    alone = [numbers(model, [sequence], **options) for sequence in sequences]
    order = rng.sample(range(len(sequences)), len(sequences))
    for chosen in (order, order[: len(order) // 2 + 1]):
        found = numbers(model, [sequences[i] for i in chosen], layout, rng, **options)
        for name, values in found.items():
            assert torch.equal(values, torch.cat([alone[i][name] for i in chosen])), name


SLOW = [
    *((head, None, "sdpa") for head in ENCODER_HEADS),
    *(("BertForPreTraining", "float32", "eager"), ("BertForMultipleChoice", "float32", "sdpa")),
    *(("BertForPreTraining", dtype, "sdpa") for dtype in ("bfloat16", "int8")),
    *(("BertForQuestionAnswering", dtype, "sdpa") for dtype in ("float32", "int8")),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("head", "prepared", "backend"),
    [
        *(("BertForPreTraining", None, "eager"), ("BertForPreTraining", "float32", "sdpa")),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
    ],
)
def test_a_sequence_alone_and_in_a_batch(head, prepared, backend, layout):
    """Sizes, threads and head masks by chance, with gradients too."""
    if head == "BertForMultipleChoice" and layout == "packed":
        pytest.skip("it takes no packed input")
    rng = random.Random(f"{head} {prepared} {backend} {layout}")
    torch.set_num_threads(rng.choice([1, 2]))
    width, heads = rng.choice(SIZES)
    fields = dict(hidden_size=width, num_attention_heads=heads, max_position_embeddings=300)
    fields |= dict(intermediate_size=rng.choice([37, 128]), attn_implementation=backend)
    if prepared == "int8":  # torch's SiLU and GELU by tanh have no steady bits at odd widths
        fields["hidden_act"] = rng.choice(["gelu", "relu", "tanh"])
    config = random_config(rng.randrange(1000), head, **fields, batch_invariant=True)
    model = random_model(head, config)
    if prepared is not None:
        model.prepare_for_inference(prepared)
    options = {"head_mask": torch.rand(heads)} if rng.random() < 0.3 else {}
    has_gradients = rng.random() < 0.3 and config.hidden_act in ("gelu", "relu", "tanh")
    # Beyond 256 tokens another kernel attends.
    lengths = rng.choices([1, 2, 3, 5, 5, 8, 13, 31, 40, 200, 257, 280], k=rng.randint(2, 9))
    with torch.set_grad_enabled(has_gradients):
        assert_as_alone(model, lengths, layout, rng, **options)


@torch.no_grad()
def test_switched_on_after_preparing():
    """With a layer that lacks a head."""
    fields = dict(hidden_size=48, num_attention_heads=2, num_hidden_layers=2, hidden_act="gelu")
    model = random_model("BertModel", random_config(9, **fields))
    model.prune_heads({1: [0]})
    model.prepare_for_inference().config.batch_invariant = True
    for layout in ("right", "words"):
        assert_as_alone(model, (9, 5, 1, 9, 13), layout, random.Random(1))
    # Their bits differ on some instruction sets only, so they serve other calls alone.
    assert prepared_kernels(model) is not None


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("head", ["BertModel", "BertForMaskedLM"])
def test_switched_off_after_a_call(head, prepared):
    """Nothing of it stays, and the model may go to a precision that has no steady kernel."""
    model = random_model(head, random_config(head))
    ids = torch.randint(5, model.config.vocab_size, (3, 7))
    expected = outputs(model, {"input_ids": ids})[0]
    model.config.batch_invariant = True
    if prepared:
        model.prepare_for_inference()
    outputs(model, {"input_ids": ids})
    packed = [vars(module).get("packed") for module in model.modules()]
    model.config.batch_invariant = False
    assert (outputs(model, {"input_ids": ids})[0] - expected).abs().max() < 1e-4
    assert packed == [vars(module).get("packed") for module in model.modules()]
    assert any(packed) is prepared
    half = outputs(model.to(torch.float16), {"input_ids": ids})[0]
    assert (half - expected).abs().max() < 0.05 * expected.abs().max()


def make_differ(patch, where, activation=None):
    """Makes the kernels of floats differ, packed and plain; or those of one activation.

    Numbers at the places that `where` gives for an output are the next larger ones.
    """

    def differing(compute):
        def call(*arguments):
            output = compute(*arguments)
            if output.ndim == 2 and activation in (None, getattr(arguments[-1], "name", None)):
                places = where(output)
                above = torch.full_like(output[places], torch.inf)
                output[places] = torch.nextafter(output[places], above)
            return output

        return call

    patch.setattr(linear, "multiply", differing(linear.multiply))
    patch.setattr(linear.FloatProduct, "__call__", differing(linear.FloatProduct.__call__))


#: Where a kernel gives other bits than calls of other sizes, and how many of 24 calls are refused.
FAULTS = {
    "beyond 33 rows": (lambda out: len(out) > 33, 0),
    "below 8 rows": (lambda out: len(out) < 8, 16),
    "the last rows of many": (lambda out: slice(64, None), 0),
    "one column": (lambda out: (slice(len(out) if len(out) < 34 else 0, None), -1), 0),
    "with two threads": (lambda out: torch.get_num_threads() == 2 and len(out) > 64, 0),
    "at one place of every call": (lambda out: slice(2, 3), 24),
}


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("name", FAULTS)
@torch.no_grad()
def test_kernels_that_differ(fresh_kernels, name, prepared):
    """The probe finds these calls, and they are refused. The others have the same bits."""
    fault, expected = FAULTS[name]
    make_differ(fresh_kernels, fault)
    fields = dict(hidden_size=24, num_attention_heads=2, num_hidden_layers=1, hidden_act="gelu")
    fields |= dict(max_position_embeddings=60, batch_invariant=True)
    model = random_model("BertModel", random_config(9, **fields))
    if prepared:
        model.prepare_for_inference()
    refused = 0
    for threads, length in itertools.product((1, 2), (7, 60)):
        torch.set_num_threads(threads)
        sequences, passed = list(torch.randint(1, 61, (9, length))), []
        for texts in (1, 2, 4, 5, 7, 9):
            try:
                passed.append(numbers(model, sequences[:texts]))
            except ValueError as error:
                assert "cannot be kept on this CPU: with" in str(error)
                refused += 1
        for found in passed:
            for key, values in found.items():
                assert torch.equal(values, passed[-1][key][: len(values)]), key
    assert refused == expected


def test_an_activation_that_differs_is_named(fresh_kernels):
    """Its product has the same bits in every call."""
    make_differ(fresh_kernels, lambda out: len(out) < 8, "gelu")
    config = random_config(9, intermediate_size=40, hidden_act="gelu", batch_invariant=True)
    model = random_model("BertModel", config).prepare_for_inference()
    with pytest.raises(ValueError, match="no kernel for the activation gelu of 40 numbers"):
        outputs(model, {"input_ids": torch.tensor([[1, 2, 3]])})


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"is_decoder": True}, {}, "a decoder, a cache"),
        ({"position_embedding_type": "relative_key"}, {}, "relative positions"),
        ({"padding_free": False}, {}, "padding_free=False"),
        ({"hidden_act": "mish"}, {}, "no kernel for the activation"),
        ({}, {}, "with a hook of encoder.layer.0.intermediate.dense"),
        ({}, {"output_attentions": True}, "output_attentions"),
        ({}, {"attention_mask": torch.ones(2, 4, 4).tril()}, "an attention_mask that is not"),
        (
            {"attn_implementation": "eager"},
            {"attention_mask": torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0]])},
            "a row without attended tokens under 'eager'",
        ),
    ],
)
def test_refused(fields, options, message):
    config = random_config(2, **({"hidden_act": "gelu"} | fields), batch_invariant=True)
    model = random_model("BertModel", config)
    if "with a hook" in message:
        model.encoder.layer[0].intermediate.dense.register_forward_hook(lambda *_: None)
    for _ in range(2):
        with pytest.raises(ValueError, match=message) as error:
            outputs(model, {"input_ids": torch.ones(2, 4, dtype=torch.long)}, **options)
        assert "\n" not in str(error.value)
        model.prepare_for_inference()
