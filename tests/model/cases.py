"""Random configurations and batches that the model's tests share."""

import math
import pickle
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.activations import ACT2FN

import hf_bert_impl
from hf_bert_impl import BertConfig
from hf_bert_impl.model import linear, route
from hf_bert_impl.parity import FP32_TOLERANCE, attended_positions, compare_outputs, reference_model
from hf_bert_impl.parity.tensors import PER_POSITION_2D

BACKENDS = ("eager", "sdpa")
HEADS = (
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertLMHeadModel",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForMultipleChoice",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
)
LOSS_HEADS = HEADS[1:]
ENCODER_HEADS = tuple(head for head in HEADS if head != "BertLMHeadModel")
MASKED_LM = ("BertForPreTraining", "BertForMaskedLM")
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.0)
CHOICES = 3
# xielu compiles a kernel of its own on first use.
ACTIVATIONS = sorted(set(ACT2FN) - {"xielu"})
HAS_ONEDNN = linear.has_onednn()


def random_config(seed: int, head: str = "BertModel", **fields: Any) -> BertConfig:
    """A small config, no size of which equals another; the seed decides."""
    rng = random.Random(f"{seed} {head}")
    heads = rng.choice([1, 2, 3, 5])
    labels = 2 if head == "BertForQuestionAnswering" else rng.choice([2, 3, 5])
    values: dict[str, Any] = dict(
        vocab_size=rng.choice([61, 97, 131]),
        hidden_size=heads * rng.choice([6, 8, 10, 14]),
        num_hidden_layers=rng.choice([1, 2, 3, 4]),
        num_attention_heads=heads,
        intermediate_size=rng.choice([29, 47, 71]),
        hidden_act=rng.choice(["gelu", "gelu_new", "relu", "silu", "tanh"]),
        hidden_dropout_prob=0.13,
        attention_probs_dropout_prob=0.17,
        classifier_dropout=rng.choice([None, 0.2]),
        max_position_embeddings=rng.choice([19, 33]),
        type_vocab_size=rng.choice([1, 2, 3]),
        layer_norm_eps=rng.choice([1e-12, 1e-5]),
        tie_word_embeddings=rng.choice([True, False]),
        is_decoder=head == "BertLMHeadModel",
        num_labels=labels,
    )
    return BertConfig(**(values | fields))


def random_model(head: str, config: BertConfig, seed: int = 0, std: float = 0.2) -> Any:
    """A model whose every parameter is random: biases and LayerNorms too, so no mix-up hides."""
    torch.manual_seed(seed)
    model = getattr(hf_bert_impl, head)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=std)
            if name.endswith("LayerNorm.weight"):
                parameter.add_(1)
    return model.eval()


def masks(batch: int = 5, length: int = 13, seed: int = 0) -> dict[str, Any]:
    """(B, S) attention masks with every kind of padding, and None."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([length, 4, 9, 9, 1, 7, 2][:batch])
    right = (torch.arange(length) < lengths[:, None]).long()
    holes = (torch.rand(batch, length, generator=generator) > 0.4).long()
    holes[:, 3] = 1
    both = right.roll(2, dims=1)
    return {"right": right, "left": right.flip(1), "holes": holes, "both": both, "none": None}


def random_batch(
    head: str, config: BertConfig, mask: Tensor | None, seed: int = 0
) -> dict[str, Tensor]:
    """Inputs of a head: token types and random positions too; the pad token under padding."""
    generator = torch.Generator().manual_seed(seed)
    shape = (5, 13) if mask is None else tuple(mask.shape)
    if head == "BertForMultipleChoice":
        shape = (shape[0], CHOICES, shape[1])

    def numbers(limit: int) -> Tensor:
        return torch.randint(0, limit, shape, generator=generator)

    batch = {
        "input_ids": numbers(config.vocab_size),
        "token_type_ids": numbers(config.type_vocab_size),
        "position_ids": numbers(config.max_position_embeddings),
    }
    if mask is not None:
        mask = mask if len(shape) == 2 else mask[:, None].repeat(1, CHOICES, 1)
        batch["attention_mask"] = mask
        batch["input_ids"].masked_fill_(mask == 0, config.pad_token_id or 0)
    return batch


def model_and_batch(
    head: str = "BertModel",
    seed: int = 1,
    padding: str | Tensor = "right",
    *,
    labels: bool = False,
    **fields: Any,
) -> tuple[Any, dict[str, Tensor]]:
    """A random model in eval mode, and a batch for it.

    Args:
        head: The model's class.
        seed: Of the config.
        padding: A name of `masks`, or the (B, S) mask itself.
        labels: Whether the batch has the labels of the head too.
        **fields: Fields of the config that the seed does not decide.
    """
    config = random_config(seed, head, **fields)
    mask = masks()[padding] if isinstance(padding, str) else padding
    batch = random_batch(head, config, mask)
    if labels:
        batch |= random_labels(head, config, batch)
    return random_model(head, config), batch


def outputs(model: Any, batch: Mapping[str, Any], **options: Any) -> Any:
    """The outputs of the model, without gradients."""
    with torch.no_grad():
        return model(**batch, **options)


def assert_same(
    found: Any,
    expected: Any,
    where: Mapping[str, Tensor] | Tensor,
    tolerance: float = FP32_TOLERANCE,
) -> None:
    """Compares outputs as `compare_outputs` does, at (B, S) places or a batch's attended ones."""
    places = where if isinstance(where, Tensor) else attended_positions(where)
    report = compare_outputs(found, expected, places, tolerance=tolerance)
    assert report.passed, report.summary()


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    """The gradient of every parameter by name."""
    model.zero_grad()
    loss.backward()
    named = model.named_parameters()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in named}


def assert_same_gradients(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = FP32_TOLERANCE
) -> None:
    """Compares gradients relative to the largest number of each.

    Those below a twentieth of the largest of all are held to that: they may be rounding alone.
    """
    assert found.keys() == expected.keys()
    largest = max(gradient.abs().max() for gradient in expected.values())
    for name, gradient in expected.items():
        scale = gradient.abs().max().clamp(min=0.05 * largest)
        assert (found[name] - gradient).abs().max() <= tolerance * scale, name


def assert_same_as_upstream(
    model: Any,
    batch: Mapping[str, Any],
    tolerance: float = FP32_TOLERANCE,
    *,
    reference: Any = None,
    given: Mapping[str, Any] | None = None,
    real: Tensor | None = None,
    with_gradients: bool = False,
    **options: Any,
) -> None:
    """Compares every output of a call with upstream's, and on request the gradients too.

    Args:
        model: Ours.
        batch: A padded batch, with labels or without.
        tolerance: The largest error, as a share of a tensor's largest number.
        reference: The model that computes `batch`. Transformers' own class with the same weights
            by default.
        given: The input of our model: for example the compared tokens of `batch` in one row.
        real: (B, S) bool, the compared tokens. The attended tokens by default.
        with_gradients: Whether to compare the gradients of a random sum of all outputs.
        **options: Arguments of both calls.
    """
    reference = reference_model(model) if reference is None else reference
    real = attended_positions(batch) if real is None else real
    results = []
    for one, inputs in ((model, given or batch), (reference, batch)):
        torch.manual_seed(17)  # of dropout
        with torch.set_grad_enabled(with_gradients):
            results.append(tensors(one(**inputs, **options)))
    found, expected = results
    assert found.keys() == expected.keys()
    generator = torch.Generator().manual_seed(3)
    sums: list[Any] = [0.0, 0.0]
    for name, theirs in expected.items():
        ours = found[name]
        if theirs.ndim == 4:  # attentions (B, H, S, S)
            ours, theirs = (x.transpose(1, 2)[real] for x in (ours, theirs))
        elif theirs.ndim == 3 or name in PER_POSITION_2D:
            is_sparse = ours.ndim < theirs.ndim  # only labelled tokens are scored
            is_packed = ours.shape[:2] != theirs.shape[:2]
            theirs = theirs[batch["labels"] != -100 if is_sparse else real]
            ours = ours if is_sparse else ours[0] if is_packed else ours[real]
        assert ours.shape == theirs.shape, name
        scale = theirs.abs().max().clamp(min=1 if name == "loss" else 1e-6)
        assert (ours - theirs).abs().max() <= tolerance * scale, name
        weights = torch.randn(theirs.shape, generator=generator, dtype=theirs.dtype)
        if not name.startswith("attentions"):
            sums = [sums[0] + (ours * weights).mean(), sums[1] + (theirs * weights).mean()]
    if with_gradients:
        found, expected = map(gradients, (model, reference), sums)
        assert_same_gradients(found, expected, 2.5 * tolerance)


def tensors(output: Any) -> dict[str, Tensor]:
    """The tensors of an output by name, and each layer's separately."""
    named = {name: value for name, value in output.items() if isinstance(value, Tensor)}
    for name in ("hidden_states", "attentions"):
        values = output.get(name) or ()
        named |= {f"{name} {i}": x for i, x in enumerate(values) if x is not None}
    return named


def pickled(model: Any) -> Any:
    """The model in another process."""
    return pickle.loads(pickle.dumps(model))


def all_by_onednn(patch: pytest.MonkeyPatch) -> None:
    """Products by oneDNN on any processor, and of any size."""
    patch.setattr(route, "most_rows_by_onednn", lambda: math.inf)
    patch.setattr(linear, "MANY_WEIGHTS", 0)


def rows_through(module: torch.nn.Module) -> list[int]:
    """A list of how many rows each call of the module is given from now on."""
    seen: list[int] = []
    kind: Any = type(module)

    class Counted(kind):
        def forward(self, states: Tensor, *args: Any, **kwargs: Any) -> Any:
            seen.append(states.shape[:-1].numel())
            return super().forward(states, *args, **kwargs)

        takes_packed = (forward,)  # a hook would see padding

    module.__class__ = Counted
    return seen


def largest(difference: Tensor) -> float:
    return float(difference.detach().abs().max())


def of_fixture(
    folder: Path, file: str = "expected.npz"
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The outputs of the software that wrote a checkpoint of the fixtures, and their batch."""
    with np.load(folder / file) as arrays:
        values = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    names = {name: name for name in ("input_ids", "attention_mask", "token_type_ids")}
    names["segment_info"] = "token_type_ids"  # codertimo's word
    return values, {ours: values[theirs] for theirs, ours in names.items() if theirs in values}


def assert_as_fixture(
    model: Any,
    values: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    real: Tensor | None = None,
    tolerance: float = FP32_TOLERANCE,
) -> set[str]:
    """Compares all that a model gives with `values` of `of_fixture`; names what it compared.

    Args:
        model: Of either implementation.
        values: Of the original software, which computed padding too.
        batch: The model's inputs.
        real: (B, S) bool, where to compare; everywhere without it.
        tolerance: The largest difference.
    """
    encoded = outputs(model.base_model, batch, output_hidden_states=True)
    heads = outputs(model, batch)
    is_masked_lm = "MaskedLM" in type(model).__name__
    found = {
        "embedding_output": encoded.hidden_states[0],
        "all_encoder_layers": torch.stack(encoded.hidden_states[1:]),
        "sequence_output": encoded.last_hidden_state,
        "pooled_output": encoded.get("pooler_output"),
        "mlm_logits": heads.get("logits" if is_masked_lm else "prediction_logits"),
        "nsp_logits": heads.get("seq_relationship_logits"),
        "start_logits": heads.get("start_logits"),
        "end_logits": heads.get("end_logits"),
        "logits": heads.get("logits"),
    }
    for task in ("mlm", "nsp"):
        if found[f"{task}_logits"] is not None:
            found[f"{task}_log_probs"] = found[f"{task}_logits"].log_softmax(-1)
    shared = {name for name, value in found.items() if value is not None and name in values}
    for name in shared:
        difference = found[name] - values[name]
        if name == "all_encoder_layers":
            difference = difference.movedim(0, 2)  # (B, S, layers, D)
        if real is not None and difference.shape[:2] == real.shape:
            difference = difference[real]
        assert largest(difference) <= tolerance, name
    return shared


def random_labels(head: str, config: BertConfig, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Labels of a head, at padded positions too: upstream's losses read those."""
    generator = torch.Generator().manual_seed(7)
    shape = tuple(batch["input_ids"].shape)
    rows, length = shape[0], shape[-1]

    def numbers(limit: int, *size: int) -> Tensor:
        return torch.randint(0, limit, size, generator=generator)

    if head == "BertModel":
        return {}
    if head == "BertForQuestionAnswering":
        positions = {"start_positions": numbers(length, rows), "end_positions": numbers(3, rows)}
        positions["start_positions"][0] = length + 20  # ignored
        return positions
    by_row = {
        "BertForMultipleChoice": CHOICES,
        "BertForNextSentencePrediction": 2,
        "BertForSequenceClassification": config.num_labels,
    }
    if head in by_row:
        return {"labels": numbers(by_row[head], rows)}
    classes = config.num_labels if head == "BertForTokenClassification" else config.vocab_size
    labels = numbers(classes, rows, length)
    labels[torch.rand(rows, length, generator=generator) < 0.6] = -100
    found = {"labels": labels}
    if head == "BertForPreTraining":
        found["next_sentence_label"] = numbers(2, rows)
    return found
