"""The training case: a masked-LM step beside upstream's, its losses, gradients and memory."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from hf_bert_impl.benchmark import cases, timing
from hf_bert_impl.benchmark.peers import attention_backend
from hf_bert_impl.benchmark.results import Row

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_bert_impl.benchmark.peers import Batch


def training_rows(
    ours: PreTrainedModel, peer: str, case: cases.Case, rounds: int, dtype: str = "float32"
) -> list[Row]:
    """Measure a step of ours beside an upstream peer's: the same weights, batch and labels.

    Args:
        ours: A masked language model in train mode without dropout.
        peer: One of the upstream peers.
        case: The batch.
        rounds: Pairs of runs.
        dtype: Precision of weights and computation.

    Returns:
        Two rows: forward and backward, then AdamW's step. The first one's errors are how far the
        loss is from upstream's, its memory the peak beyond weights and gradients.

    Raises:
        Unavailable: The peer cannot run here.
    """
    import torch
    from torch import nn

    from hf_bert_impl.evaluation import reference_model

    device = str(ours.device)
    upstream = reference_model(ours)
    upstream.set_attn_implementation(attention_backend(peer, upstream, dtype))
    for module in upstream.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    upstream.train()
    batch = cases.make_batch(case, ours.config.vocab_size, device)
    batch["labels"] = cases.make_labels(batch)
    labels = int((batch["labels"] != cases.IGNORED).sum())

    losses = [_loss_and_gradients(model, batch) for model in (ours, upstream)]
    gap = max(
        (mine.grad - theirs.grad).abs().max().item()
        for mine, theirs in zip(ours.parameters(), upstream.parameters(), strict=True)
        if mine.grad is not None and theirs.grad is not None
    )
    largest = max(
        weight.grad.abs().max().item()
        for weight in upstream.parameters()
        if weight.grad is not None
    )
    memory = [_memory(model, batch) for model in (ours, upstream)]
    wait = timing.device_wait(device)

    def step(model: PreTrainedModel) -> None:
        model.zero_grad()
        model(**batch, return_dict=True).loss.backward()

    times = timing.paired(lambda: step(ours), lambda: step(upstream), rounds, wait)
    # A rate of 0 changes no weight and takes as long.
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.0) for model in (ours, upstream)]
    updates = timing.paired(optimizers[0].step, optimizers[1].step, rounds, wait)
    flops = cases.training_flops(ours.config, case.lengths, labels)

    def row(name: str, measured: timing.Paired, **more: Any) -> Row:
        return Row(
            case=case.name,
            rows=case.rows,
            tokens=case.tokens,
            padding=case.padding,
            ours=name,
            ours_dtype=dtype,
            peer=peer,
            peer_dtype=dtype,
            ours_ms=1000 * statistics.median(measured.first),
            peer_ms=1000 * statistics.median(measured.second),
            ratio=measured.ratio,
            ratio_min=min(measured.ratios),
            ratio_max=max(measured.ratios),
            rounds=rounds,
            **more,
        )

    first = row(
        "training step",
        times,
        ours_gflops=flops / statistics.median(times.first) / 1e9,
        peer_gflops=flops / statistics.median(times.second) / 1e9,
        ours_error=abs(losses[0] - losses[1]),
        ours_mib=memory[0][0],
        peer_mib=memory[1][0],
        notes={
            "ours_loss": losses[0],
            "peer_loss": losses[1],
            "gradient_error": gap / largest,
            "labels": labels,
            "memory_ratio": memory[0][0] / memory[1][0],
        },
    )
    for side, (_, fresh, resident) in zip(("ours", "peer"), memory, strict=True):
        first.notes[f"{side}_with_gradients_mib"] = fresh
        if resident is not None:
            first.notes[f"{side}_resident_mib"] = resident
    return [first, row("AdamW step", updates)]


def _loss_and_gradients(model: PreTrainedModel, batch: Batch) -> float:
    model.zero_grad()
    loss = model(**batch, return_dict=True).loss
    loss.backward()
    return float(loss.detach())


def _memory(model: PreTrainedModel, batch: Batch) -> tuple[float, float, float | None]:
    """Peaks of a step in MiB, all beyond the weights.

    Returns:
        Beyond the gradients too: they are there before the step and are added to, so all that it
        allocates is beyond them. Then with the gradients, from none at the start, as a training
        loop has it. Then the resident memory of the first kind.
    """

    def step() -> None:
        model(**batch, return_dict=True).loss.backward()

    peak = timing.cuda_peak if model.device.type == "cuda" else timing.tensor_peak
    model.zero_grad()
    with_gradients = peak(step)
    model.zero_grad(set_to_none=False)
    beyond = peak(step)
    resident = None if model.device.type == "cuda" else timing.resident_peak(step)
    return beyond, with_gradients, resident
