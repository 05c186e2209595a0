"""Head masks, pruning, relative positions, masks of every shape, attention on demand."""

import functools

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from hf_bert_impl import BertForMaskedLM, BertForSequenceClassification, BertModel
from hf_bert_impl.model import attention
from hf_bert_impl.model.attention import takes_varlen
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS
from hf_bert_impl.parity import reference_model
from tests.model.cases import (
    BACKENDS,
    assert_as_fixture,
    assert_same,
    largest,
    masks,
    model_and_batch,
    of_fixture,
    outputs,
)

TOLERANCE = 2e-5  # of the outputs that transformers 4.49 wrote


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_relative_positions_of_transformers_4(fixtures_dir, kind, padding_free, backend):
    folder = fixtures_dir / f"positions_{kind}"
    values, batch = of_fixture(folder)
    model, info = BertForMaskedLM.from_pretrained(
        folder, attn_implementation=backend, padding_free=padding_free, output_loading_info=True
    )
    assert not any(info.values())
    compared = assert_as_fixture(model, values, batch, batch["attention_mask"].bool())
    assert compared == {"mlm_logits", "embedding_output", "all_encoder_layers"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("which", ["heads", "layers_heads"])
def test_head_mask_of_transformers_4(fixtures_dir, which, padding_free, backend):
    values, batch = of_fixture(fixtures_dir / "head_mask")
    model = BertForSequenceClassification.from_pretrained(
        fixtures_dir / "head_mask", attn_implementation=backend, padding_free=padding_free
    )
    batch["head_mask"] = values[f"head_mask_{which}"]
    real = batch["attention_mask"].bool()
    expected = {name: values[f"{name}_{which}"] for name in ("logits", "all_encoder_layers")}
    assert assert_as_fixture(model, expected, batch, real) == expected.keys()
    output = outputs(model, batch, output_attentions=True)
    for ours, theirs in zip(output.attentions, values[f"attentions_{which}"], strict=True):
        assert largest((ours - theirs).transpose(1, 2)[real]) < TOLERANCE


@pytest.mark.parametrize("backend", BACKENDS)
def test_pruning_as_transformers_4(fixtures_dir, tmp_path, backend):
    """Done here, and loaded as it was pruned there."""
    load = functools.partial(
        BertForSequenceClassification.from_pretrained, output_loading_info=True
    )
    values, batch = of_fixture(fixtures_dir / "head_mask_pruned")
    model, info = load(fixtures_dir / "head_mask_pruned")
    assert not any(info.values())
    assert assert_as_fixture(model, values, batch) == {"logits"}
    values, batch = of_fixture(fixtures_dir / "head_mask")
    model, _ = load(fixtures_dir / "head_mask", attn_implementation=backend)
    pruned = {}
    for layer, head in values["pruned"].tolist():
        pruned.setdefault(layer, []).append(head)
    before = model.num_parameters()
    model.prune_heads(pruned)
    assert model.num_parameters() == before - 4 * 8 * (3 * 33 + 32)
    model.prune_heads(pruned)  # gone already: no error
    model.save_pretrained(tmp_path)
    again, info = load(tmp_path)
    assert not any(info.values())
    assert again.config.pruned_heads == pruned
    for one in (model, again):
        assert largest(outputs(one, batch).logits - values["logits_pruned"]) < TOLERANCE
    # Heads keep their numbers: masking pruned heads has no effect.
    gone = torch.ones(2, 4)
    for layer, heads in pruned.items():
        gone[layer, heads] = 0
    assert torch.equal(outputs(again, batch).logits, outputs(again, batch, head_mask=gone).logits)


@pytest.mark.parametrize("fields", [{}, CODERTIMO_FIELDS], ids=["bert", "codertimo"])
def test_pruning_equals_masking(fields):
    """Also with a mask for each head, which keeps a row for heads that are pruned."""
    sizes = dict(num_attention_heads=5, hidden_size=30, num_hidden_layers=2)
    model, batch = model_and_batch("BertModel", 9, "holes", **sizes, **fields)
    by_head = torch.rand(5, 5, 13, 13, generator=torch.Generator().manual_seed(2)) > 0.5
    by_head[:, :, range(13), range(13)] = True
    calls = (batch, batch | {"attention_mask": by_head})
    head_mask = torch.ones(2, 5)
    head_mask[0, [1, 4]] = 0
    head_mask[1, 2] = 0
    expected = [outputs(model, call, head_mask=head_mask) for call in calls]
    attentions = outputs(model, batch, head_mask=head_mask, output_attentions=True).attentions
    assert not attentions[0][:, [1, 4]].any()
    model.prune_heads({0: [4], 1: [2]})
    model.prune_heads({0: [1]})
    assert model.config.pruned_heads == {0: [1, 4], 1: [2]}
    for call, masked in zip(calls, expected, strict=True):
        assert_same(outputs(model, call), masked, batch)


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        ({7: [0]}, "layers 0 to 1"),
        ({0: [4]}, "heads 0 to 3"),
        ({1: [0, 1, 2, 3]}, "without a head"),
    ],
)
def test_pruning_what_is_not_there(fixtures_dir, heads, said):
    model = BertModel.from_pretrained(fixtures_dir / "head_mask")
    with pytest.raises(ValueError, match=said):
        model.prune_heads({0: [1], **heads})
    assert model.config.pruned_heads == {}
    assert model.encoder.layer[0].attention.self.num_attention_heads == 4


KEYS = masks()["right"].roll(-1, 0)[:, None, None].bool()
PAIRS = torch.rand(5, 1, 13, 13, generator=torch.Generator().manual_seed(2)) > 0.5
#: What is attended, (B or 1, 1, Q or 1, K), and the ways to say it. The first row is not whole.
ATTENDED = {"keys": KEYS, "keys of all rows": KEYS[:1], "pairs": PAIRS | torch.eye(13).bool()}
SAID = {
    "bool": lambda attended: attended,
    "int": lambda attended: attended.int(),
    "fewer dimensions": lambda attended: attended[:, 0] if attended.shape[2] > 1 else attended,
    "added -inf": lambda attended: torch.where(attended, 0.0, -torch.inf),
    "added -10000": lambda attended: torch.where(attended, 0.0, -10000.0),
}


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("what", ATTENDED)
@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_masks_of_keys_and_of_pairs(backend, padding_free, what, said):
    """As upstream's sdpa backend takes them."""
    attended = ATTENDED[what]
    fields = dict(attn_implementation=backend, padding_free=padding_free)
    rows = attended.any(2)[:, 0].expand(5, 13).long()
    model, batch = model_and_batch("BertForMaskedLM", 8, rows, **fields)
    reference = reference_model(model)
    reference.set_attn_implementation("sdpa")
    expected = outputs(reference, batch | {"attention_mask": attended})
    given = batch | {"attention_mask": SAID[said](attended)}
    assert_same(outputs(model, given), expected, batch)
    for probabilities in outputs(model, given, output_attentions=True).attentions:
        assert not probabilities[~attended.expand_as(probabilities)].any()


@pytest.mark.slow
@pytest.mark.parametrize("head", ["BertModel", "BertLMHeadModel"])
def test_a_block_mask(head):
    """flex attention's own kind of mask, as transformers takes it."""
    torch._dynamo.reset()  # a program for any length does not compile on every processor
    flex = dict(attn_implementation="flex_attention", num_attention_heads=2, hidden_size=32)
    model, batch = model_and_batch(head, 1, **flex)
    lengths = batch.pop("attention_mask").sum(1)
    length = batch["input_ids"].shape[1]
    batch["attention_mask"] = create_block_mask(
        lambda b, h, q, k: k < lengths[b], len(lengths), None, length, length, device="cpu"
    )
    reference = reference_model(model)
    reference.set_attn_implementation("flex_attention")
    assert largest(outputs(model, batch)[0] - outputs(reference, batch)[0]) < 1e-5
    with pytest.raises(ValueError, match="cannot be used with a BlockMask"):
        model(**batch, output_attentions=True)
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match=r"'sdpa' takes no BlockMask .*use 'flex_attention'"):
        model(**batch)


@pytest.mark.parametrize(
    ("dtype", "head_size", "dropout", "capability", "expected"),
    [
        (torch.bfloat16, 64, 0, (9, 0), True),
        (torch.float16, 256, 0, (8, 0), True),
        (torch.float32, 64, 0, (9, 0), False),
        (torch.float16, 60, 0, (9, 0), False),
        (torch.float16, 264, 0, (9, 0), False),
        (torch.float16, 64, 0.1, (9, 0), False),
        (torch.float16, 64, 0, (7, 5), False),
    ],
)
def test_when_the_kernel_serves(dtype, head_size, dropout, capability, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(attention, "varlen_attn", object())
    assert takes_varlen(torch.device("cuda", 0), dtype, head_size, dropout) == expected
    assert not takes_varlen(torch.device("mps"), dtype, head_size, dropout)
