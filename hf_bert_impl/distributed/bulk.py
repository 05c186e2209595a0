"""Runs a job in parts: in this process, as one of several shards, or on Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hf_bert_impl.data.text_input import Record
from hf_bert_impl.distributed import on_ray
from hf_bert_impl.distributed.parts import BulkJob, Part
from hf_bert_impl.errors import InputError, InputNote, check_choice
from hf_bert_impl.extras import require
from hf_bert_impl.files.lock import output_lock
from hf_bert_impl.progress import text_progress

ENGINES = ("local", "ray")
#: With so many inputs per shard, shards take whole inputs.
INPUTS_PER_SHARD = 4


@dataclasses.dataclass(frozen=True)
class Engine:
    """Where to compute parts.

    Raises:
        InputError: Fields contradict each other, or Ray is not installed.
    """

    name: str = "local"
    """One of `ENGINES`."""
    workers: int = 1
    """Number of concurrent Ray workers."""
    address: str | None = None
    """The address of a Ray cluster; None starts Ray on this machine."""
    shard: tuple[int, int] | None = None
    """(i, n): this is the i-th, from 0, of n processes that share the job."""

    def __post_init__(self) -> None:
        index, count = self.shard or (0, 1)
        if not 0 <= index < count:
            raise InputError(f"shard is {index}/{count}. Use 0/{count} to {count - 1}/{count}.")
        check_choice("engine", self.name, ENGINES)
        if self.name == "ray":
            require("ray", "ray", "the engine 'ray'")
            if self.shard:
                raise InputError("Ray distributes the work by itself. Leave `shard` out.")
        elif self.workers != 1 or self.address is not None:
            raise InputError("`workers` and `address` need Ray. Add `engine='ray'`.")


def run_job(
    job: BulkJob,
    engine: Engine,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Makes missing parts, and the manifest when all parts exist.

    Args:
        job: The job.
        engine: Where to compute.
        resume: Check a finished output and make its damaged parts again. Shards always do. An
            interrupted run of the same job is always resumed.
        overwrite: Replace a finished output or another job; not for shards.
        progress: Show a progress bar on standard error.

    Returns:
        A summary of this run: `rows`, `rejected`, `tokens`, `seconds` and so on. Further, `parts`
        counts all parts of the inputs that it read, `resumed_from` counts the rows of earlier runs,
        and `complete` tells whether all parts exist.

    Raises:
        InputError: The output belongs to another job or run, an input cannot be read, or the engine
            cannot compute the job.
    """
    if engine.shard and overwrite:
        raise InputError(
            "A shard cannot take `overwrite`. Remove the output folder, then start the shards."
        )
    if job.is_streamed and (engine.shard or engine.name != "local"):
        raise InputError("Standard input cannot be shared among processes. Save it to a file.")
    # Shards write concurrently.
    with contextlib.nullcontext() if engine.shard else output_lock(job.output):
        return _run(job, engine, resume or bool(engine.shard), overwrite, progress)


@dataclasses.dataclass
class _Work:
    """The parts of this process."""

    cuts: dict[int, list[Part]]
    """The parts of inputs; parts of standard input are added as they arrive."""
    missing: Iterable[tuple[Part, list[Record] | None]]
    """Parts to make, with their rows if already read."""
    total: int | None
    """Number of rows of all its parts; None if unknown."""
    resumed: int
    """Number of rows of its existing parts."""


def _run(
    job: BulkJob, engine: Engine, resume: bool, overwrite: bool, progress: bool
) -> dict[str, Any]:
    begin = time.perf_counter()
    settings = job.settings()
    anew = job.check_output(settings, resume, overwrite)
    done = {"parts_made": 0, "rows": 0, "rejected": 0, "tokens": 0}
    # Ray starts once for the whole job.
    with on_ray.connected(engine.address) if engine.name == "ray" else contextlib.nullcontext():
        work = _stream(job) if job.is_streamed else _plan(job, engine, anew)
        # An unusable model raises its error before anything is written or removed.
        task = job.task(**job.options) if engine.name == "local" and work.missing else None
        job.begin(settings, anew)
        job.store_cuts(work.cuts)
        try:
            with text_progress(progress, work.total, start=work.resumed) as advance:
                for entry in _made(job, work.missing, engine, task):
                    done["parts_made"] += 1
                    done["rows"] += entry["written"]
                    done["rejected"] += len(entry["rejects"])
                    done["tokens"] += entry["tokens"]
                    advance(entry["rows"], tokens=entry["tokens"])
        finally:
            # Ray's workers and other shards may still write.
            if engine.name == "local" and not engine.shard and not job.has_entries():
                job.discard()
        job.store_cuts(work.cuts)
    manifest = job.finish()
    if manifest is not None and manifest["rejected"]:
        note = f"{manifest['rejected']:,} row(s) were rejected; the reasons are in {job.rejects}"
        warnings.warn(note, InputNote, stacklevel=3)
    seconds = time.perf_counter() - begin
    return {
        "output": str(job.output),
        "complete": manifest is not None,
        "parts": sum(map(len, work.cuts.values())),
        "resumed_from": work.resumed,
        **done,
        "precision": None if task is None else task.precision,
        "seconds": round(seconds, 3),
        "texts_per_second": round(done["rows"] / seconds, 1),
        "tokens_per_second": round(done["tokens"] / seconds, 1),
        "engine": engine.name,
        "workers": engine.workers,
    }


def _plan(job: BulkJob, engine: Engine, anew: bool) -> _Work:
    """Finds the missing parts. Inputs are read unless an earlier run has stored their parts."""
    index, count = engine.shard or (0, 1)
    whole_inputs = count > 1 and len(job.inputs) >= INPUTS_PER_SHARD * count
    files = range(len(job.inputs))[index if whole_inputs else 0 :: count if whole_inputs else 1]
    cuts = _cut(job, files, not anew, engine)
    parts = list(itertools.chain.from_iterable(cuts.values()))
    if not parts and not whole_inputs:
        named = ", ".join(job.inputs[file] for file in files[:3])
        raise InputError(f"{named} has no rows. Use a file with texts.")
    own = parts if whole_inputs else parts[index::count]
    missing = own if anew else [part for part in own if job.entry(part) is None]
    total = sum(part.rows for part in own)
    before = total - sum(part.rows for part in missing)
    return _Work(cuts, [(part, None) for part in missing], total, before)


def _stream(job: BulkJob) -> _Work:
    """The parts of standard input. The first one is read at once, to detect wrong input early."""
    read = job.read(0)
    first = next(read, None)
    if first is None:
        raise InputError("Standard input is empty. Pipe texts into it.")

    def missing() -> Iterator[tuple[Part, list[Record] | None]]:
        for part, records in itertools.chain([first], read):
            work.cuts[0].append(part)
            if job.entry(part) is None:
                yield part, records
            else:
                work.resumed += part.rows

    work = _Work({0: []}, missing(), None, 0)
    return work


def _cut(job: BulkJob, files: Sequence[int], stored: bool, engine: Engine) -> dict[int, list[Part]]:
    """The parts of inputs; Ray reads inputs concurrently."""
    if engine.name == "ray" and len(files) > 1:
        cuts = dict(on_ray.cut_inputs(job, files, stored, engine.workers))
        return {file: cuts[file] for file in files}
    return {file: job.cut(file, stored) for file in files}


def _made(
    job: BulkJob, work: Iterable[tuple[Part, list[Record] | None]], engine: Engine, task: Any
) -> Iterator[dict[str, Any]]:
    if engine.name != "ray":
        yield from (job.make(part, task, records) for part, records in work)
    elif parts := [part for part, _ in work]:
        yield from on_ray.make_parts(job, parts, engine.workers)
