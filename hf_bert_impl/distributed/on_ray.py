"""Computes a job by Ray Data: a source of rows, actors with the model, Parquet files, checkpoints.

One task of Ray reads the inputs in order, so rows are accepted and rejected as in one process.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_bert_impl.data.vector_table import arrow_table
from hf_bert_impl.distributed.job import Job, JobRow
from hf_bert_impl.encoders.weights import precision_in
from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import require, set_up_ray
from hf_bert_impl.files.atomic import atomic_file
from hf_bert_impl.files.json_files import parse_json, to_json

CONNECT_SECONDS = 10.0
#: Retries of a chunk whose worker died; the chunk itself may be the cause.
RETRIES = 5
#: Ray joins the chunks that are read to blocks of up to 128 MiB, and cuts each into at most so many
#: pieces, so that each chunk is a task. `repartition` would need a free CPU: it waits for ever if a
#: machine dies and the workers get all CPUs that are left.
PIECES = 1000
#: The folder of rejected rows in the output, with a file per chunk.
REJECTED = "_rejects"


class Computing:
    """The step of a worker: computes a table of rows."""

    def __init__(self, job: Job, precision: str) -> None:
        self.job, self.task = job, job.task(**job.options)
        if precision_in(self.task.model) != precision:
            raise InputError(
                f"A worker computes in {precision_in(self.task.model)}, and the job began in "
                f"{precision}. Choose a `dtype`, or use machines of one kind.",
                "dtype",
            )

    def __call__(self, chunk: Any) -> Any:
        columns = chunk.to_pylist()[0]
        rows = [JobRow(*row) for row in zip(*map(columns.get, JobRow._fields), strict=True)]
        _, columns, failed = self.job.compute(self.task, rows)
        _store(self.job, [(row, failed[row.number]) for row in rows if row.number in failed])
        return arrow_table(columns)


def _store(job: Job, rejected: list[tuple[JobRow, str]]) -> None:
    """Stores rejected rows of a chunk. A retry writes the same file."""
    if rejected:
        first, last = rejected[0][0].number, rejected[-1][0].number
        lines = [to_json([row.number, row.rejected(why)]) + "\n" for row, why in rejected]
        with atomic_file(job.folder / REJECTED / f"{first}-{last}.jsonl") as fresh:
            fresh.write_text("".join(lines), encoding="utf-8")


def _tables(job: Job) -> Iterator[Any]:
    """The usable rows of each chunk, in one row with a list per column."""
    for chunk in job.chunks():
        _store(job, [(row, row.problem) for row in chunk if row.problem])
        rows = [row for row in chunk if not row.problem]
        if rows:
            yield _in_one_row(dict(zip(JobRow._fields, zip(*rows, strict=True), strict=True)))


def _in_one_row(columns: Mapping[str, Any]) -> Any:
    return arrow_table({name: [list(values)] for name, values in columns.items()})


def run_on_ray(job: Job, report: dict[str, Any], workers: int, address: str | None) -> None:
    """Computes a job whose folder exists, or resumes it.

    Args:
        job: The job; its output is a folder.
        report: Has the `precision` that workers must have, and gets the numbers of rows.
        workers: Number of workers.
        address: The address of a cluster; None takes a connected one, or starts Ray here.

    Raises:
        InputError: The cluster cannot be reached, Ray is too old, or a worker raised it.
    """
    with connected(address) as ray:
        arrow = require("pyarrow", "ray", "the engine 'ray'")
        from ray.data import Datasource, ReadTask
        from ray.data.block import BlockMetadata

        try:
            from ray.data.checkpoint import CheckpointConfig, NumpyArrayBasedCheckpointFilter
        except ImportError as error:
            raise InputError(
                f"The engine 'ray' needs Ray 2.60, and this is {ray.__version__}. Update it: pip "
                "install -U 'ray[data]'"
            ) from error

        class Unwritten(NumpyArrayBasedCheckpointFilter):
            """Removes the rows of earlier runs from chunks."""

            def filter_rows_for_block(self, chunks: Any) -> Any:
                left = [chunks.slice(0, 0)]
                for row in range(len(chunks)):
                    columns = {name: chunks[name][row].values for name in JobRow._fields}
                    rows = super().filter_rows_for_block(arrow_table(columns))
                    if len(rows):
                        left.append(_in_one_row(rows.to_pydict()))
                return arrow.concat_tables(left)

        class Rows(Datasource):
            def get_read_tasks(self, *arguments: Any, **options: Any) -> list[Any]:
                return [ReadTask(lambda: _tables(job), BlockMetadata(None, None, None, None))]

            def estimate_inmemory_data_size(self) -> None:
                return None

        checkpoint = job.folder.with_name(f"{job.folder.name}.checkpoint")
        done = _count(checkpoint.glob("*[!g].parquet"))  # without those that end in .pending
        context = ray.data.DataContext.get_current()
        before = context.checkpoint_config, context.enable_progress_bars
        context.enable_progress_bars = False
        context.checkpoint_config = CheckpointConfig(
            "id", str(checkpoint), checkpoint_filter_cls=Unwritten
        )
        # One CPU remains for Ray's filter of completed rows; on a machine of one, workers ask none.
        share = max(ray.cluster_resources().get("CPU", 1) - 1, 0) / workers
        largest = max(node["Resources"].get("CPU", 1) for node in ray.nodes())
        try:
            rows = ray.data.read_datasource(Rows(), num_cpus=0, override_num_blocks=PIECES)
            rows.map_batches(
                Computing,
                fn_constructor_args=(job, report["precision"]),
                batch_size=1,
                batch_format="pyarrow",
                concurrency=workers,
                num_cpus=min(int(share) or share, largest),
                max_task_retries=RETRIES,
            ).write_parquet(str(job.folder), concurrency=workers, ray_remote_args={"num_cpus": 0})
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayActorError as error:
            raise InputError(
                f"The workers of a part died {RETRIES + 1} times, probably for lack of memory. "
                "Completed parts are kept. Run it again with a smaller `part_size` or "
                "`batch_tokens`, or with fewer `workers`.",
                "part_size batch_tokens workers",
            ) from error
        finally:
            context.checkpoint_config, context.enable_progress_bars = before
    _finish(job, report, done)
    shutil.rmtree(checkpoint, ignore_errors=True)
    shutil.rmtree(job.folder / REJECTED, ignore_errors=True)


def _finish(job: Job, report: dict[str, Any], done: int) -> None:
    parts = sorted(job.folder.glob("*.parquet"))
    rejected: dict[int, Any] = {}
    for file in (job.folder / REJECTED).glob("*.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            number, entry = parse_json(line, str(file), "a list", list)
            rejected[number] = entry
    rows = _count(parts)
    counts = {"parts": len(parts), "rows": rows - done, "rejected": len(rejected)}
    report |= counts | {"resumed_from": done, "tokens": None}
    lines = (to_json(rejected[number]) + "\n" for number in sorted(rejected))
    job.finish(parts, rows + len(rejected), lines)


def _count(files: Iterable[Path]) -> int:
    parquet = require("pyarrow.parquet", "ray", "writing Parquet")
    return sum(parquet.read_metadata(file).num_rows for file in files)


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
    require("ray.data", "ray", "the engine 'ray'")
    if ray.is_initialized():
        yield ray
        return
    try:
        host, _, port = (address or "").rpartition(":")
        if port.isdecimal() and "/" not in host:  # Ray itself would retry for minutes
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
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
            "`address` out.",
            "address",
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()
