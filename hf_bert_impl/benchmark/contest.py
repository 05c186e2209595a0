"""Contestants, each in a process of its own, and their races.

Idle threads of some runtimes spin, which slows down whoever runs beside them. So a contestant is
stopped (SIGSTOP) while it is not its turn. No process stays behind: each is the head of a process
group that is killed at the end; it asks Linux to kill it when its parent ends; elsewhere a stopped
group that lost its parent is hung up and continued, and finds the end of its input.

Requests are pickles of `(NAME, arguments)`, NAME a method of the contestant's object. Answers are
`(True, ANSWER)` or `(False, REASON)`. The first request, `open`, brings the function that makes the
object.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from hf_bert_impl.benchmark.cases import Unavailable
from hf_bert_impl.errors import one_line
from hf_bert_impl.freed_memory import keep_freed_memory

#: Windows cannot stop a process. There the threads of waiting contestants stay awake.
CAN_STOP = hasattr(signal, "SIGSTOP")
PR_SET_PDEATHSIG = 1
#: The child has the modules of its parent, wherever those come from.
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from hf_bert_impl.benchmark.contest import main; main(int(sys.argv[2]))"
)


class Contestant:
    """An object in a process of its own, which is stopped outside `ask`.

    Args:
        name: What results call it.
        dtype: Its precision.
        make: Makes the object there, a picklable function without arguments such as a
            `functools.partial` of a class.
        threads: Of the tokenizer; `make` sees to those of everything else.
        scratch: A folder for its temporary files.

    Raises:
        Unavailable: It cannot be made.
    """

    def __init__(
        self, name: str, dtype: str, make: Callable[[], Any], threads: int, scratch: str
    ) -> None:
        self.name, self.dtype = name, dtype
        self._is_closed = False
        own_group: dict[str, Any] = {"process_group": 0} if os.name == "posix" else {}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", START, json.dumps(sys.path), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ
            | dict.fromkeys(("TMPDIR", "TEMP"), scratch)
            | {"RAYON_NUM_THREADS": str(threads)},
            **own_group,
        )
        try:
            self.ask("open", make)
        except BaseException:
            self.close()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked again."""
        return self.process.poll() is None

    def ask(self, do: str, *given: Any) -> Any:
        """Let it work until it has answered.

        Args:
            do: A method of its object.
            given: Arguments.

        Returns:
            The answer.

        Raises:
            Unavailable: It failed or has ended.
        """
        if not self.is_alive:
            raise Unavailable(self._end())
        try:
            self._signal("SIGCONT")
            assert self.process.stdin is not None and self.process.stdout is not None
            pickle.dump((do, given), self.process.stdin)
            self.process.stdin.flush()
            succeeded, answer = pickle.load(self.process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise Unavailable(self._end()) from None
        self._stop()
        if not succeeded:
            raise Unavailable(answer)
        return answer

    def _signal(self, name: str) -> None:
        if CAN_STOP and self.process.returncode is None:
            os.killpg(self.process.pid, getattr(signal, name))

    def _stop(self) -> None:
        """Stop the whole group; returns when it is stopped, so that nothing runs beside others."""
        if not CAN_STOP:
            return
        with contextlib.suppress(ProcessLookupError):
            self._signal("SIGSTOP")
            _, status = os.waitpid(self.process.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                self.process.returncode = os.waitstatus_to_exitcode(status)

    def _end(self) -> str:
        """Why a process that closed its output has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.close()
        code = self.process.returncode
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with status {code}"

    def close(self) -> None:
        """End it, whatever it does; a second time does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        # macOS forbids signals to a group whose members have all ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                # Even if it has ended already: its children are in the same group.
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.communicate()

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def race(
    contestants: Sequence[Contestant],
    rounds: int,
    case: Any,
    lost: Callable[[Contestant, Unavailable], None],
) -> dict[Contestant, list[float]]:
    """Time contestants in turns, the order reversed each round.

    Args:
        contestants: Who races; the method `turn` of each gives its seconds.
        rounds: How many times each is timed.
        case: What it is asked for, beside the number of the round.
        lost: Told of one that drops out; the others go on.

    Returns:
        The seconds of each contestant that came to the end, a round each.
    """
    times: dict[Contestant, list[float]] = {one: [] for one in contestants}
    for number in range(rounds):
        for one in reversed([*times]) if number % 2 else [*times]:
            try:
                times[one].append(one.ask("turn", case, number))
            except Unavailable as error:
                lost(one, error)
                del times[one]
    return times


# --- in a contestant's own process ---------------------------------------------------------------


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
