"""Four threads infer with one prepared model while a fifth replaces its weights by equal ones.

All results must agree.
"""

import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tests.model.cases import HEADS, NO_DROPOUT, model_and_batch

SEED = int(os.environ.get("HF_BERT_FUZZ_SEED", "0"))
TRIALS = max(8, int(os.environ.get("HF_BERT_FUZZ_TRIALS", "0")) // 100)
THREADS, CALLS, CHANGES = 4, 30, 60


def weight(model: Any, rng: random.Random) -> torch.nn.Parameter:
    return rng.choice(list(model.base_model.encoder.parameters()))


WORK = {
    "in place": lambda model, rng: weight(model, rng).mul_(1.0),
    "new Parameter": lambda model, rng: setattr(
        dense := model.base_model.encoder.layer[0].output.dense,
        "weight",
        torch.nn.Parameter(dense.weight.clone()),
    ),
    "loaded": lambda model, rng: model.load_state_dict(model.state_dict()),
    "prepared": lambda model, rng: model.prepare_for_inference(),
    "train and back": lambda model, rng: model.train().eval(),
}


@pytest.fixture(autouse=True)
def frequent_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("seed", range(SEED, SEED + TRIALS))
def test_threads(seed):
    rng = random.Random(seed)
    head = rng.choice(HEADS)
    padding = rng.choice(["right", "holes", "none"])
    model, batch = model_and_batch(head, seed, padding, **NO_DROPOUT)
    kinds = rng.sample(list(WORK), rng.choice([1, 2, len(WORK)]))
    # Each thread has to enter the mode by itself.
    mode = rng.choice([torch.no_grad, torch.inference_mode])

    def infer() -> torch.Tensor:
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
