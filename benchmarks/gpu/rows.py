"""The rows of a part, written after each, so that none is lost if the process is killed."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_bert_impl.errors import one_line
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.parity import ParityReport

#: Failed comparisons of a case that are listed.
MOST_FAILURES = 5


@dataclasses.dataclass
class Row:
    """A comparison or a measurement."""

    case: str
    value: float | None = None
    bound: float | None = None
    """What `value` may be at most."""
    passed: bool | None = None
    """None for a measurement, and for what cannot run here."""
    note: str = ""
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)


class Rows:
    """The rows of one part.

    Args:
        file: Where they are written, as JSON.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: list[Row] = []

    def add(self, case: str, **fields: Any) -> None:
        """Adds a row; fields that `Row` does not have are its figures."""
        own = {field.name for field in dataclasses.fields(Row)}
        figures = {name: fields.pop(name) for name in list(fields) if name not in own}
        self.rows.append(Row(case, figures=figures, **fields))
        self.file.write_text(to_json(self.rows, indent=1), encoding="utf-8")

    def check(self, case: str, value: float, bound: float, **fields: Any) -> None:
        """Adds a row that fails if the value is larger than the bound, or NaN."""
        self.add(case, value=value, bound=bound, passed=value <= bound, **fields)

    def compared(self, case: str, report: ParityReport) -> None:
        """Adds a row for a report: its worst comparison and its failures."""
        worst = report.worst
        if worst is None:
            self.add(case, passed=False, note="nothing was compared")
            return
        failed = [
            f"{row.case} {row.name}: {row.used:.3g} of its bound {row.note}"
            for row in report.failures[:MOST_FAILURES]
        ]
        self.add(
            case,
            value=worst.max_relative if math.isfinite(worst.max_relative) else None,
            bound=worst.tolerance,
            passed=report.passed,
            note=f"{worst.case} {worst.name} {worst.note}".strip(),
            compared=len(report.rows),
            failed=len(report.failures),
            failures=failed,
        )

    @contextlib.contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Runs a case: an error becomes its row, and the next case follows."""
        try:
            yield
        except Exception as error:
            # A missing library is not an error of the measured code.
            is_missing = isinstance(error, ImportError) or "not installed" in str(error)
            passed = None if is_missing else False
            self.add(name, passed=passed, note=f"{type(error).__name__}: {one_line(error)[:300]}")
