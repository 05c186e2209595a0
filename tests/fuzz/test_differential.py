"""Random models, batches, calls and changes beside transformers' own BERT, from a seed.

Here a few trials, the same ones each time. `make fuzz` runs more, other ones each day, or those of
`TRIALS=5000 SEED=7`. A failing trial names the line that runs it alone.
"""

import copy
import os
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_bert_impl.parity.comparison import reference_class, reference_model
from hf_bert_impl.parity.tensors import PER_POSITION_2D
from tests.fuzz.batches import Batch, draw_batch
from tests.fuzz.changes import Site, apply, saved_and_loaded, scale_heads
from tests.fuzz.trial import PLAIN_FORMS, Trial, draw
from tests.model.cases import HAS_ONEDNN, all_by_onednn, random_model

SEED = int(os.environ.get("HF_BERT_FUZZ_SEED", "0"))
TRIALS = int(os.environ.get("HF_BERT_FUZZ_TRIALS", "30"))
#: The largest error, as a share of the largest number (or of 1, where that is more).
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
#: The mean error, as such a share.
INT8_TOLERANCE = 0.05
#: Our error stays below so many times upstream's own error, plus such a share.
LOW_PRECISION = (3, 0.05)
MODES = {"inference_mode": torch.inference_mode, "grad": torch.enable_grad}
Numbers = dict[str, Tensor]


@pytest.mark.parametrize("seed", range(SEED, SEED + TRIALS))
def test_trial(seed, monkeypatch):
    trial = draw(seed)
    if trial.by_onednn and HAS_ONEDNN:
        all_by_onednn(monkeypatch)
    try:
        run(trial)
    except Exception as error:
        alone = f"HF_BERT_FUZZ_SEED={seed} HF_BERT_FUZZ_TRIALS=1 python -m pytest tests/fuzz"
        error.add_note(f"{trial}\n{alone} -k test_trial")
        raise


def run(trial: Trial) -> None:
    """Builds both models, and compares them at first and after each change."""
    batch = draw_batch(trial)
    ours, reference = build(trial)
    for name in trial.before:
        ours, reference = changed(trial, name, ours, reference)
    if trial.prepared is not None:
        ours.prepare_for_inference("int8" if trial.prepared == "int8" else None)
    compare(trial, "at first", batch, ours, reference)
    for name in trial.after:
        ours, reference = changed(trial, name, ours, reference)
        compare(trial, f"after {name}", batch, ours, reference)
    if trial.is_saved:
        loaded = saved_and_loaded(ours, reference_class(trial.head))
        compare(trial, "loaded by transformers", batch, ours, as_reference(trial, loaded))


def build(trial: Trial) -> tuple[Any, Any]:
    """Our model and the reference, of the same weights."""
    ours = random_model(trial.head, trial.config, trial.seed).to(getattr(torch, trial.dtype))
    if trial.is_absolute:
        reference = reference_model(ours)
    else:
        reference = copy.deepcopy(ours)
        reference.config.padding_free = reference.config.sparse_prediction = False
        reference.set_attn_implementation("eager")
    layers = reference.base_model.encoder.layer
    if trial.heads == "pruned":
        ours.prune_heads({0: [0]})
        scale_heads(layers[0], torch.tensor([0.0] + [1.0] * 9))
    elif trial.heads == "mask":
        for layer, factors in zip(layers, head_mask(trial).expand(len(layers), -1), strict=True):
            scale_heads(layer, factors)
    if trial.training and trial.seed % 4 == 0 and "pickle" not in trial.after:
        ours.gradient_checkpointing_enable()
    return ours.train(trial.training), as_reference(trial, reference.train(trial.training))


def as_reference(trial: Trial, reference: Any) -> Any:
    """The reference, set up for what upstream does not support: any chunk size, and
    probabilities on any backend."""
    for layer in reference.base_model.encoder.layer:
        layer.chunk_size_feed_forward = 0
    if "output_attentions" in trial.options:
        reference.set_attn_implementation("eager")
    return reference


def changed(trial: Trial, name: str, ours: Any, reference: Any) -> tuple[Any, Any]:
    """Both models after a change."""
    with torch.inference_mode() if trial.mode == "inference_mode" else torch.no_grad():
        ours = apply(name, Site(ours, trial.target, trial.seed, is_reference=False))
        reference = apply(name, Site(reference, trial.target, trial.seed, is_reference=True))
    return ours, as_reference(trial, reference)


def head_mask(trial: Trial) -> Tensor:
    """(layers, H), or (H,) for all layers."""
    shape = (trial.config.num_hidden_layers, trial.config.num_attention_heads)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(trial.seed)).round(decimals=1)
    return mask if trial.seed % 2 else mask[0]


def compute(trial: Trial, batch: Batch, model: Any, is_ours: bool) -> Numbers:
    """The results of a call by name, in the reference's layout, with gradients or tangents."""
    options = dict(trial.options)
    if not is_ours:
        options["return_dict"] = True
        options["output_hidden_states"] = bool(options.get("output_hidden_states"))
    elif trial.heads == "mask":
        options["head_mask"] = head_mask(trial)
    inputs = {
        name: cast(value, model.dtype)
        for name, value in (batch.ours if is_ours else batch.reference).items()
    }

    def call(embeddings: Tensor | None) -> Numbers:
        if embeddings is not None:
            inputs["inputs_embeds"] = embeddings
        outputs = model(**inputs, **options)
        if not options.get("return_dict", True):
            names = model(**inputs, **{**options, "return_dict": True}).keys()
            outputs = dict(zip(names, outputs, strict=True))
        return in_layout(trial, batch, outputs, is_ours)

    embeddings = inputs.get("inputs_embeds")
    with MODES.get(trial.mode, torch.no_grad)():
        if trial.mode == "jvp":
            assert embeddings is not None
            return torch.func.jvp(call, (embeddings,), (embeddings.roll(1, -1),))[1]
        if trial.mode == "grad" and embeddings is not None:
            embeddings.requires_grad_()
        found = call(embeddings)
        if trial.mode == "grad" and model.dtype in TOLERANCE:
            found |= gradients(trial, batch, model, found, embeddings)
    return found


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Floats in the model's precision, and not below its smallest number."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.to(dtype).clamp(min=torch.finfo(dtype).min)


def in_layout(trial: Trial, batch: Batch, outputs: Any, is_ours: bool) -> Numbers:
    """Outputs by name. Those of packed input and of labelled tokens are laid into (B, S, ...)."""
    found: Numbers = {}
    for name, value in outputs.items():
        if isinstance(value, Tensor):
            found[name] = value
        elif isinstance(value, tuple):
            ends_only = isinstance(trial.options.get(f"output_{name}"), list)
            for i in (0, len(value) - 1) if ends_only else range(len(value)):
                found[f"{name} {i}"] = value[i]
    for name, value in found.items() if is_ours else ():
        if name.endswith("logits") and trial.is_sparse and name != "seq_relationship_logits":
            found[name] = lay_out(value, batch.scored)
        elif batch.packed is not None and is_by_token(name, value):
            found[name] = lay_out(value[0], batch.packed)
    return found


def lay_out(values: Tensor, places: Tensor) -> Tensor:
    """Puts (N, ...) at the N true places of (B, S); zeros stand elsewhere."""
    empty = values.new_zeros((*places.shape, *values.shape[1:]))
    return empty.index_put(places.nonzero(as_tuple=True), values)


def is_by_token(name: str, value: Tensor) -> bool:
    """Whether an output is (B, S, ...)."""
    return (value.ndim == 3 and "gradient" not in name) or name in PER_POSITION_2D


def is_state(name: str) -> bool:
    return name.startswith(("last_hidden_state", "hidden_states"))


def compared(trial: Trial, batch: Batch, name: str, value: Tensor) -> Tensor:
    """The numbers of an output that are compared; those under padding have no meaning."""
    if name.startswith("attentions"):
        return value.transpose(1, 2)[batch.shown]  # (queries, H, S)
    if not is_by_token(name, value):
        return value
    places = batch.shown if is_state(name) else batch.shown | batch.scored
    return value[batch.scored if trial.is_sparse and "logits" in name else places]


def gradients(
    trial: Trial, batch: Batch, model: Any, outputs: Numbers, embeddings: Tensor | None
) -> Numbers:
    """Gradients of a fixed random sum of all outputs, for each parameter and the embeddings."""
    generator = torch.Generator().manual_seed(trial.seed)
    total = torch.zeros(())
    for name in sorted(outputs):
        if not name.startswith("attentions"):
            value = compared(trial, batch, name, outputs[name])
            total = total + (value * torch.randn(value.shape, generator=generator)).sum()
    wanted = dict(model.named_parameters())
    if embeddings is not None:
        wanted["inputs_embeds"] = embeddings
    found = torch.autograd.grad(total, list(wanted.values()), materialize_grads=True)
    named = {f"gradient of {name}": g for name, g in zip(wanted, found, strict=True)}
    if embeddings is not None and batch.packed is not None and embeddings.shape[0] == 1:
        given = named["gradient of inputs_embeds"]
        named["gradient of inputs_embeds"] = lay_out(given[0], batch.packed)
    return named


def compare(trial: Trial, when: str, batch: Batch, ours: Any, reference: Any) -> None:
    """Raises AssertionError where a number of ours is not the reference's."""
    found = compute(trial, batch, ours, is_ours=True)
    expected = compute(trial, batch, reference, is_ours=False)
    exact, is_low = expected, ours.dtype not in TOLERANCE
    if is_low:
        exact = compute(trial, batch, copy.deepcopy(reference).float(), is_ours=False)
    assert found.keys() == expected.keys(), f"{when}: {set(found) ^ set(expected)}"
    steepest = max([1e-3, *(x.abs().max() for name, x in expected.items() if "gradient" in name)])
    has_other_heads = trial.heads == "pruned" or "prune" in trial.after
    for name, value in found.items():
        # The reference weighs its heads after the attention, so its probabilities differ.
        if name.startswith("attentions") and (trial.heads or has_other_heads):
            continue
        if name.startswith("attentions") and trial.config.is_decoder and trial.packed:
            continue  # (1, H, T, T)
        mine, theirs, true = (
            compared(trial, batch, name, x).double() for x in (value, expected[name], exact[name])
        )
        if "attention" in name and mine.shape != theirs.shape and has_other_heads:
            continue  # gradients of a pruned layer: ours has fewer
        assert mine.shape == theirs.shape, f"{when}: {name} {mine.shape}, not {theirs.shape}"
        scale = steepest if "gradient" in name else true.abs().max().clamp(min=1)
        error = (mine - true).abs() / scale
        bound = TOLERANCE.get(ours.dtype, 0.0)
        if trial.prepared == "int8":
            error, bound = error.mean(), INT8_TOLERANCE
        elif is_low:
            factor, least = LOW_PRECISION
            bound = factor * float(((theirs - true).abs() / scale).max()) + least
        elif trial.head == "BertLMHeadModel" and "labels" in trial.gives:
            bound = TOLERANCE[torch.float32]  # upstream computes this loss in float32
        assert error.max() <= bound, f"{when}: {name} {error.max():.1e} off, above {bound:.1e}"
        # Where padding attends to nothing, each backend computes something else.
        is_defined = trial.form in PLAIN_FORMS and not trial.config.is_decoder
        is_defined &= "output_attentions" not in trial.options
        if is_state(name) and is_defined and not is_low and trial.prepared != "int8":
            hidden = ~batch.shown
            gap = (value - expected[name])[hidden].abs() / scale
            assert ((gap <= bound) | (value[hidden] == 0)).all(), f"{when}: {name} under padding"
