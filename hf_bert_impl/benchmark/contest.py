"""Contestants as the process that races them sees them: each in a process of its own.

Idle threads of some runtimes spin, which slows down whoever runs beside them. So a contestant is
stopped (SIGSTOP) while it is not its turn. No process stays behind: each is the head of a process
group that is killed at the end; it asks Linux to kill it when its parent ends; elsewhere a stopped
group that lost its parent is hung up and continued, and finds the end of its input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.benchmark.cases import Unavailable
from hf_bert_impl.benchmark.models import Entry
from hf_bert_impl.measuring.batches import Case

if TYPE_CHECKING:
    from collections.abc import Callable

#: Windows cannot stop a process. There the threads of waiting contestants stay awake.
CAN_STOP = hasattr(signal, "SIGSTOP")
#: Seconds after which a contestant that does not answer is given up; compiling takes minutes.
PATIENCE_SECONDS = 1200.0
#: The child has the modules of its parent, wherever those come from.
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from hf_bert_impl.benchmark.worker import main; main(int(sys.argv[2]), sys.argv[3])"
)
#: Computes until its input ends. That happens when its parent ends. It takes turns with all others:
#: under a real-time policy of its parent it would let nobody have the processor.
BUSY = (
    "import os, sys, threading\n"
    "if hasattr(os, 'SCHED_OTHER'): os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))\n"
    "threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()\n"
    "print(flush=True)\n"
    "while True: pass"
)
#: Removes a folder when its input ends. That happens when its parent ends, even if it is killed.
CLEAN_UP = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"


class Contestant:
    """One of ours, or a peer, in a process of its own, which is stopped outside `ask`.

    Args:
        entry: Who computes in it.
        name: What results call it; None for the entry's name.
    """

    def __init__(self, entry: Entry, name: str | None = None) -> None:
        self.entry, self.name = entry, name or entry.name
        self.checks: dict[Case, dict[str, Any]] = {}
        # Holds what the process prints. It is read only if the process crashes.
        self._said = Path(entry.scratch) / f"said-{os.urandom(4).hex()}"
        own_group: dict[str, Any] = {"process_group": 0} if os.name == "posix" else {}
        told = (json.dumps(sys.path), str(os.getpid()), json.dumps(dataclasses.asdict(entry)))
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", START, *told],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                encoding="utf-8",
                # Compiling must start no processes, and tokenizers get no more threads than others.
                env=os.environ
                | {
                    "KINETO_LOG_LEVEL": "99",
                    "RAYON_NUM_THREADS": str(entry.threads),
                    "TORCHINDUCTOR_COMPILE_THREADS": "1",
                },
                **own_group,
            )
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked again."""
        return self.process.poll() is None

    def ask(self, do: str, case: Case | None = None, **given: Any) -> Any:
        """Let it work until it has answered.

        Args:
            do: A method of `contestants.Worker`.
            case: What about.
            given: Further arguments.

        Returns:
            The answer.

        Raises:
            Unavailable: It failed, has ended or does not answer.
        """
        if not self.is_alive:
            raise Unavailable(self._end())
        told = given | ({} if case is None else {"case": dataclasses.asdict(case)})
        try:
            self._signal("SIGCONT")
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps({"do": do, "given": told}) + "\n")
            self.process.stdin.flush()
            line = self._answers.get(timeout=PATIENCE_SECONDS)
        except queue.Empty:
            self.close()
            raise Unavailable(f"gave no answer for {PATIENCE_SECONDS:.0f} s") from None
        except OSError:  # the process has ended
            line = None
        if line is None:
            raise Unavailable(self._end())
        self._stop()
        answer = json.loads(line)
        if "failed" in answer:
            raise Unavailable(answer["failed"])
        return answer["answer"]

    def turn(self, case: Case, number: int) -> float:
        """Its seconds for a case in round `number`."""
        seconds: float = self.ask("turn", case, number=number)
        return seconds

    def check(self, case: Case) -> dict[str, Any]:
        """What `contestants.Worker.check` gives; measured once."""
        if case not in self.checks:
            self.checks[case] = self.ask("check", case)
        return self.checks[case]

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
        lines = self._said.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        return f"its process ended with status {code}: {last[:150]}"

    def close(self) -> None:
        """End it, whatever it does; a second time does nothing."""
        assert self.process.stdin is not None
        if self.process.stdin.closed:
            return
        # macOS forbids signals to a group whose members have all ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                # Even if it has ended already: its children are in the same group.
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.wait()
        self._listener.join()
        with contextlib.suppress(OSError):  # it had not read everything
            self.process.stdin.close()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def race(
    contestants: Sequence[Contestant],
    cases: Sequence[Case],
    rounds: int,
    lost: Callable[[Contestant, Unavailable], None],
) -> list[dict[Contestant, list[float]]]:
    """Time contestants in turns, the order reversed each round.

    Args:
        contestants: Who races.
        cases: Each round has all of them.
        rounds: How many times each is timed.
        lost: Told of one that drops out; the others go on.

    Returns:
        For each case the seconds of each contestant that came to the end, a round each.
    """
    times: list[dict[Contestant, list[float]]] = [{c: [] for c in contestants} for _ in cases]

    def turn(place: int, one: Contestant, number: int) -> None:
        if one not in times[place]:
            return
        try:
            times[place][one].append(one.turn(cases[place], number))
        except Unavailable as error:
            lost(one, error)
            for by_contestant in times:
                del by_contestant[one]

    pairs = [(place, one) for place in range(len(cases)) for one in contestants]
    for place, one in pairs:  # untimed, since a first call makes the batch
        turn(place, one, 0)
    for by_contestant in times:
        for seconds in by_contestant.values():
            seconds.clear()
    for number in range(rounds):
        for place, one in reversed(pairs) if number % 2 else pairs:
            turn(place, one, number)
    return times


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """A folder that does not outlive this process, even where that is killed."""
    folder = tempfile.mkdtemp(prefix="hf-bert-benchmark-")
    command = [sys.executable, "-I", "-c", CLEAN_UP, folder]
    # An interrupt from the keyboard must not end it, so it gets a session of its own.
    cleaner = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield folder
    finally:
        cleaner.communicate()


@contextlib.contextmanager
def neighbours(number: int) -> Iterator[None]:
    """As many processes that compute beside whatever runs within."""
    with contextlib.ExitStack() as started:
        for _ in range(number):
            command = [sys.executable, "-I", "-c", BUSY]
            pipe = subprocess.PIPE
            process = started.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe))
            started.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()  # it says that it has begun
        yield
