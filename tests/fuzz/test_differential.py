"""Random models, batches, calls and changes, compared with transformers' BERT.

The suite runs a few fixed trials. `make fuzz` runs more, with another seed each day, or with
`TRIALS=5000 SEED=7`. A failing trial prints the command that repeats it.
"""

import copy
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_bert_impl.parity.comparison import reference_model
from tests.fuzz.changes import Site, apply, scale_heads
from tests.fuzz.trial import Trial, draw_batch
from tests.model.cases import (
    HAS_ONEDNN,
    HEADS,
    NO_DROPOUT,
    all_by_onednn,
    assert_same_as_upstream,
    model_and_batch,
    random_model,
)

SEED = int(os.environ.get("HF_BERT_FUZZ_SEED", "0"))
TRIALS = int(os.environ.get("HF_BERT_FUZZ_TRIALS", "30"))
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


@pytest.mark.parametrize("seed", range(SEED, SEED + TRIALS))
def test_trial(seed, monkeypatch):
    trial = Trial(seed)
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
    ours, reference = build(trial)
    for name in trial.before:
        ours, reference = changed(trial, name, ours, reference)
    if trial.prepared:
        ours.prepare_for_inference()
    compare(trial, ours, reference)
    for name in trial.after:
        ours, reference = changed(trial, name, ours, reference)
        compare(trial, ours, reference)


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


def cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Floats in the model's precision, and not below its smallest number."""
    if not values.is_floating_point():
        return values
    return values.to(dtype).clamp(min=torch.finfo(dtype).min)


def compare(trial: Trial, ours: Any, reference: Any) -> None:
    given, batch, real = draw_batch(trial)
    given, batch = (
        {name: cast(x, ours.dtype) for name, x in inputs.items()} for inputs in (given, batch)
    )
    if trial.heads == "mask":
        given["head_mask"] = head_mask(trial).to(ours.dtype)
    tolerance = TOLERANCE[ours.dtype]
    if trial.head == "BertLMHeadModel" and "labels" in trial.gives:
        tolerance = 1e-4  # upstream computes this loss in float32
    with torch.inference_mode(trial.mode == "inference_mode"):
        assert_same_as_upstream(
            ours,
            batch,
            tolerance,
            reference=reference,
            given=given,
            real=real,
            with_gradients=trial.mode == "grad",
            **trial.options,
        )


# --- threads -------------------------------------------------------------------------------------

THREADS, CALLS, CHANGES = 4, 30, 60


WORK = {
    "in place": lambda model, rng: rng.choice([*model.base_model.encoder.parameters()]).mul_(1),
    "new Parameter": lambda model, rng: setattr(
        dense := model.base_model.encoder.layer[0].output.dense,
        "weight",
        torch.nn.Parameter(dense.weight.clone()),
    ),
    "loaded": lambda model, rng: model.load_state_dict(model.state_dict()),
    "prepared": lambda model, rng: model.prepare_for_inference(),
    "train and back": lambda model, rng: model.train().eval(),
}


@pytest.fixture
def frequent_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("seed", range(SEED, SEED + max(8, TRIALS // 100)))
@pytest.mark.usefixtures("frequent_switches")
def test_threads(seed):
    """Four threads infer with one prepared model while a fifth replaces its weights by equal ones.

    All results must agree.
    """
    rng = random.Random(seed)
    head = rng.choice(HEADS)
    padding = rng.choice(["right", "holes", "none"])
    model, batch = model_and_batch(head, seed, padding, **NO_DROPOUT)
    kinds = rng.sample(list(WORK), rng.choice([1, 2, len(WORK)]))
    # Each thread has to enter the mode by itself.
    mode = rng.choice([torch.no_grad, torch.inference_mode])

    def infer() -> Tensor:
        with mode():
            return model(**batch)[0]

    def infer_often() -> float:
        return max(float((infer() - expected).abs().max()) for _ in range(CALLS))

    expected = infer()
    model.prepare_for_inference()
    with ThreadPoolExecutor(THREADS) as pool:
        running = [pool.submit(infer_often) for _ in range(THREADS)]
        for _ in range(CHANGES):
            with torch.no_grad():
                WORK[rng.choice(kinds)](model, rng)
        errors = [call.result() for call in running]
    assert max(errors) <= 1e-4 * expected.abs().max().clamp(min=1), kinds
