"""The options of a verification; `hf-bert verify` has the same."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class VerifyOptions:
    """How a checkpoint is compared with transformers' own BERT."""

    text: tuple[str, ...] = ()
    """Compare on this text instead of the built-in ones; may be repeated."""
    gradients: bool = False
    """Also compare every parameter's gradient."""
    bf16: bool = True
    """Also compare in bfloat16, with upstream's own error there."""
    tolerance: float | None = None
    """Maximum error in float32, relative to a tensor's largest magnitude; None for 2e-5, or 1e-4
    on an accelerator."""
    device: str = "cpu"
    """Device of both models: cpu, or the accelerator of this machine, such as cuda or cuda:1."""
