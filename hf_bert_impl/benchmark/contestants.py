"""A contestant of the cases that need hidden states: of batches, and of the texts of `sts`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_bert_impl.benchmark import memory, texts
from hf_bert_impl.benchmark.cases import PARTS, Unavailable
from hf_bert_impl.benchmark.peers import Check, Entry
from hf_bert_impl.benchmark.runtimes import build_runner
from hf_bert_impl.benchmark.texts import Batch, text_batches
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

    def call(self, case: Case, what: str, number: int) -> Callable[[], Any]:
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
        result = {"states": torch.cat([self._states(batch) for batch in compared])}
        if case.name == "sts":
            result["spearman"] = torch.tensor(self._spearman(), dtype=torch.float64)
        return result

    def check(self, case: Case, reference: dict[str, Tensor] | None) -> Check:
        """Errors beside the reference's states; memory of a batch, Spearman of `sts`."""
        result = self.result(case)
        check = Check(*errors(result, reference))
        if case.name == "sts":
            return dataclasses.replace(check, spearman=float(result["spearman"]))
        call = self.call(case, "", 0)
        if self.entry.source.device == "cpu":
            return dataclasses.replace(check, mib=memory.resident_peak(call, self.runner.release))
        return dataclasses.replace(check, mib=memory.cuda_peak(call))

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


def errors(
    result: dict[str, Tensor], reference: dict[str, Tensor] | None, name: str = "states"
) -> tuple[float | None, float | None]:
    """The largest difference and the root of the mean squared one; None without a reference."""
    if reference is None:
        return None, None
    gaps = (result[name] - reference[name]).double()
    return gaps.abs().max().item(), gaps.square().mean().sqrt().item()
