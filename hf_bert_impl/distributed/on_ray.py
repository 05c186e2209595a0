"""Computes the parts of a job as Ray tasks, which Ray retries when a worker dies.

Workers read and write files themselves, so the driver holds no texts or vectors. All nodes need the
inputs, the output and the model under the same paths.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hf_bert_impl.distributed.batch_tasks import BatchTask
from hf_bert_impl.distributed.parts import BulkJob, Part
from hf_bert_impl.errors import InputError, InputNote
from hf_bert_impl.extras import require, set_up_ray

#: The job ends after no node has had enough CPUs for a worker for this time.
STARVED_SECONDS = 60.0
#: How often to check the nodes.
LOOK_SECONDS = 5.0
#: Retries of a part whose worker died; the part itself may be the cause.
RETRIES = 5
CONNECT_SECONDS = 10.0
#: The loaded tasks of a worker process, which Ray reuses.
_loaded: dict[bytes, BatchTask] = {}


def _make_part(job: BulkJob, part: Part) -> dict[str, Any]:
    """Makes a part in a worker, unless a worker completed it before it died."""
    key = pickle.dumps((job.task, job.options))
    if key not in _loaded:
        _loaded[key] = job.task(**job.options)
    return job.entry(part) or job.make(part, _loaded[key])


def _cut_input(job: BulkJob, file: int, stored: bool) -> tuple[list[Part], list[str]]:
    """Reads an input in a worker; returns its parts, and its notes for the driver."""
    with warnings.catch_warnings(record=True, action="always", category=InputNote) as caught:
        parts = job.cut(file, stored)
    return parts, [str(note.message) for note in caught if note.category is InputNote]


def cut_inputs(
    job: BulkJob, files: Iterable[int], stored: bool, workers: int
) -> Iterator[tuple[int, list[Part]]]:
    """The parts of inputs, each with the index of its input, in any order.

    Args:
        job: The job.
        files: Indices of inputs.
        stored: As in `BulkJob.cut`.
        workers: Maximum number of concurrent workers.

    Raises:
        InputError: As `BulkJob.cut`; or no node has enough CPUs for a worker.
    """
    with connected(None) as ray:
        todo = [(file, stored) for file in files]
        for (file, _), result in _results(ray, _cut_input, job, todo, workers, 1):
            if isinstance(result, Exception):
                raise InputError(
                    f"Workers died {RETRIES + 1} times while reading {job.inputs[file]}. Check "
                    "that the file is intact and that the nodes have free memory."
                )
            parts, notes = result
            for note in notes:
                warnings.warn(note, InputNote, stacklevel=2)
            yield file, parts


def make_parts(job: BulkJob, parts: list[Part], workers: int) -> Iterator[dict[str, Any]]:
    """Makes parts in any order.

    Args:
        job: The job.
        parts: One or more.
        workers: Maximum number of concurrent workers.

    Yields:
        The entry of each part.

    Raises:
        InputError: No node has enough CPUs for a worker. Or the workers of a part died; all other
            parts are made first.
    """
    killed = []
    with connected(None) as ray:
        cpus = cpus_of_worker([node["Resources"] for node in _nodes(ray)], workers)
        todo = [(part,) for part in parts]
        for (part,), entry in _results(ray, _make_part, job, todo, workers, cpus):
            if isinstance(entry, Exception):
                killed.append(part.name)
            else:
                yield entry
    if killed:
        raise InputError(
            f"The workers of {', '.join(killed[:3])} died {RETRIES + 1} times, probably for lack "
            "of memory. All other parts are complete. Run it again with a smaller `part_size` or "
            "`token_budget`, or with fewer `workers`."
        )


def _results(
    ray: Any,
    function: Callable[..., Any],
    job: BulkJob,
    calls: Iterable[tuple[Any, ...]],
    workers: int,
    cpus: int,
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Calls a function in workers, with the job and each of `calls`.

    Yields:
        A call and its result, in order of completion; or the exception if its workers died.

    Raises:
        InputError: The function raised it, or no node has enough CPUs for a worker.
    """
    remote = ray.remote(num_cpus=cpus, max_retries=RETRIES)(function)
    shared = ray.put(job)
    waiting = iter(calls)
    working: dict[Any, tuple[Any, ...]] = {}
    seen = time.monotonic()
    while True:
        while len(working) < workers and (call := next(waiting, None)) is not None:
            working[remote.remote(shared, *call)] = call
        if not working:
            return
        done, _ = ray.wait(list(working), timeout=LOOK_SECONDS)
        if not done:
            seen = _check_nodes(ray, cpus, seen)
            continue
        seen = time.monotonic()
        call = working.pop(done[0])
        try:
            yield call, ray.get(done[0])
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
            yield call, error
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error


def cpus_of_worker(nodes: list[dict[str, float]], workers: int) -> int:
    """The CPUs of a worker, which are also its threads.

    Args:
        nodes: The resources of each living node.
        workers: Number of concurrent workers.

    Returns:
        The largest number with which all workers fit the nodes; at least 1.
    """
    counts = [int(node.get("CPU", 0)) for node in nodes]
    most = max(1, sum(counts) // workers)
    while most > 1 and sum(count // most for count in counts) < workers:
        most -= 1
    return most


def _check_nodes(ray: Any, cpus: int, seen: float) -> float:
    """The time of the last node with enough CPUs; raises InputError after `STARVED_SECONDS`."""
    largest = max((node["Resources"].get("CPU", 0) for node in _nodes(ray)), default=0)
    if largest >= cpus:
        return time.monotonic()
    if time.monotonic() - seen > STARVED_SECONDS:
        raise InputError(
            f"A worker needs {cpus} CPUs, but for {STARVED_SECONDS:.0f} s the largest node has had "
            f"{largest:g}. Add a node, or use more `workers`, which get fewer CPUs each. Completed "
            "parts are kept."
        )
    return seen


def _nodes(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connects to Ray, and disconnects at the end unless Ray was connected before.

    Args:
        address: The address of a cluster. None takes a connected one, or starts Ray here.

    Raises:
        InputError: The address has no cluster.
    """
    set_up_ray()
    ray = require("ray", "ray", "the engine 'ray'")
    if ray.is_initialized():
        yield ray
        return
    try:
        _check_address(address)
        ray.init(
            address=address or "local",
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"Ray cannot be reached at {address!r} ({str(error).partition('.')[0]:.200}). Use an "
            "address such as 10.0.0.1:6379, start a cluster with `ray start --head`, or leave "
            "`address` out."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str | None) -> None:
    """Raises OSError if the address refuses connections: Ray itself would retry for minutes."""
    host, _, port = (address or "").rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
