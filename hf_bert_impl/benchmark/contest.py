"""Contestants, each in its own process, and their races.

Idle threads of some runtimes spin and slow down other processes, so a contestant is stopped
(SIGSTOP) between its turns. Each process leads a process group that is killed at the end. On Linux
the kernel also kills it when its parent ends. Elsewhere a stopped group without a parent is hung up
and continued, and reads the end of its input.

Requests are pickles of `(NAME, arguments)` with a method's name. Answers are `(True, ANSWER)` or
`(False, REASON)`. The first request, `open`, has the function that makes the object.
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

#: Windows cannot stop a process: threads of waiting contestants stay awake.
CAN_STOP = hasattr(signal, "SIGSTOP")
PR_SET_PDEATHSIG = 1
#: The child gets its parent's module path.
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from hf_bert_impl.benchmark.contest import main; main(int(sys.argv[2]))"
)


class Contestant:
    """An object in its own process, which is stopped outside `ask`.

    Args:
        name: Its name in results.
        dtype: Its precision.
        make: A picklable function without arguments that makes the object, such as a
            `functools.partial` of a class.
        threads: Of the tokenizer; `make` sets all others.
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
        """Whether it accepts requests."""
        return self.process.poll() is None

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the object and returns its answer.

        Raises:
            Unavailable: It failed or has ended.
        """
        if not self.is_alive:
            raise Unavailable(self._end())
        try:
            self._signal("SIGCONT")
            assert self.process.stdin is not None and self.process.stdout is not None
            pickle.dump((method, arguments), self.process.stdin)
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
        """Stops the group, and returns when it is stopped."""
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
        """Ends the process; a second call has no effect."""
        if self._is_closed:
            return
        self._is_closed = True
        # macOS forbids signals to a group whose members have all ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                # Also after its end: its children are in the same group.
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
    """Times contestants in turns, and reverses their order each round.

    Args:
        contestants: Their method `turn` returns seconds.
        rounds: Number of rounds.
        case: Argument of `turn`, with the number of the round.
        lost: Called with a contestant that drops out; the race continues.

    Returns:
        The seconds of each remaining contestant by round.
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


# --- in a contestant's process -------------------------------------------------------------------


def reason(error: BaseException) -> str:
    """The cause of a failure, short enough for a table."""
    text = one_line(error)
    if not isinstance(error, Unavailable):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= 200 else text[:197] + "..."


def die_with(parent: int) -> None:
    """Ends with the parent, stopped or not."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent had already ended
        os._exit(1)


def main(parent: int) -> None:
    """Answers the parent process until the input ends."""
    die_with(parent)
    keep_freed_memory()  # for every runtime, as in the command that starts it
    # Answers have their own channel: libraries may print to standard output.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    contestant: Any = None
    with contextlib.suppress(EOFError):
        while True:
            method, arguments = pickle.load(sys.stdin.buffer)
            answer: tuple[bool, Any]
            try:
                if method == "open":
                    (make,) = arguments
                    contestant, answer = make(), (True, None)
                    # Each turn collects garbage first; this excludes all libraries.
                    gc.collect()
                    gc.freeze()
                else:
                    answer = True, getattr(contestant, method)(*arguments)
            except Exception as error:
                answer = False, reason(error)
            pickle.dump(answer, answers)
            answers.flush()
