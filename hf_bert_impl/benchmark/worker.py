"""A contestant's own process: it does what a pickled request asks, and answers by another pickle.

Requests are `(NAME, arguments)`, NAME a method of its object; answers are `(True, ANSWER)` or
`(False, REASON)`. The first one, `open`, brings the function that makes the object.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import sys
from typing import Any

from hf_bert_impl.benchmark.cases import Unavailable
from hf_bert_impl.errors import one_line
from hf_bert_impl.freed_memory import keep_freed_memory

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


def main(parent: int) -> None:
    """Answer requests until there are no more.

    Args:
        parent: The number of the process that asks.
    """
    die_with(parent)
    keep_freed_memory()  # for every runtime alike, as the command that starts it does
    # Answers have a channel of their own, so that nothing a library prints gets between them.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    contestant: Any = None
    with contextlib.suppress(EOFError):
        while True:
            do, given = pickle.load(sys.stdin.buffer)
            answer: tuple[bool, Any]
            try:
                if do == "open":
                    (make,) = given
                    contestant, answer = make(), (True, None)
                    # Each turn collects garbage first: it need not look through all libraries.
                    gc.collect()
                    gc.freeze()
                else:
                    answer = True, getattr(contestant, do)(*given)
            except Exception as error:
                answer = False, reason(error)
            pickle.dump(answer, answers)
            answers.flush()
