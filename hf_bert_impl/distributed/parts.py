"""Bulk work in parts: a range of rows of an input becomes a Parquet file, complete or not at all.

The output is a folder:

- `part-FFFFF-PPPPP.parquet`: part P of input F, with the columns `id` (`file` beside it where there
  are several inputs) and those that were computed;
- `_parts/part-FFFFF-PPPPP.json`: written after its part, with its size and digest, and the rows
  that were set apart. A part counts when this is there and its file is as it says;
- `_cuts/FFFFF.json`: where the parts of an input begin, so that it is read once to find them;
- `_job.json`: what must be the same for another process to go on with the work, or to share it;
- `manifest.json` and `rejects.jsonl`: made when all parts are there, out of the files above.

Where a part begins and ends depends on the inputs and `part_rows` alone, and each is made by
itself. So it does not matter which process makes which part, how often, or in what order. All names
are on a disk that every process sees.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_bert_impl.data.table_records import is_dataset
from hf_bert_impl.data.text_input import (
    FORMS,
    RecordInput,
    Start,
    Wanted,
    check_record_text,
    endings,
)
from hf_bert_impl.data.vector_table import as_stored, write_columns
from hf_bert_impl.distributed.batch_tasks import BatchTask
from hf_bert_impl.distributed.digests import file_digest, weights_digest
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.files.atomic import atomic_file
from hf_bert_impl.files.json_files import check_text, read_json
from hf_bert_impl.files.text import escaped
from hf_bert_impl.finite import NotFinite

#: Rows of a part where nobody says.
PART_ROWS = 10_000
#: Most characters of a text; a longer one is set apart, as it is hardly one.
LONGEST_TEXT = 1_000_000
#: Endings of the files that are read in a folder.
SUFFIXES = tuple(ending for ending, form in FORMS.items() if form != "conll")
JOB, MANIFEST, REJECTS = "_job.json", "manifest.json", "rejects.jsonl"
ENTRIES, CUTS = "_parts", "_cuts"
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Part:
    """Some rows of an input."""

    file: int
    """The number of the input."""
    number: int
    """Of the part among those of its input."""
    start: Start
    """What lies before it."""
    rows: int

    @property
    def name(self) -> str:
        """Of its files, without an ending."""
        return f"part-{self.file:05}-{self.number:05}"


@dataclasses.dataclass(frozen=True)
class _Row:
    """A row that can be computed, as far as one can see."""

    number: int
    place: str
    id: Any
    texts: list[str]


@dataclasses.dataclass(frozen=True)
class BulkJob:
    """What is computed of which texts, and where to. It can be pickled."""

    inputs: tuple[str, ...]
    output: Path
    task: type[BatchTask]
    options: dict[str, Any]
    """The arguments of `task`."""
    columns: Wanted
    """Of the inputs, in the order of the task's own."""
    id_column: str | None = None
    part_rows: int = PART_ROWS
    precision: str = "float32"
    """What vectors are stored as."""

    def cut(self, file: int, stored: bool) -> list[Part]:
        """The parts of an input, in order.

        Args:
            file: The number of the input. It is read, and nothing is kept of it.
            stored: Take what an earlier process of the same job has found, if it is there.

        Raises:
            InputError: The input cannot be read, or no row of it.
        """
        known = self._stored_cut(file) if stored else None
        return list(self._parts_of(file)) if known is None else known

    def _parts_of(self, file: int) -> Iterator[Part]:
        with RecordInput(self.inputs[file], self.columns, self.id_column) as source:
            for number in itertools.count():
                start, rows, is_readable = source.position, 0, False
                problem: ValueError | None = None
                for _, text, _ in itertools.islice(source.records, self.part_rows):
                    rows += 1
                    if isinstance(text, ValueError):
                        problem = problem or text
                    else:
                        is_readable = True
                if problem is not None and not is_readable and number == 0:
                    raise problem  # no row has such a column, say
                if rows == 0:
                    return
                yield Part(file, number, start, rows)

    def settings(self) -> dict[str, Any]:
        """What another process has to have the same."""
        inputs = []
        for name in self.inputs:
            status = os.stat(name)
            inputs.append([name, status.st_size, status.st_mtime_ns])
        return {
            "format": FORMAT,
            "task": self.task.__name__,
            "options": {key: self.options[key] for key in sorted(self.options)},
            "columns": list(self.columns) if isinstance(self.columns, tuple) else self.columns,
            "id_column": self.id_column,
            "part_rows": self.part_rows,
            "precision": self.precision,
            "weights": weights_digest(self.options["model"]),
            "inputs": inputs,
        }

    def make(self, part: Part, task: BatchTask) -> dict[str, Any]:
        """Computes a part, writes it, and then its entry, which is returned."""
        begin, tokens = time.perf_counter(), task.tokens
        rows: list[_Row] = []
        rejects: list[dict[str, Any]] = []
        kind = int if self.id_column is None else self._id_type()
        source = RecordInput(self.inputs[part.file], self.columns, self.id_column, part.start)
        with source:
            records = itertools.islice(source.records, part.rows)
            for row, (place, text, identifier) in enumerate(records, part.start.rows):
                named = row if self.id_column is None else identifier
                values = text if isinstance(text, list) else [text]
                try:
                    _check_texts(place, values)
                    task.check(*values)
                    _check_id(place, named, kind)
                except ValueError as error:
                    rejects.append(_reject(source.name, row, named, error))
                    continue
                rows.append(_Row(row, place, named, values))
        if len(rows) + len(rejects) != part.rows:
            raise InputError(
                f"{source.name} has fewer rows than when the work began", "the same file", "restore"
            )
        ids: list[Any] = []
        pieces: list[dict[str, Any]] = []
        failed: list[Exception] = []
        for some, results in self._computed(task, rows):
            if isinstance(results, Exception):
                failed.append(results)
                reason = results if some[0].place in str(results) else f"{some[0].place}: {results}"
                rejects.append(_reject(source.name, some[0].number, some[0].id, reason))
            else:
                ids += [row.id for row in some]
                pieces.append(results)
        of_rows = [it for it in failed if isinstance(it, ValueError) and type(it) is not NotFinite]
        if len(failed) > 1 and not ids and not of_rows:
            raise failed[0]  # the fault is hardly in the rows
        rejects.sort(key=lambda reject: reject["row"])
        columns: dict[str, Any] = {"id": np.array(ids, np.int64) if kind is int else ids}
        if len(self.inputs) > 1:
            columns["file"] = [escaped(self.inputs[part.file])] * len(ids)
        columns |= _joined(pieces or [self._results(task, [])])
        file = self.output / f"{part.name}.parquet"
        with atomic_file(file) as fresh:
            write_columns(fresh, columns)
            size, digest = fresh.stat().st_size, file_digest(fresh)
        entry = {
            "part": part.name,
            "file": escaped(self.inputs[part.file]),
            "first_row": part.start.rows,
            "rows": part.rows,
            "written": len(ids),
            "bytes": size,
            "sha256": digest,
            "tokens": task.tokens - tokens,
            "computed_by": computed_by(),
            "seconds": round(time.perf_counter() - begin, 3),
            "rejects": rejects,
        }
        with atomic_file(self._entry(part.name)) as fresh:
            fresh.write_text(json.dumps(entry, ensure_ascii=False), encoding="utf-8")
        return entry

    def _computed(
        self, task: BatchTask, rows: list[_Row]
    ) -> Iterator[tuple[list[_Row], dict[str, Any] | Exception]]:
        """Results of rows in order; of rows that cannot be computed together those of each half."""
        if not rows:
            return
        results: dict[str, Any] | Exception
        try:
            results = self._results(task, [row.texts for row in rows])
        except Exception as error:  # whatever it is, the other rows can do without it
            results = error
        if isinstance(results, Exception) and len(rows) > 1:
            half = len(rows) // 2
            yield from self._computed(task, rows[:half])
            yield from self._computed(task, rows[half:])
        else:
            yield rows, results

    def _results(self, task: BatchTask, texts: list[list[str]]) -> dict[str, Any]:
        """The columns that are written beside the ids."""
        done = task({name: [row[k] for row in texts] for k, name in enumerate(task.columns)})
        columns = {}
        for name in task.output_columns:
            columns[name] = done[name]
            if getattr(done[name], "ndim", 1) == 2:  # vectors
                columns[name], scales = as_stored(done[name], self.precision)
                columns |= {} if scales is None else {"scale": scales}
        return columns

    def _id_type(self) -> type:
        """That of the first id: a column has one type, in all parts."""
        with RecordInput(self.inputs[0], self.columns, self.id_column) as source:
            kinds = (type(identifier) for _, _, identifier in source.records)
            return next((kind for kind in kinds if kind in (str, int)), str)

    def entry(self, part: Part) -> dict[str, Any] | None:
        """The entry of a part that is there and whole; None for one that has to be made."""
        file = self.output / f"{part.name}.parquet"
        try:
            entry = read_json(self._entry(part.name))
            if file.stat().st_size == entry["bytes"] and file_digest(file) == entry["sha256"]:
                return dict(entry)
        except (OSError, ValueError, KeyError):  # a damaged entry is as none
            pass
        return None

    def _entry(self, name: str) -> Path:
        return self.output / ENTRIES / f"{name}.json"

    def check_output(self, settings: dict[str, Any], resume: bool, overwrite: bool) -> None:
        """Checks that the parts can be written.

        Args:
            settings: What `settings` gives, which reads the model's files.
            resume: Go on with what is there.
            overwrite: Parts of an earlier job may be there, which `begin` removes.

        Raises:
            InputError: The folder holds something else, or another job's parts.
        """
        output = self.output.resolve()
        for name in self.inputs:
            if output in Path(name).resolve().parents:
                raise InputError(
                    f"{name} lies in {self.output}", "an output beside the input", "name another"
                )
        if self.output.exists() and not self.output.is_dir():
            raise InputError(f"{self.output} is a file", "a folder for the parts", "name another")
        if not (self.output / JOB).exists():
            if self.output.is_dir() and any(self.output.iterdir()):
                raise InputError(
                    f"{self.output} has files, and no job in parts has written them",
                    "an empty or a new folder",
                    "name one",
                )
        elif not overwrite:
            self._check_same(read_json(self.output / JOB), settings)
            if not resume and any((self.output / ENTRIES).glob("*.json")):
                raise InputError(
                    f"{self.output} was begun by an earlier run of this job",
                    "`resume=True` to go on with it",
                    "give that, or `overwrite=True` to start anew",
                )

    def _stored_cut(self, file: int) -> list[Part] | None:
        try:
            found = read_json(self._cut_file(file))["parts"]
            return [
                Part(file, number, Start(*start), rows)
                for number, (start, rows) in enumerate(found)
            ]
        except (OSError, ValueError, KeyError, TypeError):  # a damaged one is as none
            return None

    def _cut_file(self, file: int) -> Path:
        return self.output / CUTS / f"{file:05}.json"

    def begin(
        self, settings: dict[str, Any], overwrite: bool, cuts: Mapping[int, list[Part]]
    ) -> None:
        """Makes the folder and says whose it is.

        Args:
            settings: As of `check_output`.
            overwrite: As of `check_output`.
            cuts: The parts of some inputs, by the number of the input.
        """
        if overwrite and (self.output / JOB).exists():
            shutil.rmtree(self.output)
        for folder in (ENTRIES, CUTS):
            (self.output / folder).mkdir(parents=True, exist_ok=True)
        with atomic_file(self.output / JOB) as fresh:
            fresh.write_text(json.dumps(settings, indent=1), encoding="utf-8")
        for file, parts in cuts.items():
            if self._stored_cut(file) != parts:
                found = [[dataclasses.astuple(part.start), part.rows] for part in parts]
                with atomic_file(self._cut_file(file)) as fresh:
                    fresh.write_text(json.dumps({"parts": found}), encoding="utf-8")

    def _check_same(self, before: dict[str, Any], settings: dict[str, Any]) -> None:
        for name, now in settings.items():
            if before.get(name) != now:
                raise InputError(
                    f"{self.output} was begun with other {name}: {before.get(name)!r:.80}, now "
                    f"{now!r:.80}",
                    "the same command and input to go on with it",
                    "name another `output`, or give `overwrite=True`",
                )

    def finish(self) -> dict[str, Any] | None:
        """Writes the manifest and the rejects if all parts are there; gives the manifest then."""
        cuts = [self._stored_cut(file) for file in range(len(self.inputs))]
        entries = []
        for part in itertools.chain.from_iterable(cut or [] for cut in cuts):
            try:
                entries.append(dict(read_json(self._entry(part.name))))
            except (OSError, ValueError):
                return None
        if None in cuts:  # another shard has yet to read an input
            return None
        rejects = list(itertools.chain.from_iterable(entry.pop("rejects") for entry in entries))
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rejects)
        with atomic_file(self.output / REJECTS) as fresh:
            fresh.write_text(lines, encoding="utf-8")
        manifest = {
            "rows": sum(entry["written"] for entry in entries),
            "rejected": len(rejects),
            "computed_by": sorted({entry["computed_by"] for entry in entries}),
            "parts": entries,
        }
        with atomic_file(self.output / MANIFEST) as fresh:
            fresh.write_text(json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")
        for folder in (self.output, self.output / ENTRIES, self.output / CUTS):
            for left in folder.glob(".partial-*"):  # of killed processes
                shutil.rmtree(left, ignore_errors=True)
        return manifest


def find_inputs(source: str) -> tuple[str, ...]:
    """A file, the folder of a data set, or the files of a folder and of those below it, sorted.

    Raises:
        InputError: The folder has none that can be read, or the source is standard input, which
            cannot be read twice.
    """
    if source == "-":
        raise InputError(
            "the texts come from standard input", "a file or a folder", "write them to a file"
        )
    path = Path(source).expanduser()
    if not is_folder_of_files(source):
        return (os.path.abspath(path),)
    found = []
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        if file.is_file() and endings(file)[0] in SUFFIXES and not hidden:
            found.append(os.path.abspath(file))
    if not found:
        raise InputError(
            f"{source} has no files of texts", f"files ending in {', '.join(SUFFIXES)}", "name one"
        )
    return tuple(found)


def is_folder_of_files(source: str) -> bool:
    """Whether it is a folder, and not one that `datasets` wrote."""
    path = Path(source).expanduser()
    return source != "-" and path.is_dir() and not is_dataset(path)


def computed_by() -> str:
    """What the bits of a result depend on beside the job: others may come out on another kind."""
    level = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()} {level}, torch {torch.__version__}"


def _joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Columns of several pieces, below each other."""
    if len(pieces) == 1:
        return pieces[0]
    return {
        name: np.concatenate([piece[name] for piece in pieces])
        if isinstance(values, np.ndarray)
        else [value for piece in pieces for value in piece[name]]
        for name, values in pieces[0].items()
    }


def _reject(file: str, row: int, identifier: Any, reason: object) -> dict[str, Any]:
    """What is written of a row that is set apart."""
    if isinstance(identifier, str | bytes):
        identifier = escaped(identifier)
    shown = identifier if isinstance(identifier, str | int) else None
    return {"file": escaped(file), "row": row, "id": shown, "reason": one_line(reason)}


def _check_texts(place: str, texts: list[Any]) -> None:
    """Raises ValueError if a row has no texts that can be computed."""
    for text in texts:
        if isinstance(text, ValueError):
            raise text
        check_record_text(place, text)
        if len(text) > LONGEST_TEXT:
            raise InputError(
                f"{place} has a text of {len(text):,} characters",
                f"at most {LONGEST_TEXT:,}",
                "cut it into several",
            )


def _check_id(place: str, identifier: Any, kind: type) -> None:
    """Raises ValueError if a row's id is not of the type that the others have."""
    fits = type(identifier) is kind and identifier != ""
    if not fits or (kind is int and not -(2**63) <= identifier < 2**63):
        expected = "a text" if kind is str else "a whole number of 64 bits"
        raise InputError(
            f"{place} has {identifier!r:.40} for an id",
            f"{expected}, as the first id is",
            "mend it",
        )
    if kind is str:
        check_text(identifier, f"the id in {place}")
