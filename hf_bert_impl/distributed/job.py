"""A bulk job: rows, chunks of rows, one file per chunk, and the output.

The file of a chunk is written under another name and renamed, so a file that exists is complete. A
run that is repeated reads the inputs again and computes only the chunks without a file. The folder
of the chunks is the output, or `OUTPUT.parts` next to an output of one file:

- `part-000000.parquet` (or .npy), and `part-000000.rejects.jsonl` if it has rejected rows
- `_job.json`: the settings that must match to resume
- `manifest.json` and `rejects.jsonl`: written at the end

At the end, the chunks of a one-file output are joined to `whole`, which becomes the output, and
their folder is removed. A manifest without `whole` shows that the output is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sqlite3
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hf_bert_impl.data.text_input import (
    STANDARD_INPUT,
    Columns,
    check_record_text,
    read_records,
)
from hf_bert_impl.data.vector_table import as_stored, join_files
from hf_bert_impl.distributed.batch_tasks import facts_of
from hf_bert_impl.errors import InputError, InputNote, one_line
from hf_bert_impl.files.atomic import atomic_file, sync
from hf_bert_impl.files.json_files import read_json, write_json
from hf_bert_impl.files.lock import lock_file
from hf_bert_impl.files.text import escaped
from hf_bert_impl.finite import NotFinite

if TYPE_CHECKING:
    from hf_bert_impl.distributed.batch_tasks import BatchTask

#: Rows per chunk of an output folder and of one file: the most that an interruption loses.
FOLDER_ROWS, FILE_ROWS = 10_000, 2_000
JOB, MANIFEST, REJECTS = "_job.json", "manifest.json", "rejects.jsonl"
#: Maximum number of rows that are read before one is usable.
OPENING_ROWS = 10_000
#: The setting that only a loaded model tells.
COMPUTED = "computed in"
#: Maximum number of characters of a text; a longer row is rejected.
LONGEST_TEXT = 1_000_000


class JobRow(NamedTuple):
    """A row of a job."""

    number: int
    """The place among all rows, and the id without `id_column`."""
    file: str
    row: int
    """The place in its file."""
    place: str
    id: Any
    texts: list[Any]
    problem: str
    """Why it is rejected; empty for a usable row."""

    def rejected(self, reason: str) -> dict[str, Any]:
        """The entry of a rejected row."""
        identifier = escaped(self.id) if isinstance(self.id, str) else self.id
        return {
            "file": escaped(self.file),
            "row": self.row,
            "id": identifier if isinstance(identifier, str | int) else None,
            "reason": reason,
        }


@dataclasses.dataclass(frozen=True)
class Job:
    """A task, its inputs and its output."""

    task: type[BatchTask]
    options: dict[str, Any]
    """The arguments of `task`."""
    inputs: tuple[str, ...]
    """Files, from `text_input.find_inputs`."""
    output: Path
    """A .npy or .parquet, or a folder."""
    columns: Columns = None
    """Columns of the texts."""
    id_column: str | None = None
    """A column of texts or 64-bit integers, unique over all inputs; None for row numbers."""
    part_rows: int = FOLDER_ROWS
    """Rows per chunk."""
    precision: str = "float32"
    """The precision of stored vectors."""

    @property
    def is_file(self) -> bool:
        """Whether the output is one file. A folder, such as the current one, may have a dot."""
        return self.output.suffix in (".npy", ".parquet") and not self.output.is_dir()

    @property
    def folder(self) -> Path:
        """The folder of the chunks."""
        beside = self.output.with_name(f"{self.output.name}.parts")
        return beside if self.is_file else self.output

    @property
    def _whole(self) -> Path:
        """The chunks joined, before they become the output."""
        return self.folder / f"whole{self.output.suffix}"

    def settings(self, engine: str) -> dict[str, Any]:
        """Settings that must match to resume, besides `COMPUTED`; each engine has its own files."""
        options = dict(self.options)
        budget = options.pop("token_budget", None)
        if not options.get("batch_invariant", True):  # then it changes results
            options["batch_tokens"] = budget
        named = [self.columns] if isinstance(self.columns, str) else self.columns or ()
        settings = {
            "task": self.task.__name__,
            **options,
            "column": ", ".join(named) or None,
            "id_column": self.id_column,
            "part_size": self.part_rows,
            "engine": engine,
            "precision": self.precision,
            **facts_of("model file", options["model"]),
        }
        for name in self.inputs:
            place = f"input {name}"
            settings |= {place: name} if name == STANDARD_INPUT else facts_of(place, name)
        return settings

    def chunks(self) -> Iterator[list[JobRow]]:
        """The rows of the inputs in lists of `part_rows`, in one pass.

        Raises:
            InputError: An input cannot be read.
        """
        chunk, number, kind = list[JobRow](), 0, None
        # A temporary database, since there may be more ids than memory.
        with contextlib.closing(sqlite3.connect("")) as known:
            known.execute("CREATE TABLE ids (id PRIMARY KEY) WITHOUT ROWID")
            for file in self.inputs:
                for row, record in enumerate(read_records(file, self.columns, self.id_column)):
                    identifier, problem = number, ""
                    try:
                        if self.id_column is not None:
                            identifier = record.id
                            if kind is None and type(identifier) in (str, int):
                                kind = type(identifier)
                        if record.error is not None:
                            raise record.error
                        for text in record.values:
                            check_record_text(record.place, text, LONGEST_TEXT)
                        if self.id_column is not None:
                            _check_id(record.place, identifier, kind, known)
                    except ValueError as error:
                        problem = one_line(error)
                    texts = [] if problem else [*record.values]
                    chunk.append(
                        JobRow(number, file, row, record.place, identifier, texts, problem)
                    )
                    number += 1
                    if len(chunk) == self.part_rows:
                        yield chunk
                        chunk = []
        if chunk:
            yield chunk

    def compute(
        self, task: BatchTask, rows: list[JobRow]
    ) -> tuple[list[JobRow], dict[str, Any], dict[int, str]]:
        """Computes usable rows. Rows that fail together are computed by halves.

        Returns:
            The computed rows, the columns to write, and the reasons of failed rows by number.
        """
        computed, pieces = list[JobRow](), list[dict[str, Any]]()
        failed = dict[int, Exception]()
        groups = [rows]
        while groups:
            some = groups.pop()
            try:
                texts = [[row.texts[place] for row in some] for place in range(len(task.columns))]
                columns = {}
                for name, values in zip(task.output_columns, task.compute(*texts), strict=True):
                    columns[name] = values
                    if values.ndim == 2:  # vectors
                        columns[name], scales = as_stored(values, self.precision)
                        columns |= {} if scales is None else {"scale": scales}
                pieces.append(columns)
                computed += some
            except Exception as error:  # of any type: other rows may still succeed
                if not some:
                    raise
                if len(some) == 1:
                    failed[some[0].number] = error
                else:
                    half = len(some) // 2
                    groups += [some[half:], some[:half]]
            if not groups and not pieces:
                groups = [[]]  # gives the columns without a row
        if len(failed) > 1 and not computed and not any(map(_is_of_row, failed.values())):
            raise next(iter(failed.values()))  # the model fails, rather than each row
        columns = {"id": [row.id for row in computed]}
        if len(self.inputs) > 1:
            columns["file"] = [escaped(row.file) for row in computed]
        columns |= {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        places = {row.number: row.place for row in rows}
        reasons = {number: one_line(error) for number, error in failed.items()}
        for number, reason in reasons.items():
            if places[number] not in reason:
                reasons[number] = f"{places[number]}: {reason}"
        return computed, columns, reasons

    def check(self, settings: dict[str, Any], resume: bool, overwrite: bool) -> bool | None:
        """Checks that the output can be written.

        Args:
            settings: The result of `settings`, with `COMPUTED` if it is known.
            resume: Accept a finished output.
            overwrite: Accept a finished output or another job, to replace it.

        Returns:
            Whether the chunks of an earlier run, if any, are replaced; None if the job is finished.

        Raises:
            InputError: The folder holds other files, another job, or a finished job.
        """
        folder = self.folder
        if os.path.lexists(folder) and not folder.is_dir():
            kind = "a file" if folder.exists() else "a dangling link"
            raise InputError(f"{folder} is {kind}, not a folder. Choose another output.")
        if not (folder / JOB).exists():
            passed = (".partial-", lock_file(folder).name)
            if any(not file.name.startswith(passed) for file in folder.glob("*")):
                raise InputError(
                    f"{folder} holds files that no job has written. Choose an empty folder."
                )
            return None if self.is_file and self.output.exists() and resume else False
        before = dict(read_json(folder / JOB))
        names = [name for name in {**before, **settings} if name != COMPUTED or name in settings]
        differences = [
            f"{f'`{name}`' if name.isidentifier() else name} was {_shown(before.get(name))}, now "
            f"{_shown(settings.get(name))}"
            for name in names
            if before.get(name) != settings.get(name)
        ]
        if differences and not overwrite:
            raise InputError(
                f"{folder} was begun with other settings: {'; '.join(differences)}. Choose another "
                "`output`, or replace it with `overwrite=True`.",
                " ".join(("output", "overwrite=True", *filter(str.isidentifier, names))),
            )
        is_finished = (folder / MANIFEST).exists()
        if self.is_file:  # then its run was killed at the end
            is_finished = is_finished and self.output.exists() and not self._whole.exists()
        elif is_finished:
            parts = read_json(folder / MANIFEST)["parts"]
            is_finished = all((folder / part).exists() for part in parts)
        if is_finished and not (resume or overwrite or self.is_file):
            raise InputError(
                f"{folder} is finished. Replace it with `overwrite=True`, or choose another "
                "output.",
                "overwrite=True",
            )
        return None if is_finished and not overwrite else bool(differences) or is_finished

    def discard(self) -> None:
        """Removes the chunks and last the settings, so that a kill leaves a job or none.

        The manifest goes before `whole`, without which it would say that the output is there. The
        folder itself may be a mounted one, or a link to another.
        """
        last = (MANIFEST, self._whole.name, JOB)
        names = {name: place for place, name in enumerate(last, start=1)}
        for file in sorted(self.folder.glob("*"), key=lambda file: names.get(file.name, 0)):
            if file.name != lock_file(self.folder).name:
                shutil.rmtree(file) if file.is_dir() else file.unlink()
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def finish(self, parts: list[Path], rows: int, rejects: Iterable[str]) -> None:
        """Writes the rejected rows, then the output or its manifest; `rows` counts both."""
        place = self.folder / REJECTS
        with atomic_file(place) as fresh, fresh.open("w", encoding="utf-8") as file:
            rejected = sum(bool(file.write(line)) for line in rejects)
        names = [file.name for file in parts]
        manifest = {"rows": rows - rejected, "rejected": rejected, "parts": names}
        if not self.is_file:
            own = {*parts, *(part.with_suffix(f".{REJECTS}") for part in parts)}
            for left in {*self.folder.glob(".partial-*"), *self.folder.glob("part-*")} - own:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            write_json(self.folder / MANIFEST, manifest)
        else:
            join_files(parts, self._whole)
            sync(self._whole)
            write_json(self.folder / MANIFEST, manifest)
            beside = self.output.with_name(f"{self.output.name}.{REJECTS}")
            beside.unlink(missing_ok=True)
            if rejected:
                os.replace(place, beside)
            os.replace(self._whole, self.output)
            self.discard()
            place = beside
        if rejected:
            note = f"{rejected:,} row(s) were rejected; the reasons are in {place}"
            warnings.warn(note, InputNote, stacklevel=3)


def _shown(value: Any) -> Any:
    return "not given" if value is None else value


def _is_of_row(error: Exception) -> bool:
    """Whether an error is that of a row, rather than of the model."""
    return isinstance(error, ValueError) and type(error) is not NotFinite


def _check_id(place: str, identifier: Any, kind: type | None, known: sqlite3.Connection) -> None:
    """Raises InputError if an id is missing, of another type than the first one, or repeated."""
    if identifier is None or identifier == "":
        raise InputError(f"{place} has no id. Add one, or leave `id_column` out.", "id_column")
    is_large = isinstance(identifier, int) and not -(2**63) <= identifier < 2**63
    if type(identifier) is not kind or is_large:
        expected = "a string" if kind is str else "an integer of 64 bits"
        raise InputError(
            f"{place} has the id {identifier!r:.40}. Use {expected}, like the first id."
        )
    if kind is str:
        check_record_text(f"the id in {place}", identifier)
    try:
        is_new = known.execute("INSERT OR IGNORE INTO ids VALUES (?)", (identifier,)).rowcount
    except sqlite3.Error as error:  # not of this row
        raise OSError(
            f"the ids do not fit on the disk of temporary files ({error}). Free some space, or set "
            "SQLITE_TMPDIR to another folder"
        ) from error
    if not is_new:
        raise InputError(
            f"{place} repeats the id {identifier!r:.60}. Make ids unique, or leave `id_column` "
            "out.",
            "id_column",
        )
