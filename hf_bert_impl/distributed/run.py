"""Runs a bulk job in this process or on Ray."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from hf_bert_impl.data.text_input import STANDARD_INPUT
from hf_bert_impl.data.vector_table import write_columns
from hf_bert_impl.distributed.batch_tasks import BatchTask
from hf_bert_impl.distributed.job import (
    COMPUTED,
    JOB,
    MANIFEST,
    OPENING_ROWS,
    REJECTS,
    Job,
    JobRow,
)
from hf_bert_impl.distributed.on_ray import run_on_ray
from hf_bert_impl.encoders.weights import precision_in
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.atomic import atomic_file
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.files.lock import output_lock


def run_job(
    job: Job,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    ray: tuple[int, str | None] | None = None,
) -> dict[str, Any]:
    """Computes a job, or resumes it.

    Args:
        job: The job.
        resume: Accept a finished output. An interrupted run is always resumed.
        overwrite: Replace a finished output or another job.
        progress: Show a progress bar on standard error.
        ray: The number of workers and the address of a cluster (None for this machine), to compute
            on Ray.

    Returns:
        A summary of this run: `rows`, `rejected`, `tokens`, `seconds` and so on; `resumed_from`
        counts the rows of earlier runs.

    Raises:
        InputError: The output belongs to another job or is finished, or an input cannot be read.
    """
    with output_lock(job.output):
        begin = time.perf_counter()
        settings = job.settings("local" if ray is None else "ray")
        report: dict[str, Any] = {"output": str(job.output), "rows": 0, "rejected": 0, "tokens": 0}
        report |= {"parts": 0, "parts_made": 0, "resumed_from": 0, "seconds": 0.0}
        if job.check(settings, resume, overwrite) is None:
            if job.is_file:
                job.discard()  # what a run that was killed at the end has left
            return report | {"finished": True, "precision": None}
        chunks, opening = job.chunks(), list[list[JobRow]]()
        # Wrong input is reported before a model is loaded, e.g. that the column is missing.
        for chunk in chunks:
            opening.append(chunk)
            if sum(map(len, opening)) >= OPENING_ROWS or not all(row.problem for row in chunk):
                break
        if not opening:
            raise InputError(f"{', '.join(job.inputs[:3])} has no rows. Use a file with texts.")
        usable = next((row for row in opening[-1] if not row.problem), None)
        if usable is None:
            raise InputError(opening[0][0].problem)
        task = job.task(**job.options)
        settings[COMPUTED] = report["precision"] = precision_in(task.model)
        if job.check(settings, resume, overwrite):
            job.discard()
        (job.folder / MANIFEST).unlink(missing_ok=True)
        with atomic_file(job.folder / JOB) as fresh:  # names may have no UTF-8 form
            fresh.write_text(json.dumps(settings, indent=2))
        start = time.perf_counter()
        if ray is None:
            every = itertools.chain(opening, chunks)
            _run_here(job, task, every, type(usable.id), report, progress)
        else:
            run_on_ray(job, report, *ray)
        end = time.perf_counter()
    report["seconds"] = round(end - begin, 3)
    for name, unit in (("rows", "texts"), ("tokens", "tokens")):  # without loading
        rate = None if report[name] is None else round(report[name] / (end - start), 1)
        report[f"{unit}_per_second"] = rate
    return report | {"finished": False}


def _run_here(
    job: Job,
    task: BatchTask,
    chunks: Iterable[list[JobRow]],
    id_type: type,
    report: dict[str, Any],
    progress: bool,
) -> None:
    parts: list[Path] = []
    written = 0
    suffix = ".npy" if job.output.suffix == ".npy" else ".parquet"
    try:
        # With None, only a terminal gets a bar.
        with tqdm(unit=" texts", disable=None if progress else True, leave=False) as bar:
            for number, chunk in enumerate(chunks):
                rows = [row for row in chunk if not row.problem]
                name = f"part-{number:06}"
                if job.inputs == (STANDARD_INPUT,):  # which may differ in another run
                    content = repr([row[4:] for row in chunk]).encode("utf-8", "backslashreplace")
                    name += f"-{hashlib.sha256(content).hexdigest()[:16]}"
                part = job.folder / f"{name}{suffix}"
                parts.append(part)
                if part.exists():
                    report["resumed_from"] += len(chunk)
                else:
                    computed, columns, failed = job.compute(task, rows)
                    reasons = ((row, row.problem or failed.get(row.number)) for row in chunk)
                    rejects = [row.rejected(reason) for row, reason in reasons if reason]
                    if rejects:
                        with atomic_file(part.with_suffix(f".{REJECTS}")) as fresh:
                            lines = (to_json(entry) + "\n" for entry in rejects)
                            fresh.write_text("".join(lines), encoding="utf-8")
                    with atomic_file(part) as fresh:
                        if suffix == ".npy":  # a vector per row of the input
                            vectors = columns["vector"]  # (computed, D)
                            whole = np.full((len(chunk), vectors.shape[1]), np.nan, vectors.dtype)
                            whole[[row.number - chunk[0].number for row in computed]] = vectors
                            np.save(fresh, whole)
                        else:
                            if id_type is int:
                                columns["id"] = np.array(columns["id"], np.int64)
                            write_columns(fresh, columns)
                    report["rows"] += len(computed)
                    report["rejected"] += len(rejects)
                    report["parts_made"] += 1
                    bar.update(len(chunk))
                written += len(chunk)
    except BaseException:
        if not any(job.folder.glob("part-*")):  # so that other settings need no --overwrite
            job.discard()
        raise
    report |= {"parts": len(parts), "tokens": task.counter.tokens}
    files = filter(Path.exists, (part.with_suffix(f".{REJECTS}") for part in parts))
    job.finish(parts, written, (line for file in files for line in file.open(encoding="utf-8")))
