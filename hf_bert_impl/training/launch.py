"""The store of a launcher, which outlives the processes that it starts.

`torchrun` and `accelerate launch` start one process per device, and one agent per machine. If a
process dies, the agents end and restart all of them, up to `--max-restarts` times. Imports are
light: a start that was refused ends at once.
"""

from __future__ import annotations

import functools
import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from hf_bert_impl.errors import InputError

#: How long the processes of a run wait for each other at the start.
MEETING = timedelta(minutes=30)
#: Timeout of a port.
CONNECTING_SECONDS = 10


@functools.cache
def agent_store() -> Any:
    """The agents' store; None without a launcher that has one."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from torch.distributed import PrefixStore

    return PrefixStore("hf_bert_impl", _connect(int(os.environ["MASTER_PORT"])))


def _connect(port: int, **options: Any) -> Any:
    from torch.distributed import TCPStore

    address = os.environ["MASTER_ADDR"]
    return TCPStore(address, port, wait_for_workers=False, timeout=MEETING, **options)


def group_store() -> Any:
    """The store of this start alone, in which the processes form their group.

    torch gives restarted processes the store of dead ones, with addresses that no longer answer. So
    the first process opens a new store and publishes its port.
    """
    agents = agent_store()
    if os.environ["RANK"] == "0":
        store = _connect(0, is_master=True)
        agents.set("port", str(store.port))
        return store
    deadline = time.monotonic() + MEETING.total_seconds()
    while True:
        port = int(agents.get("port"))
        try:
            # torch's own store would wait for a dead port, and print a long report.
            socket.create_connection((os.environ["MASTER_ADDR"], port), CONNECTING_SECONDS).close()
            return _connect(port)
        except OSError:  # the port is that of an earlier start
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def check_not_refused() -> None:
    """Raises InputError if an earlier start of this launch was refused, as this one would be."""
    store = agent_store()
    if store is not None and store.check(["refused"]):
        raise InputError(
            "the launcher restarts what was refused before. See the first error above."
        )


def has_begun(output: Path) -> bool:
    """Whether this launch has begun to write an output, as before a restart."""
    store = agent_store()
    return store is not None and store.check([f"output/{os.path.realpath(output)}"])


def begin(output: Path) -> None:
    """Records that this launch writes an output."""
    store = agent_store()
    if store is not None:
        store.set(f"output/{os.path.realpath(output)}", "")


def is_first_to_fail(is_refused: bool) -> bool:
    """Whether this process is the first of its start to fail, and so reports.

    Args:
        is_refused: Whether it fails because of its input; then further starts fail at once.
    """
    store = agent_store()
    if store is None:
        return os.environ.get("RANK", "0") == "0"
    start = store.get("port").decode() if store.check(["port"]) else ""
    if is_refused:
        store.set("refused", "")
    return bool(store.add(f"failed/{start}", 1) == 1)
