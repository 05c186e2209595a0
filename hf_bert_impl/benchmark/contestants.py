"""Contestants of padded batches: hidden states of a forward pass, and a masked-LM training step.

They and `text_models.TextModel` can be asked the same: what a turn times, what all are compared by,
and how far they are from a reference.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hf_bert_impl.benchmark import memory, texts
from hf_bert_impl.benchmark.cases import FROM_TEXT, PARTS, UPDATE, Unavailable, make_labels
from hf_bert_impl.benchmark.models import Entry
from hf_bert_impl.benchmark.runtimes import build_runner, upstream_model
from hf_bert_impl.benchmark.text_models import TextModel, errors
from hf_bert_impl.benchmark.texts import Batch, text_batches
from hf_bert_impl.measuring import timing
from hf_bert_impl.measuring.batches import TEXT_ROWS, Case, make_batch
from hf_bert_impl.tasks.sts import evaluate_sts

#: How many texts are compared. More of them would say nothing new.
CHECKED = 256


class States:
    """The hidden states of padded batches, by one of ours, transformers' own or a runtime.

    Raises:
        Unavailable: It cannot run here.
    """

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.runner = build_runner(entry)
        self._inputs: dict[Case, list[Any]] = {}

    @property
    def kernels(self) -> str | None:
        """What computes a prepared model, in one line."""
        return self.runner.kernels()

    def lengths(self) -> list[int]:
        """Tokens of each text of `sts`."""
        return [
            int(length)
            for batch in text_batches(self.entry, self._texts())
            for length in batch["attention_mask"].sum(dim=1)
        ]

    def call(self, case: Case, number: int) -> Callable[[], Any]:
        """What a turn times; of texts the part whose turn it is."""
        if case not in self._inputs:
            self._inputs[case] = [self.runner.convert(batch) for batch in self._batches(case)]
        given = self._inputs[case]
        if case.name != "sts":
            return functools.partial(self.runner.call, given[0])
        part = given[number % PARTS :: PARTS]

        def call() -> None:
            for batch in part:
                self.runner.call(batch)

        return call

    def result(self, case: Case) -> dict[str, Tensor]:
        """(T, D) states at attended positions, and for `sts` the Spearman correlation."""
        compared = self._batches(case)[: CHECKED // TEXT_ROWS]
        result = {"values": torch.cat([self._states(batch) for batch in compared])}
        if case.name == "sts":
            result["spearman"] = torch.tensor(self._spearman(), dtype=torch.float64)
        return result

    def check(self, case: Case, reference: dict[str, Tensor] | None) -> dict[str, Any]:
        """Errors beside the reference's states; memory of a batch, Spearman of `sts`."""
        result = self.result(case)
        found = errors(result, reference)
        if case.name == "sts":
            return found | {"spearman": float(result["spearman"])}
        call = self.call(case, 0)
        return found | {"mib": memory.peak(call, self.entry.source.device, self.runner.release)}

    def _states(self, batch: Batch) -> Tensor:
        runner = self.runner
        states = runner.states(runner.call(runner.convert(batch)))
        return states[batch["attention_mask"].bool().cpu()]  # (T, D)

    def _batches(self, case: Case) -> list[Batch]:
        if case.name == "sts":
            return text_batches(self.entry, self._texts())
        config = self.entry.source.config()
        return [make_batch(case, config.vocab_size, self.entry.source.device)]

    def _texts(self) -> list[str]:
        if self.entry.source.path is None:
            raise Unavailable("random weights rank nothing; name a checkpoint")
        return texts.sts_texts(texts.sts(2014, self.entry.pairs))

    def _spearman(self) -> float:
        """Of the cosines of mean vectors, times 100."""

        def encode(sentences: list[str]) -> np.ndarray[Any, Any]:
            vectors = []
            for batch in text_batches(self.entry, sentences):
                lengths = batch["attention_mask"].sum(dim=1).tolist()
                vectors += [rows.mean(dim=0) for rows in self._states(batch).split(lengths)]
            found: np.ndarray[Any, Any] = torch.stack(vectors).numpy()  # (sentences, D)
            return found

        return evaluate_sts(encode, texts.sts(2014, self.entry.pairs))[0].spearman


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

    def call(self, case: Case, number: int) -> Callable[[], Any]:
        """What a turn times: a step, or `UPDATE`, which needs a step before it."""
        if case.name == UPDATE:
            return self.optimizer.step
        batch = self._batch(case)

        def step() -> None:
            self.model.zero_grad()
            self._loss(batch).backward()

        return step

    def result(self, case: Case) -> dict[str, Tensor]:
        """The loss of a step, and the gradients by the name of the weight."""
        self.model.zero_grad()
        loss = self._loss(self._batch(case))
        loss.backward()
        gradients = {
            name: weight.grad.cpu()
            for name, weight in self.model.named_parameters()
            if weight.grad is not None
        }
        return gradients | {"loss": loss.detach().cpu()}

    def check(self, case: Case, reference: dict[str, Tensor] | None) -> dict[str, Any]:
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
        beyond, fresh, resident = self._memory(self._batch(case))
        notes["with_gradients_mib"] = fresh
        if resident is not None:
            notes["resident_mib"] = resident
        return {"error": error, "mib": beyond, "notes": notes}

    def _batch(self, case: Case) -> Batch:
        batch = make_batch(case, self.model.config.vocab_size, str(self.model.device))
        return batch | {"labels": make_labels(batch)}

    def _loss(self, batch: Batch) -> Tensor:
        loss: Tensor = self.model(**batch, return_dict=True).loss
        return loss

    def _memory(self, batch: Batch) -> tuple[float, float, float | None]:
        """Peaks of a step in MiB, all beyond the weights.

        Returns:
            Beyond the gradients too: they are there before the step and are added to, so all that
            it allocates is beyond them. Then with the gradients, from none at the start, as a
            training loop has it. Then the resident memory of the first kind.
        """

        def step() -> None:
            self._loss(batch).backward()

        cuda = self.model.device.type == "cuda"
        peak = memory.cuda_peak if cuda else memory.tensor_peak
        self.model.zero_grad()
        with_gradients = peak(step)
        self.model.zero_grad(set_to_none=False)
        return peak(step), with_gradients, None if cuda else memory.resident_peak(step)


class Worker:
    """What a contestant can be asked."""

    def __init__(self, entry: Entry) -> None:
        torch.set_num_threads(entry.threads)
        self.entry = entry
        #: A `States`, `Trainer` or `TextModel`, and what it was loaded for.
        self._model: Any = None
        self._loaded: str | None = None

    def open(self, name: str) -> None:
        """Load what a case takes."""
        self._take(name)

    def lengths(self, name: str) -> list[int]:
        """Tokens of each text of a case of texts."""
        lengths: list[int] = self._take(name).lengths()
        return lengths

    def record(self, case: Case) -> float | None:
        """Keep its results on a case as those that all others are compared with.

        Returns:
            Spearman's correlation where the case has one.
        """
        result = self._take(case.name).result(case)
        torch.save(result, self._file(case))
        return float(result["spearman"]) if "spearman" in result else None

    def check(self, case: Case) -> dict[str, Any]:
        """Its error, quality and memory on a case.

        Returns:
            Of a `Row` without its side: `error`, `rms`, `mib`, `spearman`, as far as there are
            such, and further `notes`.
        """
        file = self._file(case)
        reference = torch.load(file, weights_only=True) if file.exists() else None
        found: dict[str, Any] = self._take(case.name).check(case, reference)
        return found

    def turn(self, case: Case, number: int) -> float:
        """Time a case: the mean of as many calls as fill a turn, after an untimed one."""
        call = self._take(case.name).call(case, number)
        gc.collect()
        gc.disable()
        try:
            wait = timing.device_wait(self.entry.source.device)
            return timing.turn(call, self.entry.turn_seconds, wait)
        finally:
            gc.enable()

    def products(self) -> dict[str, float]:
        """The rates of matrix products of the model's sizes in its process."""
        source = self.entry.source
        sizes = source.config().hidden_size, source.config().intermediate_size
        return timing.best_product(*sizes, self.entry.dtype, source.device)

    def kernels(self) -> str | None:
        """What computes the prepared model, in one line; None where nothing is prepared."""
        return getattr(self._model, "kernels", None)

    def _take(self, case: str) -> Any:
        """The model that runs a case; another one that was loaded for other cases is dropped."""
        wanted = case if case in FROM_TEXT else "train" if case in ("train", UPDATE) else "states"
        if self._loaded != wanted:
            gc.unfreeze()
            self._model = self._loaded = None
            gc.collect()
            if case in FROM_TEXT:
                self._model = TextModel(self.entry, case)
            else:
                self._model = (Trainer if wanted == "train" else States)(self.entry)
            self._loaded = wanted
            # Each turn collects garbage first. It need not look through all of transformers then.
            gc.collect()
            gc.freeze()
        return self._model

    def _file(self, case: Case) -> Path:
        return Path(self.entry.scratch) / f"{case.name}-{case.rows}.pt"
