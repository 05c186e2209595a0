"""The multilayer perceptron of a probe: one hidden layer, trained as SentEval trains it.

Several penalties are tried on the same data in the same batches. Their networks are trained side by
side, as one, which costs little more than a single one.

Notation: P penalties, N examples, F inputs, H hidden units, L labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import log_softmax

Floats = NDArray[np.float32]

#: The classes of `probe_options.OPTIMIZERS`.
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda weights: torch.optim.Adam(weights, fused=True),
    "rmsprop": torch.optim.RMSprop,
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1),
}
BATCH_SIZE = 64
MAX_EPOCHS = 200


class ProbeNetworks(nn.Module):
    """P networks of one hidden layer with a sigmoid, each with weights of its own.

    All begin with the same weights, drawn as `nn.Linear` draws them.
    """

    def __init__(self, count: int, inputs: int, hidden: int, labels: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape: int, fan_in: int) -> nn.Parameter:
            bound = 1 / math.sqrt(fan_in)
            weights = torch.empty(1, *shape).uniform_(-bound, bound, generator=generator)
            return nn.Parameter(weights.repeat(count, 1, 1))  # (P, *shape)

        self.first = drawn(inputs, hidden, fan_in=inputs)
        self.first_bias = drawn(1, hidden, fan_in=inputs)
        self.second = drawn(hidden, labels, fan_in=hidden)
        self.second_bias = drawn(1, labels, fan_in=hidden)

    def forward(self, inputs: Tensor) -> Tensor:
        """(N, F) to logits (P, N, L)."""
        hidden = torch.sigmoid(inputs @ self.first + self.first_bias)  # (P, N, H)
        return hidden @ self.second + self.second_bias


def fit_networks(
    inputs: Floats,
    targets: Floats,
    penalties: Sequence[float],
    score: Callable[[Callable[[Floats], Floats]], float],
    *,
    hidden: int,
    optimizer: str,
    tenacity: int,
    epoch_size: int,
    seed: int,
) -> list[Callable[[Floats], Floats]]:
    """Trains a network for each penalty until it no longer gets better on held-out data.

    Args:
        inputs: (N, F).
        targets: (N, L): the share of each label in each example.
        penalties: The L2 penalty of each network.
        score: How good a network is on the held-out data; it is given what this function returns.
        hidden: H.
        optimizer: One of `probe_options.OPTIMIZERS`.
        tenacity: So many times more than this may a network fail to become better.
        epoch_size: How many times the data are gone through from one judgement to the next.
        seed: Of the weights and of the order of the examples.

    Returns:
        For each penalty what turns inputs (M, F) into probabilities (M, L), by the best weights.
    """
    generator = torch.Generator().manual_seed(seed)
    networks = ProbeNetworks(len(penalties), inputs.shape[1], hidden, targets.shape[1], seed)
    weights = list(networks.parameters())
    stepper = _OPTIMIZERS[optimizer](weights)
    penalty = torch.tensor(penalties).view(-1, 1, 1)
    x, y = torch.from_numpy(inputs), torch.from_numpy(targets)
    best = [-math.inf] * len(penalties)
    kept: list[list[Tensor]] = [[] for _ in penalties]
    failures = [0] * len(penalties)
    for _ in range(0, MAX_EPOCHS, epoch_size):
        for _ in range(epoch_size):
            for rows in torch.randperm(len(x), generator=generator).split(BATCH_SIZE):
                logits = log_softmax(networks(x[rows]), dim=-1)  # (P, batch, L)
                # A sum over networks, so that each has the gradient it would have alone.
                loss = -(logits * y[rows]).sum() / len(rows)
                gradients = torch.autograd.grad(loss, weights)
                with torch.no_grad():
                    for weight, gradient in zip(weights, gradients, strict=True):
                        weight.grad = gradient.addcmul_(weight, penalty)
                stepper.step()
        for number in range(len(penalties)):
            if failures[number] > tenacity:
                continue
            now = [it.detach()[number] for it in weights]
            value = score(_predictor(now))
            if value > best[number]:
                best[number], kept[number] = value, [it.clone() for it in now]
            else:
                failures[number] += 1
        if min(failures) > tenacity:
            break
    return [_predictor(it) for it in kept]


def _predictor(weights: Sequence[Tensor]) -> Callable[[Floats], Floats]:
    first, first_bias, second, second_bias = weights

    def predict(inputs: Floats) -> Floats:
        hidden = torch.sigmoid(torch.from_numpy(inputs) @ first + first_bias)
        return torch.softmax(hidden @ second + second_bias, dim=-1).numpy()

    return predict
