"""A contestant's own process: it does what a line of JSON asks, and answers by another.

Questions are `{"do": NAME, "given": {...}}`, NAME a method of `Worker`; answers are
`{"answer": ...}` or `{"failed": REASON}`.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from hf_bert_impl.benchmark.cases import FROM_TEXT, UPDATE, Unavailable
from hf_bert_impl.benchmark.models import Entry
from hf_bert_impl.errors import one_line
from hf_bert_impl.measuring.batches import Case

PR_SET_PDEATHSIG = 1


class Worker:
    """What a contestant can be asked."""

    def __init__(self, entry: Entry) -> None:
        import torch

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
        import torch

        result = self._take(case.name).result(case)
        torch.save(result, self._file(case))
        return float(result["spearman"]) if "spearman" in result else None

    def check(self, case: Case) -> dict[str, Any]:
        """Its error, quality and memory on a case.

        Returns:
            Of a `Row` without its side: `error`, `rms`, `mib`, `spearman`, as far as there are
            such, and further `notes`.
        """
        import torch

        file = self._file(case)
        reference = torch.load(file, weights_only=True) if file.exists() else None
        found: dict[str, Any] = self._take(case.name).check(case, reference)
        return found

    def turn(self, case: Case, number: int) -> float:
        """Time a case: the mean of as many calls as fill a turn, after an untimed one."""
        from hf_bert_impl.measuring import timing

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
        from hf_bert_impl.measuring import timing

        source = self.entry.source
        sizes = source.config().hidden_size, source.config().intermediate_size
        return timing.best_product(*sizes, self.entry.dtype, source.device)

    def kernels(self) -> str | None:
        """What computes the prepared model, in one line; None where nothing is prepared."""
        return getattr(self._model, "kernels", None)

    def _take(self, case: str) -> Any:
        """The model that runs a case; another one that was loaded for other cases is dropped."""
        from hf_bert_impl.benchmark.contestants import States, Trainer
        from hf_bert_impl.benchmark.text_models import TextModel

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


def reason(error: BaseException) -> str:
    """Why something failed, short enough for a table."""
    text = one_line(error)
    if not isinstance(error, Unavailable):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= 200 else text[:197] + "..."


def die_with(parent: int) -> None:
    """End when the parent does, stopped or not."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the line above
        os._exit(1)


def main(parent: int, entry: str) -> None:
    """Answer requests until there are no more.

    Args:
        parent: The number of the process that asks.
        entry: An `Entry` as JSON.
    """
    die_with(parent)
    # Answers have a channel of their own, so that nothing a library prints gets between them.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker(Entry.from_json(entry))
    for line in sys.stdin:
        request = json.loads(line)
        given = request["given"]
        if isinstance(given.get("case"), dict):
            given["case"] = Case(**given["case"] | {"lengths": tuple(given["case"]["lengths"])})
        try:
            answer = {"answer": getattr(worker, request["do"])(**given)}
        except Exception as error:
            answer = {"failed": reason(error)}
        print(json.dumps(answer), file=answers, flush=True)
