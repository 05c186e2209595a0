"""Runs a job in parts: here, as one of several shards, or on Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

from hf_bert_impl.distributed.parts import BulkJob, Part
from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import require
from hf_bert_impl.inference.progress import text_progress

ENGINES = ("local", "ray")
#: With so many inputs for each shard, unequal ones even out.
INPUTS_A_SHARD = 4


@dataclasses.dataclass(frozen=True)
class Engine:
    """Where the parts are made."""

    name: str = "local"
    """One of `ENGINES`."""
    workers: int = 1
    """Of Ray, at once."""
    address: str | None = None
    """Of a running Ray cluster; None starts Ray on this machine."""
    shard: tuple[int, int] | None = None
    """(i, n): of n processes that share the work without knowing each other, the i-th from 0."""

    def check(self) -> None:
        """Raises InputError if the fields do not fit each other, or Ray is not installed."""
        index, count = self.shard or (0, 1)
        if not 0 <= index < count:
            raise InputError(f"shard is {index}/{count}", "i/n with i from 0 to n - 1", "mend it")
        if self.name not in ENGINES:
            raise InputError(f"engine is {self.name!r}", f"one of {', '.join(ENGINES)}", "name one")
        if self.name == "ray":
            require("ray", "ray", "the engine 'ray'")
        if self.name == "ray" and self.shard:
            raise InputError(
                "a shard is named beside the engine 'ray'",
                "one of them",
                "leave the shard out, since Ray shares the work itself",
            )
        if self.name == "local" and (self.workers != 1 or self.address is not None):
            raise InputError(
                "workers or an address are given without the engine 'ray'",
                "`engine='ray'` beside them",
                "name it, or start several processes with a `shard` each",
            )


def run_job(
    job: BulkJob,
    engine: Engine,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Makes the parts that are missing, and the manifest when all are there.

    Args:
        job: What is to be done.
        engine: Where.
        resume: Go on with what an interrupted run has left. Shards always do.
        overwrite: Remove what an earlier job left in the output; not for shards.
        progress: Show a bar on standard error.

    Returns:
        A summary: `rows`, `rejected`, `tokens`, `seconds`, and so on; of this run, but for `parts`,
        which are those of the inputs that it read, and `complete`.

    Raises:
        InputError: The output is not this job's, an input cannot be read, or the engine cannot do
            the work.
    """
    engine.check()
    index, count = engine.shard or (0, 1)
    if engine.shard and overwrite:
        raise InputError(
            "`overwrite` is given for a shard", "neither", "remove the folder before they start"
        )
    begin = time.perf_counter()
    settings = job.settings()
    job.check_output(settings, resume or bool(engine.shard), overwrite)
    # With many inputs a shard takes whole ones, and reads no other.
    whole_inputs = count > 1 and len(job.inputs) >= INPUTS_A_SHARD * count
    files = range(len(job.inputs))[index if whole_inputs else 0 :: count if whole_inputs else 1]
    with _started(engine):
        cuts = _cut(job, files, not overwrite, engine)
        parts = list(itertools.chain.from_iterable(cuts.values()))
        if not parts and not whole_inputs:
            named = ", ".join(job.inputs[file] for file in files[:3])
            raise InputError(f"{named} has no rows", "texts", "name another file")
        own = parts if whole_inputs else parts[index::count]
        missing = own if overwrite else [part for part in own if job.entry(part) is None]
        # A model that cannot be used is an error before anything is written or removed.
        task = job.task(**job.options) if missing and engine.name == "local" else None
        job.begin(settings, overwrite, cuts)
        done = {"rows": 0, "rejected": 0, "tokens": 0}
        before = sum(part.rows for part in own) - sum(part.rows for part in missing)
        with text_progress(progress, sum(part.rows for part in own), start=before) as advance:
            for entry in _made(job, missing, engine, task):
                done["rows"] += entry["written"]
                done["rejected"] += len(entry["rejects"])
                done["tokens"] += entry["tokens"]
                advance(entry["rows"], tokens=entry["tokens"])
    manifest = job.finish()
    seconds = time.perf_counter() - begin
    return {
        "output": str(job.output),
        "complete": manifest is not None,
        "parts": len(parts),
        "parts_made": len(missing),
        **done,
        "seconds": round(seconds, 3),
        "texts_per_second": round(done["rows"] / seconds, 1),
        "tokens_per_second": round(done["tokens"] / seconds, 1),
        "engine": engine.name,
        "workers": engine.workers,
    }


def _started(engine: Engine) -> contextlib.AbstractContextManager[Any]:
    """Ray runs inside, if it is the engine: it starts once."""
    if engine.name != "ray":
        return contextlib.nullcontext()
    from hf_bert_impl.distributed.on_ray import connected

    return connected(engine.address)


def _cut(job: BulkJob, files: Sequence[int], stored: bool, engine: Engine) -> dict[int, list[Part]]:
    """The parts of inputs; on Ray the inputs are read side by side."""
    if engine.name == "ray" and len(files) > 1:
        from hf_bert_impl.distributed.on_ray import cut_inputs

        cuts = dict(cut_inputs(job, files, stored, engine.workers))
        return {file: cuts[file] for file in files}
    return {file: job.cut(file, stored) for file in files}


def _made(job: BulkJob, parts: list[Part], engine: Engine, task: Any) -> Iterator[dict[str, Any]]:
    if not parts:
        return
    if engine.name == "ray":
        from hf_bert_impl.distributed.on_ray import make_parts

        yield from make_parts(job, parts, engine.workers)
        return
    for part in parts:
        yield job.make(part, task)
