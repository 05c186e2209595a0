"""Reports of commands: rows, notes and a verdict, as tables or JSON."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from hf_bert_impl.files.json_files import plain, to_json

if TYPE_CHECKING:
    from rich.console import Console

Row = TypeVar("Row")


@dataclasses.dataclass
class Report(abc.ABC, Generic[Row]):
    """Rows, notes and a verdict."""

    rows: list[Row] = dataclasses.field(default_factory=list)
    """Dataclasses; `passed` of each is None without a verdict."""
    title: str = ""
    """The subject, for a heading."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """Omissions and their reasons."""

    @property
    def failures(self) -> list[Row]:
        """The rows that failed."""
        return [row for row in self.rows if getattr(row, "passed", None) is False]

    @property
    def passed(self) -> bool:
        """Whether no row failed; false without rows."""
        return bool(self.rows) and not self.failures

    def add_note(self, note: str) -> None:
        """Adds a note once."""
        if note not in self.notes:
            self.notes.append(note)

    def extend(self, other: Self) -> None:
        """Adds another report's rows and new notes."""
        self.rows.extend(other.rows)
        for note in other.notes:
            self.add_note(note)

    def summary(self) -> str:
        """The verdict in one line, for an assertion's message or a log."""
        return "passed" if self.passed else f"FAILED in {len(self.failures)} of {len(self.rows)}"

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        return {"title": self.title, "passed": self.passed} | {
            field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)
        }

    def to_json(self, indent: int | None = None) -> str:
        """The report as one JSON object."""
        return to_json(self, indent)

    @abc.abstractmethod
    def render(self, console: Console) -> None:
        """Prints the report as tables."""


class CheckFailed(RuntimeError):
    """A check before writing or publishing failed.

    Args:
        report: The check's report.
    """

    def __init__(self, report: Report[Any]) -> None:
        super().__init__(report.summary())
        self.report = report
