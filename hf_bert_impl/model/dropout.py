"""Dropout with 16 random bits an element on a CPU.

`nn.functional.dropout` draws a number for every element, which shows in a training step
on long sequences. To tell which of two things happens, with a probability given to 1/65536, 16
random bits are enough, so one 64-bit number serves four elements. It comes from torch's generator:
seeds, checkpoints and recomputation work as ever.

It serves packed states only: a padded batch draws as transformers' model does, so that the same
seed gives the same loss.
"""

import torch
from torch import Tensor, nn

#: How many values 16 bits have, and the least of them as a signed integer.
VALUES, LEAST = 1 << 16, -(1 << 15)
ALL_64_BITS = -(1 << 63)


class Dropout(nn.Dropout):
    """`nn.Dropout`, quicker on packed states (T, D)."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape, the same shape."""
        if not self.training or input.dim() != 2:
            return super().forward(input)
        return drop(input, self.p)


def drop(states: Tensor, probability: float) -> Tensor:
    """Zeroes elements and scales the others, so that the mean stays (Srivastava et al. 2014).

    Args:
        states: Any shape.
        probability: Of a zero, rounded to 1/65536. The other elements are scaled by 1/(1-p), with
            the rounded p.

    Returns:
        The shape of `states`.
    """
    dropped = round(probability * VALUES)
    is_plain = states.device.type == "cpu" and not torch.compiler.is_compiling()
    if not is_plain or torch.jit.is_tracing() or not 0 < dropped < VALUES:
        return nn.functional.dropout(states, probability)
    count = states.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64, device=states.device)
    bits.random_(ALL_64_BITS, None)
    kept = bits.view(torch.int16)[:count].view(states.shape) >= LEAST + dropped
    return states * kept.to(states.dtype).mul_(VALUES / (VALUES - dropped))
