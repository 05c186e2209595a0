"""The parts of a job on Ray Data, which gives them to actors, and to others where one dies.

A row of the data set is a part and not a text: actors read and write by themselves, so the driver
holds no text and no vector. Inputs, output and model have to be where every node finds them.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Iterator
from typing import Any

from hf_bert_impl.distributed.parts import BulkJob, Part
from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import require

#: So long no node may have room for a worker before the job ends.
STARVED_SECONDS = 60.0
#: How often that is looked at.
LOOK_SECONDS = 5.0


class PartMaker:
    """The actor: it has the model, and makes one part a call."""

    def __init__(self, job: BulkJob) -> None:
        self.job = job
        self.task = job.task(**job.options)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Makes the parts of a batch; one that another actor made before it died is left."""
        entries = [self.job.entry(part) or self.job.make(part, self.task) for part in batch["part"]]
        return {"entry": entries}


def make_parts(
    job: BulkJob, parts: list[Part], workers: int, address: str | None
) -> Iterator[dict[str, Any]]:
    """Makes parts in any order.

    Args:
        job: What they are of.
        parts: One or more.
        workers: Most actors. Fewer work where there is no room for all.
        address: Of a cluster; None starts Ray here, and stops it again.

    Yields:
        The entry of each part.

    Raises:
        InputError: Ray is not installed, there is no cluster at the address, or no node has room
            for a worker.
    """
    with _connected(address) as ray:
        cpus = cpus_of_worker([node["Resources"] for node in _nodes(ray)], workers)
        data = ray.data.from_items(
            [{"part": part} for part in parts], override_num_blocks=len(parts)
        ).map_batches(
            PartMaker,
            fn_constructor_args=(job,),
            batch_size=1,
            num_cpus=cpus,
            # A pool of fixed size would wait for ever for the CPUs of a node that has died.
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers),
        )
        yield from _watched(ray, data, cpus)


def cpus_of_worker(nodes: list[dict[str, float]], workers: int) -> int:
    """How many CPUs a worker asks for, which is how many threads it has.

    Args:
        nodes: The resources of each living node.
        workers: How many are to work at once.

    Returns:
        As many as let all work at once, at least 1, and no more than a node has.
    """
    counts = [int(node.get("CPU", 0)) for node in nodes]
    most = max(1, sum(counts) // workers)
    while most > 1 and sum(count // most for count in counts) < workers:
        most -= 1
    return most


def _watched(ray: Any, data: Any, cpus: int) -> Iterator[dict[str, Any]]:
    """The entries of a data set, as long as some node has room for a worker."""
    found: queue.Queue[Any] = queue.Queue()

    def read() -> None:
        try:
            for row in data.iter_rows():
                found.put(row["entry"])
            found.put(None)
        except BaseException as error:
            found.put(error)

    threading.Thread(target=read, daemon=True).start()
    starved = 0.0
    while True:
        try:
            entry = found.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            largest = max((node["Resources"].get("CPU", 0) for node in _nodes(ray)), default=0)
            starved = starved + LOOK_SECONDS if largest < cpus else 0.0
            if starved >= STARVED_SECONDS:
                raise InputError(
                    f"no part was made for {starved:.0f} s: a worker needs {cpus} CPUs, and the "
                    f"largest node of the cluster has {largest:g}",
                    "a node with room for a worker",
                    "add nodes, or ask for more `workers`, which are then smaller; what is done "
                    "is kept",
                ) from None
            continue
        starved = 0.0
        if entry is None:
            return
        if isinstance(entry, BaseException):
            raise _cause(entry)
        yield entry


def _cause(error: BaseException) -> BaseException:
    """What a worker raised, without what Ray wraps around it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, InputError | OSError):
            return seen
        inner = getattr(seen, "cause", None) or seen.__cause__
        seen = inner if isinstance(inner, BaseException) else None
    return error


def _nodes(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Ray, started or reached; it is left as it was found."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # sends nothing unless it is asked to
    ray = require("ray", "ray", "the engine 'ray'")
    if ray.is_initialized():
        yield ray
        return
    import logging

    try:
        ray.init(
            address=address or "local",
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(
            f"Ray cannot be reached at {address!r} ({str(error).splitlines()[0]:.200})",
            "the address of a running cluster, such as 10.0.0.1:6379 or auto",
            "start one with `ray start --head`, or leave the address out",
        ) from error
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()
