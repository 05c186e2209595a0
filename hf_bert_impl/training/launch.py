"""What the launcher of a run says to its processes, before they know each other and after.

`torchrun` and `accelerate launch` start a process for each device, and an agent on each machine.
Where a process dies, the agents end all the others and start them anew, as often as
`--max-restarts` says. Nothing large is imported here: who was started in vain ends at once.
"""

from __future__ import annotations

import functools
import os
import time
import uuid
from pathlib import Path
from typing import Any

from hf_bert_impl.errors import InputError

#: What our keys in the launcher's store begin with.
KEYS = "hf_bert_impl"
#: How long the processes of a run wait for each other to begin.
MEETING_SECONDS = 1800.0


class Launch:
    """What connects the processes of this run while there is no group yet, and after one broke.

    Args:
        environment: The variables that the launcher set; without them the process is alone.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.rank = int(environment.get("RANK", 0))
        self.size = int(environment.get("WORLD_SIZE", 1))
        #: The agent's store. It outlives the processes, and so do the keys of those that died.
        self.lasting: Any = None
        #: The part of it that belongs to this start of the processes.
        self.fresh: Any = None
        #: Whether an earlier start ended for a reason that every later one would meet again.
        self.is_hopeless = False
        if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            from torch.distributed import PrefixStore, TCPStore

            address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
            store = TCPStore(address, port, is_master=False, wait_for_workers=False)
            self.lasting = PrefixStore(KEYS, store)
            self._start = self._meet()
            self.fresh = PrefixStore(self._start, self.lasting)
            self.is_hopeless = self.lasting.check(["hopeless"])

    def _meet(self) -> str:
        """Agrees with the other processes of this start on a name that no earlier start had.

        torch gives restarted processes the store of those that died, addresses included, and the
        new ones would try to connect to the dead. The number of restarts is no such name: each
        machine counts its own. So each process draws a name, the first one publishes those that it
        has seen, and whoever finds its own there answers: the dead cannot.
        """
        mine = uuid.uuid4().hex
        self.lasting.set(f"name/{self.rank}", mine)
        deadline = time.monotonic() + MEETING_SECONDS
        others = set(range(1, self.size))
        while True:
            if self.rank == 0:
                names = [self.lasting.get(f"name/{rank}").decode() for rank in range(self.size)]
                self.lasting.set("names", " ".join(names))
                others -= {rank for rank in others if self.lasting.check([f"{mine}/{rank}"])}
                if not others:
                    return mine
            elif self.lasting.check(["names"]):
                names = self.lasting.get("names").decode().split()
                if len(names) == self.size and names[self.rank] == mine:
                    self.lasting.set(f"{names[0]}/{self.rank}", "")
                    return names[0]
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"process {self.rank} of {self.size} has waited {MEETING_SECONDS / 60:.0f} "
                    "minutes for the others to begin; expected all of them; look at the other "
                    "machines"
                )
            time.sleep(0.05)

    def check(self) -> None:
        """Does nothing in a start that can come to something.

        Raises:
            InputError: An earlier start of this launch was refused, and so is this one.
        """
        if self.is_hopeless:
            raise InputError(
                "the launcher starts again what was refused before",
                "other input",
                "see the first line",
            )

    def has_begun(self, output: Path) -> bool:
        """Whether an earlier start of this launch, not this one, began to write an output."""
        key = f"output/{output.resolve()}"
        return (
            self.lasting is not None
            and self.lasting.check([key])
            and self.lasting.get(key).decode() != self._start
        )

    def begin(self, output: Path) -> None:
        """Notes that this launch writes an output from here on."""
        if self.lasting is not None:
            self.lasting.set(f"output/{output.resolve()}", self._start)

    def is_first_to_fail(self, is_refused: bool) -> bool:
        """Whether no other process has failed before, so that this one is to speak.

        Args:
            is_refused: Whether it fails for what was given. Then the launcher's further starts fail
                at once, and without a word.
        """
        if self.fresh is None or self.is_hopeless:
            return not self.is_hopeless
        mine = str(self.rank)
        if is_refused:
            self.lasting.set("hopeless", "")
        return bool(self.fresh.compare_set("failed", "", mine).decode() == mine)


@functools.cache
def launch() -> Launch:
    """What the launcher of this process gave it."""
    return Launch(dict(os.environ))
