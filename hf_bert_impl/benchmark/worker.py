"""A contestant's own process: it does what a line of JSON asks, and answers by another.

Questions are `{"do": NAME, "given": {...}}`, NAME a method of `contestants.Worker`; answers are
`{"answer": ...}` or `{"failed": REASON}`.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys

from hf_bert_impl.benchmark.cases import Unavailable
from hf_bert_impl.benchmark.models import Entry
from hf_bert_impl.errors import one_line
from hf_bert_impl.freed_memory import keep_freed_memory
from hf_bert_impl.measuring.batches import Case

PR_SET_PDEATHSIG = 1


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
    keep_freed_memory()  # for every runtime alike, as the command that starts it does
    # Answers have a channel of their own, so that nothing a library prints gets between them.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # What is imported stays; `Worker` freezes it with its model.
    gc.disable()
    from hf_bert_impl.benchmark.contestants import Worker

    gc.enable()
    worker = Worker(Entry.from_json(entry))
    for line in sys.stdin:
        request = json.loads(line)
        given = request["given"]
        if "case" in given:
            given["case"] = Case(**given["case"] | {"lengths": tuple(given["case"]["lengths"])})
        try:
            answer = {"answer": getattr(worker, request["do"])(**given)}
        except Exception as error:
            answer = {"failed": reason(error)}
        print(json.dumps(answer), file=answers, flush=True)
