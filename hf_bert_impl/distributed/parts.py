"""Jobs in parts: each part is a range of rows, and is either complete or missing.

Files of the folder of parts, which is the output, or is next to an output of one file:

- `part-FFFFF-PPPPP.parquet`: part P of input F. Its columns are `id`, `file` if there are several
  inputs, and the results. For a .npy output the parts are .npy files.
- `_parts/part-FFFFF-PPPPP.json`: the entry of a part, written after it: its size, its digest and
  its rejected rows. A part without an entry, or with another digest, is missing.
- `_cuts/FFFFF.json`: where the parts of an input begin, so that it is scanned once.
- `_job.json`: the settings that must match to resume or share the job.
- `manifest.json` and `rejects.jsonl`: written from the entries when all parts exist.

At the end, the parts of a one-file output are joined and their folder is removed.

Parts depend only on the inputs and `part_rows`, and each is computed alone. So any process may make
any part, in any order. All processes need the same disk. Standard input can be read only once, so
its parts are made as they arrive. Parts of an earlier run count if the digests of their rows match.

Unusable rows are rejected, with the reason. Their text is missing or cannot be computed. Or their
id is missing, repeated within the input, or of another type than the first id. In a .npy, which has
no ids, such a row is NaN.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import platform
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_bert_impl.data.text_input import (
    Record,
    RecordInput,
    Start,
    Wanted,
)
from hf_bert_impl.data.vector_table import as_stored, join_files, write_columns
from hf_bert_impl.distributed.batch_tasks import BatchTask
from hf_bert_impl.distributed.digests import file_digest, weights_digest
from hf_bert_impl.distributed.inputs import STANDARD_INPUT, Row, check_row
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.files.atomic import atomic_file, sync
from hf_bert_impl.files.json_files import read_json, to_json, write_json
from hf_bert_impl.files.text import escaped
from hf_bert_impl.finite import NotFinite

#: Rows per part, for an output of parts and for an output of one file. An interruption loses one
#: part at most.
PART_ROWS, FILE_PART_ROWS = 10_000, 2_000
JOB, MANIFEST, REJECTS = "_job.json", "manifest.json", "rejects.jsonl"
ENTRIES, CUTS = "_parts", "_cuts"
FORMAT = 2


@dataclasses.dataclass(frozen=True)
class Part:
    """A range of rows of an input."""

    file: int
    """The index of the input."""
    number: int
    """The index of the part within its input."""
    start: Start
    """Where the part begins."""
    rows: int
    id_type: str
    """"int" or "str", the same in all parts."""
    repeated: tuple[int, ...]
    """The numbers of rows with the id of an earlier row of the input."""
    digest: str
    """The digest of its rows, for standard input; empty for a file."""

    @property
    def name(self) -> str:
        """The name of its files, without an ending."""
        return f"part-{self.file:05}-{self.number:05}"


@dataclasses.dataclass(frozen=True)
class BulkJob:
    """A task, its inputs and its output. It can be pickled."""

    inputs: tuple[str, ...]
    output: Path
    task: type[BatchTask]
    options: dict[str, Any]
    """The arguments of `task`."""
    columns: Wanted
    """Columns of the inputs, in the order of the task's columns."""
    id_column: str | None = None
    part_rows: int = PART_ROWS
    precision: str = "float32"
    """The dtype of stored vectors."""
    is_file: bool = False
    """Whether the output is one file, a .npy or .parquet."""

    @property
    def folder(self) -> Path:
        """The folder of the parts."""
        return self.output.with_name(f"{self.output.name}.parts") if self.is_file else self.output

    @property
    def rejects(self) -> Path:
        """The file of the rejected rows."""
        if self.is_file:
            return self.output.with_name(f"{self.output.name}.{REJECTS}")
        return self.folder / REJECTS

    @property
    def is_streamed(self) -> bool:
        """Whether the input is standard input."""
        return self.inputs == (STANDARD_INPUT,)

    def cut(self, file: int, stored: bool) -> list[Part]:
        """The parts of an input, in order.

        Args:
            file: The index of the input.
            stored: Use the stored result of an earlier process of the same job, if any.

        Raises:
            InputError: The input cannot be read, or all rows of its first part are unusable.
        """
        known = self._stored_cut(file) if stored else None
        return [part for part, _ in self.read(file)] if known is None else known

    def read(self, file: int) -> Iterator[tuple[Part, list[Record]]]:
        """The parts of an input with their records, in order; raises as `cut`."""
        has_ids = self.id_column is not None
        # A temporary database, since there may be more ids than memory.
        with self._open(file) as source, contextlib.closing(sqlite3.connect("")) as ids:
            ids.execute("CREATE TABLE ids (id PRIMARY KEY) WITHOUT ROWID")
            id_type = ""
            for number in itertools.count():
                start = source.position
                records = list(itertools.islice(source.records, self.part_rows))
                if not records:
                    return
                id_type = id_type or self._id_type(file, records)
                repeated: tuple[int, ...] = ()
                if has_ids or number == 0:
                    usable = self._usable(start.rows, records, id_type, needed=number == 0)
                    # Row numbers, the ids without `id_column`, never repeat.
                    add = "INSERT OR IGNORE INTO ids VALUES (?)"
                    added = ((row, ids.execute(add, (row.id,)).rowcount) for row in usable)
                    repeated = tuple(row.number for row, count in added if not count)
                digest = _digest(records, id_type, repeated) if self.is_streamed else ""
                yield Part(file, number, start, len(records), id_type, repeated, digest), records

    def _usable(self, first: int, records: list[Record], id_type: str, needed: bool) -> list[Row]:
        """The rows without a visible problem; raises the first problem if one row is needed."""
        usable, problems = [], []
        for row in self._rows(first, records):
            try:
                check_row(row, id_type)
                usable.append(row)
            except ValueError as error:
                problems.append(error)
        if needed and not usable:
            raise problems[0]  # e.g. the column is missing
        return usable

    def _open(self, file: int, start: Start | None = None) -> RecordInput:
        return RecordInput(self.inputs[file], self.columns, self.id_column, start)

    def _id_type(self, file: int, records: list[Record]) -> str:
        """The type of the job's first id. Without `id_column` the row numbers are the ids."""
        if self.id_column is None:
            return "int"
        if file:
            with self._open(0) as source:
                records = list(itertools.islice(source.records, self.part_rows))
        kinds = (type(identifier) for _, _, identifier in records)
        return next((kind.__name__ for kind in kinds if kind in (str, int)), "str")

    def _rows(self, first: int, records: list[Record]) -> list[Row]:
        rows = []
        for number, (place, text, identifier) in enumerate(records, first):
            named = number if self.id_column is None else identifier
            rows.append(Row(number, place, named, text if isinstance(text, list) else [text]))
        return rows

    def settings(self) -> dict[str, Any]:
        """Settings that must match to resume or share the job."""
        inputs = []
        for name in self.inputs:
            status = None if name == STANDARD_INPUT else os.stat(name)
            inputs.append([name, *((status.st_size, status.st_mtime_ns) if status else ())])
        options = dict(sorted(self.options.items()))
        if options.get("batch_invariant", True):  # then it changes no result
            options.pop("token_budget", None)
        return {
            "format": FORMAT,
            "task": self.task.__name__,
            "options": options,
            "columns": list(self.columns) if isinstance(self.columns, tuple) else self.columns,
            "id_column": self.id_column,
            "part_rows": self.part_rows,
            "precision": self.precision,
            "is_file": self.is_file,
            "weights": weights_digest(self.options["model"]),
            "inputs": inputs,
        }

    def make(
        self, part: Part, task: BatchTask, records: list[Record] | None = None
    ) -> dict[str, Any]:
        """Computes and writes a part, then its entry, which it returns.

        Args:
            part: The part.
            task: The loaded task.
            records: The rows of the part, if already read.
        """
        begin, tokens = time.perf_counter(), task.tokens
        rows, rejects = self._sorted_out(part, task, records or self._records(part))
        ids: list[Any] = []
        pieces: list[dict[str, Any]] = []
        failed: list[Exception] = []
        for some, results in self._computed(task, rows):
            if isinstance(results, Exception):
                failed.append(results)
                reason = results if some[0].place in str(results) else f"{some[0].place}: {results}"
                rejects.append(self._reject(part, some[0], reason))
            else:
                ids += [row.id for row in some]
                pieces.append(results)
        blames_row = any(isinstance(e, ValueError) and type(e) is not NotFinite for e in failed)
        if len(failed) > 1 and not ids and not blames_row:
            raise failed[0]  # the model fails, rather than each row
        rejects.sort(key=lambda reject: reject["row"])
        results = _joined(pieces or [self._results(task, [])])
        with atomic_file(self._file(part.name)) as fresh:
            self._write(fresh, part, ids, results)
            size, digest = fresh.stat().st_size, file_digest(fresh)
        entry = {
            "part": part.name,
            "file": escaped(self.inputs[part.file]),
            "rows": part.rows,
            "rows_sha256": part.digest,
            "written": len(ids),
            "bytes": size,
            "sha256": digest,
            "tokens": task.tokens - tokens,
            "computed_by": computed_by(),
            "seconds": round(time.perf_counter() - begin, 3),
            "rejects": rejects,
        }
        write_json(self._entry(part.name), entry)
        return entry

    def _records(self, part: Part) -> list[Record]:
        with self._open(part.file, part.start) as source:
            records = list(itertools.islice(source.records, part.rows))
        if len(records) != part.rows:
            raise InputError(
                f"{source.name} has fewer rows than when the job began. Restore the file."
            )
        return records

    def _sorted_out(
        self, part: Part, task: BatchTask, records: list[Record]
    ) -> tuple[list[Row], list[dict[str, Any]]]:
        """Separates the rows to compute from rejected ones."""
        rows, rejects, repeated = [], [], set(part.repeated)
        for row in self._rows(part.start.rows, records):
            try:
                check_row(row, part.id_type)
                if row.number in repeated:
                    raise InputError(
                        f"{row.place} repeats the id {row.id!r:.60}. Make ids unique, or leave "
                        "`id_column` out."
                    )
                task.check(*row.texts)
            except ValueError as error:
                rejects.append(self._reject(part, row, error))
            else:
                rows.append(row)
        return rows, rejects

    def _write(self, file: Path, part: Part, ids: list[Any], results: dict[str, Any]) -> None:
        """Writes a part: its columns, or for a .npy one vector per row of the input."""
        if file.suffix == ".npy":
            (vectors,) = results.values()  # (ids, D)
            whole = np.full((part.rows, vectors.shape[1]), np.nan, vectors.dtype)
            whole[np.array(ids, np.int64) - part.start.rows] = vectors
            np.save(file, whole)
            return
        columns: dict[str, Any] = {"id": np.array(ids, np.int64) if part.id_type == "int" else ids}
        if len(self.inputs) > 1:
            columns["file"] = [escaped(self.inputs[part.file])] * len(ids)
        write_columns(file, columns | results)

    def _reject(self, part: Part, row: Row, reason: object) -> dict[str, Any]:
        """The entry of a rejected row in `rejects.jsonl`."""
        named = escaped(row.id) if isinstance(row.id, str | bytes) else row.id
        return {
            "file": escaped(self.inputs[part.file]),
            "row": row.number,
            "id": named if isinstance(named, str | int) else None,
            "reason": one_line(reason),
        }

    def _computed(
        self, task: BatchTask, rows: list[Row]
    ) -> Iterator[tuple[list[Row], dict[str, Any] | Exception]]:
        """The results of rows, in order. Rows that fail together are computed by halves."""
        if not rows:
            return
        results: dict[str, Any] | Exception
        try:
            results = self._results(task, [row.texts for row in rows])
        except Exception as error:  # of any type: other rows may still succeed
            results = error
        if isinstance(results, Exception) and len(rows) > 1:
            half = len(rows) // 2
            yield from self._computed(task, rows[:half])
            yield from self._computed(task, rows[half:])
        else:
            yield rows, results

    def _results(self, task: BatchTask, texts: list[list[str]]) -> dict[str, Any]:
        """The columns to write after the ids."""
        done = task({name: [row[k] for row in texts] for k, name in enumerate(task.columns)})
        columns = {}
        for name in task.output_columns:
            columns[name] = done[name]
            if getattr(done[name], "ndim", 1) == 2:  # vectors
                columns[name], scales = as_stored(done[name], self.precision)
                columns |= {} if scales is None else {"scale": scales}
        return columns

    def entry(self, part: Part) -> dict[str, Any] | None:
        """The entry of a complete part; None for a missing or damaged one."""
        file = self._file(part.name)
        try:
            entry = read_json(self._entry(part.name))
            is_whole = (
                file.stat().st_size == entry["bytes"] and file_digest(file) == entry["sha256"]
            )
            return dict(entry) if is_whole and entry["rows_sha256"] == part.digest else None
        except (OSError, ValueError, KeyError, TypeError):  # missing or damaged
            return None

    def has_entries(self) -> bool:
        """Whether a run can be resumed."""
        return any((self.folder / ENTRIES).glob("*.json"))

    def _file(self, name: str) -> Path:
        is_array = self.is_file and self.output.suffix == ".npy"
        return self.folder / f"{name}{'.npy' if is_array else '.parquet'}"

    def _entry(self, name: str) -> Path:
        return self.folder / ENTRIES / f"{name}.json"

    def check_output(self, settings: dict[str, Any], resume: bool, overwrite: bool) -> bool:
        """Checks that the parts can be written. An interrupted run is always resumed.

        Args:
            settings: The result of `settings`, which reads the model's files.
            resume: Accept a finished job, to repair its damaged parts.
            overwrite: Accept a finished job or another job, to replace it.

        Returns:
            Whether to replace the existing job.

        Raises:
            InputError: The folder holds other files, another job, or a finished job.
        """
        folder = self.folder.resolve()
        for name in self.inputs:
            if name != STANDARD_INPUT and folder in Path(name).resolve().parents:
                raise InputError(
                    f"The input {name} is inside the output {self.folder}. Choose another output."
                )
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder} is a file, not a folder. Choose another output.")
        if not (self.folder / JOB).exists():
            names = [file.name for file in self.folder.glob("*")]
            if not all(name.startswith(".partial-") for name in names):  # of an interrupted run
                raise InputError(
                    f"{self.folder} holds files that no job has written. Choose an empty folder."
                )
            return False
        is_finished = not self.is_file and (self.folder / MANIFEST).exists()
        try:
            before = dict(read_json(self.folder / JOB))
        except ValueError:  # damaged
            before = {}
        if overwrite and (is_finished or before != settings):
            return True
        for name, now in settings.items():
            if before.get(name) != now:
                raise InputError(
                    f"{self.folder} was begun with other {name}: {before.get(name)!r:.80}, now "
                    f"{now!r:.80}. Choose another `output`, or replace it with `overwrite=True`."
                )
        if is_finished and not resume:
            raise InputError(
                f"{self.folder} is finished. Replace it with `overwrite=True`, check it with "
                "`resume=True`, or choose another output."
            )
        return False

    def _stored_cut(self, file: int) -> list[Part] | None:
        try:
            cut = read_json(self._cut_file(file))["parts"]
            return [
                Part(**p | {"start": Start(**p["start"]), "repeated": tuple(p["repeated"])})
                for p in cut
            ]
        except (OSError, ValueError, KeyError, TypeError):  # missing or damaged
            return None

    def _cut_file(self, file: int) -> Path:
        return self.folder / CUTS / f"{file:05}.json"

    def begin(self, settings: dict[str, Any], anew: bool) -> None:
        """Creates the folder, with the settings of the job.

        Args:
            settings: The job's `settings()`.
            anew: Replace the existing job.
        """
        if anew:
            self.discard()
        # The first file: `check_output` refuses a folder with other files and without it.
        with atomic_file(self.folder / JOB) as fresh:
            # As ASCII: a file name may be no valid UTF-8.
            fresh.write_text(json.dumps(settings, indent=1), encoding="ascii")
        for folder in (ENTRIES, CUTS):
            (self.folder / folder).mkdir(exist_ok=True)

    def store_cuts(self, cuts: Mapping[int, list[Part]]) -> None:
        """Stores the parts of inputs, by the index of the input."""
        for file, parts in cuts.items():
            if self._stored_cut(file) != parts:
                write_json(self._cut_file(file), {"parts": parts})

    def discard(self) -> None:
        """Removes the folder, `_job.json` last: an interrupted removal leaves a job to resume."""
        (self.folder / MANIFEST).unlink(missing_ok=True)
        for left in list(self.folder.iterdir()):
            if left.is_dir():
                shutil.rmtree(left)
            elif left.name != JOB:
                left.unlink()
        shutil.rmtree(self.folder)

    def finish(self) -> dict[str, Any] | None:
        """Finishes the job if all parts exist.

        Returns:
            The manifest; None if parts are missing.
        """
        cuts = [self._stored_cut(file) for file in range(len(self.inputs))]
        entries = []
        for part in itertools.chain.from_iterable(cut or [] for cut in cuts):
            try:
                entries.append(dict(read_json(self._entry(part.name))))
            except (OSError, ValueError):
                return None
        if None in cuts:  # another shard still reads an input
            return None
        rejects = list(itertools.chain.from_iterable(entry.pop("rejects") for entry in entries))
        lines = "".join(to_json(row) + "\n" for row in rejects)
        with atomic_file(self.folder / REJECTS) as fresh:
            fresh.write_text(lines, encoding="utf-8")
        manifest = {
            "rows": sum(entry["written"] for entry in entries),
            "rejected": len(rejects),
            "computed_by": sorted({entry["computed_by"] for entry in entries}),
            "parts": entries,
        }
        write_json(self.folder / MANIFEST, manifest)
        names = {entry["part"] for entry in entries}
        for folder in (self.folder, self.folder / ENTRIES, self.folder / CUTS):
            for left in folder.glob(".partial-*"):  # of interrupted runs
                shutil.rmtree(left, ignore_errors=True)
            for left in folder.glob("part-*"):
                if left.stem not in names:  # standard input was longer in an earlier run
                    left.unlink()
        if self.is_file:
            self._join(entries, bool(rejects))
        return manifest

    def _join(self, entries: Sequence[Mapping[str, Any]], has_rejects: bool) -> None:
        """Joins the parts into the output, which appears atomically, and removes them."""
        fresh = self.folder / f"whole{self.output.suffix}"
        # The folder is renamed before it is removed: half of it would look like a job.
        gone = self.folder.with_name(f".{self.folder.name}")
        shutil.rmtree(gone, ignore_errors=True)
        join_files([self._file(entry["part"]) for entry in entries], fresh)
        sync(fresh)
        if has_rejects:
            os.replace(self.folder / REJECTS, self.rejects)
        else:
            self.rejects.unlink(missing_ok=True)
        os.replace(fresh, self.output)
        os.rename(self.folder, gone)
        shutil.rmtree(gone)


def computed_by() -> str:
    """The processor and torch version, which the bits of results depend on."""
    level = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()} {level}, torch {torch.__version__}"


def _joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Concatenates columns."""
    if len(pieces) == 1:
        return pieces[0]
    return {
        name: np.concatenate([piece[name] for piece in pieces])
        if isinstance(values, np.ndarray)
        else [value for piece in pieces for value in piece[name]]
        for name, values in pieces[0].items()
    }


def _digest(records: list[Record], id_type: str, repeated: tuple[int, ...]) -> str:
    """The digest of all that determines a part of standard input."""
    content = repr((records, id_type, repeated))
    return hashlib.sha256(content.encode("utf-8", "backslashreplace")).hexdigest()
