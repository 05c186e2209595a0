"""A bulk job: rows, chunks of rows, one file per chunk, and the output.

The file of a chunk is written under another name and renamed, so a file that exists is complete. A
run that is repeated reads the inputs again and computes only the chunks without a file. The folder
of the chunks is the output, or `OUTPUT.parts` next to an output of one file:

- `part-000000.parquet` (or .npy), and `part-000000.rejects.jsonl` if it has rejected rows
- `_job.json`: the settings that must match to resume
- `manifest.json` and `rejects.jsonl`: written at the end

At the end, the chunks of a one-file output are joined and their folder is removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import sqlite3
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_bert_impl.data.arrow_records import is_dataset
from hf_bert_impl.data.text_input import (
    FORMS,
    Columns,
    check_record_text,
    endings,
    form_of,
    read_records,
)
from hf_bert_impl.data.vector_table import as_stored, join_files
from hf_bert_impl.distributed.fingerprint import facts_of, model_files
from hf_bert_impl.errors import InputError, InputNote, one_line
from hf_bert_impl.files.atomic import atomic_file, sync
from hf_bert_impl.files.json_files import read_json, write_json
from hf_bert_impl.files.text import check_text_file, escaped
from hf_bert_impl.finite import NotFinite

if TYPE_CHECKING:
    from hf_bert_impl.distributed.batch_tasks import BatchTask

#: Rows per chunk of an output folder and of one file: the most that an interruption loses.
FOLDER_ROWS, FILE_ROWS = 10_000, 2_000
JOB, MANIFEST, REJECTS = "_job.json", "manifest.json", "rejects.jsonl"
#: The setting that only a loaded model tells.
COMPUTED = "computed in"
#: Maximum number of characters of a text; a longer row is rejected.
LONGEST_TEXT = 1_000_000
STANDARD_INPUT = "-"


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


@dataclasses.dataclass(frozen=True)
class Job:
    """A task, its inputs and its output."""

    task: type[BatchTask]
    options: dict[str, Any]
    """The arguments of `task`."""
    inputs: tuple[str, ...]
    """Files, from `find_inputs`."""
    output: Path
    """A .npy or .parquet, or a folder."""
    columns: Columns = None
    """Columns of the texts."""
    id_column: str | None = None
    """A column of texts or 64-bit integers, unique over all inputs; None for row numbers."""
    part_rows: int | None = None
    """Rows per chunk; None for 10000, or 2000 for an output of one file."""
    precision: str = "float32"
    """The precision of stored vectors."""

    @property
    def is_file(self) -> bool:
        """Whether the output is one file."""
        return bool(self.output.suffix)

    @property
    def rows_per_part(self) -> int:
        """Rows per chunk."""
        return self.part_rows or (FILE_ROWS if self.is_file else FOLDER_ROWS)

    @property
    def folder(self) -> Path:
        """The folder of the chunks."""
        return self.output.with_name(f"{self.output.name}.parts") if self.is_file else self.output

    @property
    def rejects(self) -> Path:
        """The file of the rejected rows."""
        beside = self.output.with_name(f"{self.output.name}.{REJECTS}")
        return beside if self.is_file else self.folder / REJECTS

    def settings(self) -> dict[str, Any]:
        """Settings that must match to resume, besides `COMPUTED`."""
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
            "part_size": self.rows_per_part,
            "precision": self.precision,
            **model_files(options["model"]),
        }
        for name in self.inputs:
            settings[f"input {name}"] = STANDARD_INPUT if name == STANDARD_INPUT else ""
            inside = sorted(filter(Path.is_file, Path(name).rglob("*")))  # of `datasets`
            for file in inside or ([Path(name)] if name != STANDARD_INPUT else []):
                settings[f"input {file}"] = facts_of(file)
        return {escaped(name): _printable(value) for name, value in settings.items()}

    def rows(self) -> Iterator[JobRow]:
        """All rows of the inputs, in one pass."""
        numbers = itertools.count()
        kind = int if self.id_column is None else None
        # A temporary database, since there may be more ids than memory.
        with contextlib.closing(sqlite3.connect("")) as known:
            known.execute("CREATE TABLE ids (id PRIMARY KEY) WITHOUT ROWID")
            for file in self.inputs:
                for row, record in enumerate(read_records(file, self.columns, self.id_column)):
                    number, problem = next(numbers), ""
                    identifier = number if self.id_column is None else record.id
                    if kind is None and type(identifier) in (str, int):
                        kind = type(identifier)
                    try:
                        if record.error is not None:
                            raise record.error
                        for text in record.values:
                            _check_length(record.place, text)
                        if self.id_column is not None:
                            _check_id(record.place, identifier, kind, known)
                    except ValueError as error:
                        problem = one_line(error)
                    texts = [] if problem else [*record.values]
                    yield JobRow(number, file, row, record.place, identifier, texts, problem)

    def chunks(self) -> Generator[list[JobRow], None, None]:
        """The rows in lists of `rows_per_part`.

        Raises:
            InputError: An input cannot be read, there is no row, or none of the first is usable.
        """
        rows = self.rows()
        first = True
        while chunk := list(itertools.islice(rows, self.rows_per_part)):
            if first and all(row.problem for row in chunk):
                raise InputError(chunk[0].problem)  # e.g. the column is missing
            first = False
            yield chunk
        if first:
            raise InputError(f"{', '.join(self.inputs[:3])} has no rows. Use a file with texts.")

    def reject(self, row: JobRow, reason: str) -> dict[str, Any]:
        """The entry of a rejected row."""
        identifier = escaped(row.id) if isinstance(row.id, str) else row.id
        return {
            "file": escaped(row.file),
            "row": row.row,
            "id": identifier if isinstance(identifier, str | int) else None,
            "reason": reason,
        }

    def compute(
        self, task: BatchTask, rows: list[JobRow]
    ) -> tuple[list[JobRow], dict[str, Any], dict[int, str]]:
        """Computes usable rows.

        Returns:
            The computed rows, the columns to write, and the reasons of failed rows by number.
        """
        computed, usable = list[JobRow](), list[JobRow]()
        pieces, failed = [], dict[int, Exception]()
        for row in rows:
            try:
                task.check(*row.texts)
                usable.append(row)
            except ValueError as error:
                failed[row.number] = error
        for some, results in _by_halves(task, usable, self.precision):
            if isinstance(results, Exception):
                failed[some[0].number] = results
            else:
                computed += some
                pieces.append(results)
        of_rows = any(
            isinstance(e, ValueError) and type(e) is not NotFinite for e in failed.values()
        )
        if len(failed) > 1 and not computed and not of_rows:
            raise next(iter(failed.values()))  # the model fails, rather than each row
        columns = _joined(pieces or [_results(task, [], self.precision)])
        ids: dict[str, Any] = {"id": [row.id for row in computed]}
        if len(self.inputs) > 1:
            ids["file"] = [escaped(row.file) for row in computed]
        places = {row.number: row.place for row in rows}
        return (
            computed,
            ids | columns,
            {number: _placed(places[number], error) for number, error in failed.items()},
        )

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
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file, not a folder. Choose another output.")
        if not (folder / JOB).exists():
            if any(not file.name.startswith(".partial-") for file in folder.glob("*")):
                raise InputError(
                    f"{folder} holds files that no job has written. Choose an empty folder."
                )
            return None if self.is_file and self.output.exists() and resume else False
        before = dict(read_json(folder / JOB))
        names = [name for name in {**before, **settings} if name != COMPUTED or name in settings]
        differences = [
            f"{f'`{name}`' if name.isidentifier() else name} was "
            f"{_shown(before.get(name))}, now {_shown(settings.get(name))}"
            for name in names
            if before.get(name) != settings.get(name)
        ]
        if differences and not overwrite:
            raise InputError(
                f"{folder} was begun with other settings: {'; '.join(differences)}. Choose another "
                "`output`, or replace it with `overwrite=True`."
            )
        is_finished = (folder / MANIFEST).exists() and all(
            (folder / part).exists() for part in read_json(folder / MANIFEST)["parts"]
        )
        if is_finished and not resume and not overwrite:
            raise InputError(
                f"{folder} is finished. Replace it with `overwrite=True`, or choose another output."
            )
        return None if is_finished and not overwrite else bool(differences) or is_finished

    def begin(self, settings: dict[str, Any], anew: bool) -> None:
        """Creates the folder, with the settings of the job; `anew` removes an earlier run."""
        if anew:
            self.discard()
        (self.folder / MANIFEST).unlink(missing_ok=True)
        write_json(self.folder / JOB, settings)

    def discard(self) -> None:
        """Removes the folder; renamed before, because half of it would look like a job."""
        gone = self.folder.with_name(f".{self.folder.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        if self.folder.exists():
            os.rename(self.folder, gone)
            shutil.rmtree(gone)

    def finish(self, parts: list[Path], rows: int, rejects: Iterator[str]) -> None:
        """Writes the rejected rows, then the output or its manifest; `rows` counts both."""
        with atomic_file(self.folder / REJECTS) as fresh, fresh.open("w", encoding="utf-8") as file:
            rejected = sum(bool(file.write(line)) for line in rejects)
        if not self.is_file:
            own = {*parts, *map(rejects_of, parts)}
            for left in {*self.folder.glob(".partial-*"), *self.folder.glob("part-*")} - own:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            names = [file.name for file in parts]
            manifest = {"rows": rows - rejected, "rejected": rejected, "parts": names}
            write_json(self.folder / MANIFEST, manifest)
        else:
            whole = self.folder / f"whole{self.output.suffix}"
            join_files(parts, whole)
            sync(whole)
            self.rejects.unlink(missing_ok=True)
            if rejected:
                os.replace(self.folder / REJECTS, self.rejects)
            os.replace(whole, self.output)
            self.discard()
        if rejected:
            note = f"{rejected:,} row(s) were rejected; the reasons are in {self.rejects}"
            warnings.warn(note, InputNote, stacklevel=3)


def rejects_of(part: Path) -> Path:
    """The file of a chunk's rejected rows."""
    return part.with_suffix(f".{REJECTS}")


def find_inputs(source: str) -> tuple[str, ...]:
    """Lists a file, a data set's folder, standard input, or all files of a folder, sorted.

    Raises:
        InputError: The file is missing or of another form, or the folder has no such file.
    """
    if source == STANDARD_INPUT:
        return (source,)
    path = Path(source).expanduser()
    form_of(source)
    if not path.is_dir():
        check_text_file(path, "a file of texts, a folder of such files, or -")
    if not path.is_dir() or is_dataset(path):
        return (os.path.abspath(path),)
    known = [ending for ending, form in FORMS.items() if form != "conll"]
    files = []
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        if file.is_file() and endings(file)[0] in known and not hidden:
            form_of(file)
            files.append(os.path.abspath(file))
    if not files:
        raise InputError(f"{source} has no files ending in {', '.join(known)}. Add one.")
    return tuple(files)


def _shown(value: Any) -> Any:
    return "not given" if value is None else value


def _printable(value: Any) -> Any:
    return escaped(value) if isinstance(value, str) else value


def _check_length(place: str, text: Any) -> None:
    """Raises InputError if a value is not a text, or is too long."""
    check_record_text(place, text)
    if len(text) > LONGEST_TEXT:
        length = f"{place} has {len(text):,} characters"
        raise InputError(f"{length}. The limit is {LONGEST_TEXT:,}. Split the text.")


def _check_id(place: str, identifier: Any, kind: type | None, known: sqlite3.Connection) -> None:
    """Raises InputError if an id is missing, of another type than the first one, or repeated."""
    if identifier is None or identifier == "":
        raise InputError(f"{place} has no id. Add one, or leave `id_column` out.")
    is_large = isinstance(identifier, int) and not -(2**63) <= identifier < 2**63
    if type(identifier) is not kind or is_large:
        expected = "a string" if kind is str else "an integer of 64 bits"
        raise InputError(
            f"{place} has the id {identifier!r:.40}. Use {expected}, like the first id."
        )
    if kind is str:
        check_record_text(f"the id in {place}", identifier)
    if not known.execute("INSERT OR IGNORE INTO ids VALUES (?)", (identifier,)).rowcount:
        raise InputError(
            f"{place} repeats the id {identifier!r:.60}. Make ids unique, or leave `id_column` out."
        )


def _by_halves(
    task: BatchTask, rows: list[JobRow], precision: str
) -> Iterator[tuple[list[JobRow], dict[str, Any] | Exception]]:
    """The results of rows, in order. Rows that fail together are computed by halves."""
    if not rows:
        return
    results: dict[str, Any] | Exception
    try:
        results = _results(task, [row.texts for row in rows], precision)
    except Exception as error:  # of any type: other rows may still succeed
        results = error
    if isinstance(results, Exception) and len(rows) > 1:
        half = len(rows) // 2
        yield from _by_halves(task, rows[:half], precision)
        yield from _by_halves(task, rows[half:], precision)
    else:
        yield rows, results


def _results(task: BatchTask, texts: list[list[str]], precision: str) -> dict[str, Any]:
    """The columns to write after the ids."""
    done = task({name: [row[k] for row in texts] for k, name in enumerate(task.columns)})
    columns = {}
    for name in task.output_columns:
        columns[name] = done[name]
        if getattr(done[name], "ndim", 1) == 2:  # vectors
            columns[name], scales = as_stored(done[name], precision)
            columns |= {} if scales is None else {"scale": scales}
    return columns


def _joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Concatenates columns."""
    import numpy as np

    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _placed(place: str, error: Exception) -> str:
    reason = one_line(error)
    return reason if place in reason else f"{place}: {reason}"
