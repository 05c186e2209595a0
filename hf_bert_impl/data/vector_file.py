"""A file of vectors that grows row by row, survives being killed, and appears when it is complete.

Beside the output stand `OUTPUT.partial`, which holds a header of fixed length and the rows, and
`OUTPUT.progress.json`, which says how many of these rows count, with which settings and texts they
were made. The latter is replaced in one step, and only after the rows are on the disk; rows beyond
those that it counts are cut off and made again. Files under these names that no earlier run wrote
are left alone. A .npy is these rows under another name; a .parquet is made of them at the end, so
that both go on in the same way after a kill.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hf_bert_impl.data.row_ids import RowIds
from hf_bert_impl.data.vector_table import PRECISIONS, as_stored, write_parquet
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.atomic import atomic_file
from hf_bert_impl.files.lock import output_lock

if TYPE_CHECKING:
    import numpy as np

#: Bytes before the rows: enough for any shape, and a multiple of 64 as the format asks.
HEADER = 128
#: At most so much work is lost when the process is killed.
CHECKPOINT_SECONDS = 2.0
FORMAT = 1
#: The scale of a row of int8 lies in its last four bytes until the output is made.
SCALE_BYTES = 4


def npy_header(rows: int, dimension: int, kind: str = "<f4") -> bytes:
    """The header of a matrix of numbers of a kind, padded to `HEADER` bytes.

    The format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, version 1.0.
    """
    start = b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little")
    fields = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({rows}, {dimension}), }}"
    return start + fields.encode().ljust(HEADER - 11) + b"\n"


def files_beside(output: Path) -> tuple[Path, Path]:
    """Where the rows grow, and what says how many of them count."""
    return (
        output.with_name(f"{output.name}.partial"),
        output.with_name(f"{output.name}.progress.json"),
    )


class VectorFile:
    """Writes a matrix row by row; to be used in a `with` statement.

    Args:
        output: The .npy or .parquet to make.
        dimension: How many numbers a row has.
        settings: What must be the same for a run to go on where another one was interrupted.
        precision: One of `PRECISIONS`; int8 for .parquet only, which has a column for its scales.
        ids: Of the rows of a .parquet; None numbers them from 0.
        part_size: Most rows a file, of a .parquet that is then a folder; None makes one file.

    Raises:
        InputError: On entry: an interrupted run had other settings, or what lies under the names
            that this needs was not written by one.
        ValueError: On entry: another run is writing the output.
    """

    def __init__(
        self,
        output: Path,
        dimension: int,
        settings: dict[str, Any],
        *,
        precision: str = "float32",
        ids: RowIds | None = None,
        part_size: int | None = None,
    ) -> None:
        self.output = output
        self._kind, self._ids, self._part_size = PRECISIONS[precision], ids, part_size
        self._precision = precision
        self._columns = dimension + SCALE_BYTES * (precision == "int8")
        self._row_bytes = self._columns * int(self._kind[-1])
        #: What else the progress file is to keep.
        self.extra: dict[str, Any] = {}
        self.partial, self.progress = files_beside(output)
        self._settings = {"format": FORMAT, "dimension": dimension, **settings}
        if precision != "float32":  # files of earlier releases go on without it
            self._settings["precision"] = precision
        # Rows and the digest of their texts stand in one attribute: an interrupt never finds one of
        # them without the other.
        self._done = (0, hashlib.sha256())
        self._texts_before = ""
        self._is_ours = False
        self._saved_at = -CHECKPOINT_SECONDS

    def __enter__(self) -> VectorFile:
        with contextlib.ExitStack() as opened:
            opened.enter_context(output_lock(self.output))
            self._file = opened.enter_context(self._open())
            opened.callback(self._remove_if_empty)
            self._resume()
            self._is_ours = True
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.close()

    def _remove_if_empty(self) -> None:
        """Delete a file without rows, from which nothing can go on."""
        if self._is_ours and self.rows == 0:
            self.partial.unlink(missing_ok=True)

    @property
    def rows(self) -> int:
        """Rows that are done; on entry, those of an interrupted run."""
        return self._done[0]

    def changed(self, what: str) -> InputError:
        """The error for a run that cannot go on where another one was interrupted."""
        return InputError(
            f"{self.output} was begun by another run, and {what}",
            "the same command and input to go on with it",
            f"delete {self.partial} to start anew",
        )

    def skip(self, texts: Iterator[str]) -> int:
        """Pass over the texts whose rows are there already.

        Returns:
            How many they are.

        Raises:
            InputError: They are not the texts with which the rows were made.
        """
        rows, digest = self._done
        passed = 0
        for text in itertools.islice(texts, rows):
            passed += 1
            _add(digest, text)
        if passed < rows:
            raise self.changed(f"the input has {passed} texts where {rows} were done")
        if rows and digest.hexdigest() != self._texts_before:
            raise self.changed(f"the first {rows} texts are others now")
        return rows

    def append(self, texts: list[str], vectors: np.ndarray) -> None:
        """Write rows.

        Args:
            texts: n texts.
            vectors: (n, dimension) float32.

        Raises:
            InputError: A number is too large for the precision.
        """
        content = self._packed(vectors)
        rows, digest = self.rows + len(texts), self._done[1].copy()
        for text in texts:
            _add(digest, text)
        self._file.write(content)
        self._done = (rows, digest)
        if time.monotonic() - self._saved_at >= CHECKPOINT_SECONDS:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Note on the disk that the rows so far count."""
        rows, digest = self._done
        self._file.flush()
        os.fsync(self._file.fileno())
        state = {
            "settings": self._settings,
            "rows": rows,
            "texts_sha256": digest.hexdigest(),
            "extra": self.extra,
        }
        with atomic_file(self.progress) as fresh:
            fresh.write_text(json.dumps(state), encoding="utf-8")
        self._saved_at = time.monotonic()

    def finish(self) -> None:
        """Give the file its header and its name, or make the table of it."""
        self._file.seek(0)
        self._file.write(self._header(self.rows))
        self._file.flush()
        os.fsync(self._file.fileno())
        if self.output.suffix == ".parquet":
            self._make_table()
            self.partial.unlink()
        else:
            os.replace(self.partial, self.output)
        self.progress.unlink(missing_ok=True)

    def _make_table(self) -> None:
        import numpy as np

        self.checkpoint()  # a run that is killed from here on has only this left to do
        shape = (self.rows, self._columns)
        rows: np.ndarray = np.memmap(self.partial, self._kind, "r", HEADER, shape)
        vectors, scales = rows, None
        if self._precision == "int8":
            vectors = rows[:, :-SCALE_BYTES]
            scales = np.ascontiguousarray(rows[:, -SCALE_BYTES:]).view("<f4")[:, 0]
        write_parquet(self.output, vectors, scales, self._ids, self._part_size)

    def _packed(self, vectors: np.ndarray) -> bytes:
        """Rows as they are stored."""
        import numpy as np

        numbers, scales = as_stored(vectors, self._precision, self.rows)
        if scales is not None:
            numbers = np.hstack((numbers, scales[:, None].view("i1")))
        return numbers.tobytes()

    def _header(self, rows: int) -> bytes:
        return npy_header(rows, self._columns, self._kind)

    def _open(self) -> IO[bytes]:
        """Make the file of rows, or open that of an interrupted run."""
        flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)
        try:
            made = os.open(self.partial, flags | os.O_CREAT | os.O_EXCL, 0o666)
            self._is_ours = True
            return os.fdopen(made, "r+b")
        except FileExistsError:
            status = os.lstat(self.partial)
        # Through a link this would write to a file that is known by another name.
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise _not_ours(self.partial)
        return os.fdopen(os.open(self.partial, flags), "r+b")

    def _resume(self) -> None:
        """Find the rows that count, and go to their end."""
        size = self._file.seek(0, os.SEEK_END)
        state = self._read_progress()
        if size and not self._has_header(begun=state is None):
            raise _not_ours(self.partial)
        if not size:
            self.progress.unlink(missing_ok=True)  # it speaks of rows that are no longer there
            state = None
        if state is not None:
            before = state["settings"]
            for name in {**before, **self._settings}:
                old, new = before.get(name), self._settings.get(name)
                if old != new:
                    raise self.changed(f"its {name} was {old!r}, now {new!r}")
            rows = state["rows"]
            if size < HEADER + rows * self._row_bytes:
                raise self.changed(f"{self.partial} is shorter than its {rows} rows")
            self._done = (rows, hashlib.sha256())
            self._texts_before = state["texts_sha256"]
            self.extra = state["extra"]
        self._file.seek(0)
        self._file.write(self._header(self.rows))
        self._file.truncate(HEADER + self.rows * self._row_bytes)
        self._file.seek(0, os.SEEK_END)

    def _has_header(self, begun: bool) -> bool:
        """Whether the file begins as an earlier run left it: without rows if it had just begun."""
        self._file.seek(0)
        header = self._file.read(HEADER)
        shape = re.search(rb"\(([0-9]{1,20}), ([0-9]{1,20})\)", header)
        if shape is None or (begun and int(shape[1])):
            return False
        sizes = int(shape[1]), int(shape[2])
        return any(header == npy_header(*sizes, kind) for kind in PRECISIONS.values())

    def _read_progress(self) -> dict[str, Any] | None:
        from hf_bert_impl.files.json_files import read_json

        if not self.progress.exists():
            return None  # killed before the first rows
        try:
            state = read_json(self.progress)
            if isinstance(state["settings"], dict) and {"rows", "texts_sha256", "extra"} <= {
                *state
            }:
                return dict(state)
        except (ValueError, KeyError, TypeError):
            pass
        raise self.changed(f"{self.progress} is damaged")


def _not_ours(file: Path) -> InputError:
    return InputError(
        f"{file} is there, and no interrupted run wrote it",
        "this name to be free for what is not complete yet",
        "move that file, or choose another `output`",
    )


def _add(digest: Any, text: str) -> None:
    """Take a text into a digest, with its length, so that no two lists of texts look alike."""
    data = text.encode("utf-8")
    digest.update(len(data).to_bytes(8, "little") + data)
