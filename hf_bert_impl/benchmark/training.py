"""A contestant of the training case: a masked-LM step, its loss, gradients and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hf_bert_impl.benchmark import memory
from hf_bert_impl.benchmark.cases import UPDATE, make_labels
from hf_bert_impl.benchmark.peers import Check, Entry
from hf_bert_impl.benchmark.runtimes import upstream_model
from hf_bert_impl.benchmark.texts import Batch
from hf_bert_impl.measuring.batches import Case, make_batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Trainer:
    """A masked language model in train mode, its dropout off so that losses can be compared.

    Args:
        entry: `unchanged`, or one of the upstream peers.
    """

    def __init__(self, entry: Entry) -> None:
        model = entry.source.load("BertForMaskedLM")
        if entry.name != "unchanged":
            model = upstream_model(model, entry.name)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        self.model = model.train()
        # A step at rate 0 takes as long and leaves the weights as they are.
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)

    def call(self, case: Case, what: str, number: int) -> Callable[[], Any]:
        """What a turn times: `STEP`, or `UPDATE`, which needs a step before it."""
        if what == UPDATE:
            return self.optimizer.step
        batch = self._batch(case)

        def step() -> None:
            self.model.zero_grad()
            self.model(**batch, return_dict=True).loss.backward()

        return step

    def result(self, case: Case) -> dict[str, Tensor]:
        """The loss of a step, and the gradients by the name of the weight."""
        self.model.zero_grad()
        loss = self.model(**self._batch(case), return_dict=True).loss
        loss.backward()
        gradients = {
            name: weight.grad.cpu()
            for name, weight in self.model.named_parameters()
            if weight.grad is not None
        }
        return gradients | {"loss": loss.detach().cpu()}

    def check(self, case: Case, reference: dict[str, Tensor] | None) -> Check:
        """How far the loss is from the reference's, and the peak beyond weights and gradients."""
        ours = self.result(case)
        loss, error = float(ours.pop("loss")), None
        notes = {"loss": loss}
        if reference is not None:
            error = abs(loss - float(reference.pop("loss")))
            gap = max((ours[name] - theirs).abs().max() for name, theirs in reference.items())
            largest = max(theirs.abs().max() for theirs in reference.values())
            notes["gradient_error"] = float(gap / largest)
        del ours, reference
        beyond, fresh, resident = _memory(self.model, self._batch(case))
        notes["with_gradients_mib"] = fresh
        if resident is not None:
            notes["resident_mib"] = resident
        return Check(error=error, mib=beyond, notes=notes)

    def _batch(self, case: Case) -> Batch:
        batch = make_batch(case, self.model.config.vocab_size, str(self.model.device))
        return batch | {"labels": make_labels(batch)}


def _memory(model: PreTrainedModel, batch: Batch) -> tuple[float, float, float | None]:
    """Peaks of a step in MiB, all beyond the weights.

    Returns:
        Beyond the gradients too: they are there before the step and are added to, so all that it
        allocates is beyond them. Then with the gradients, from none at the start, as a training
        loop has it. Then the resident memory of the first kind.
    """

    def step() -> None:
        model(**batch, return_dict=True).loss.backward()

    peak = memory.cuda_peak if model.device.type == "cuda" else memory.tensor_peak
    model.zero_grad()
    with_gradients = peak(step)
    model.zero_grad(set_to_none=False)
    beyond = peak(step)
    resident = None if model.device.type == "cuda" else memory.resident_peak(step)
    return beyond, with_gradients, resident
