"""Helpers of the tests of prepared models."""

import copy
from typing import Any

import torch

from tests.model.cases import outputs

#: Ways to change a weight.
WEIGHT_CHANGES = {
    "in place": lambda w: torch.no_grad()(w.mul_)(1.5),
    "through data": lambda w: w.data.mul_(1.5),
    "data replaced": lambda w: setattr(w, "data", w.data * 1.5),
    "data replaced twice": lambda w: [w.__setattr__("data", w.data * 1.5) for _ in range(2)],
    "data with equal ends": lambda w: w.data[1:-1].mul_(1.5),
    "one number": lambda w: w.data.view(-1)[w.numel() // 3].add_(5),
    "two rows exchanged": lambda w: w.data.__setitem__(slice(1, 3), w.data[1:3].flip(0)),
    "NumPy": lambda w: w.detach().numpy()[1:-1].__imul__(1.5),
}


def is_prepared(model: Any) -> bool:
    return model.base_model.encoder.prepared is not None


def head_is_prepared(model: Any) -> bool:
    return model.cls.predictions.prepared is not None


def assert_not_stale(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Asserts that the model is not prepared and uses its present weights; returns its states.

    A copy of a model is not prepared.
    """
    found = outputs(model, batch)[0]
    assert not is_prepared(model)
    assert torch.equal(found, outputs(copy.deepcopy(model), batch)[0])
    return found
