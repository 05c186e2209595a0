"""The report of a comparison of two models: rows, a verdict, JSON and tables."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hf_bert_impl.files.json_files import plain
from hf_bert_impl.report import Report
from hf_bert_impl.tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

HEAD_NAME = re.compile(r"(?P<layer>layer \d+(?: cross)?) head (?P<head>\d+)")
FAILURES_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class ParityRow:
    """The comparison of one tensor: its maximum and mean difference, and the verdict.

    Layers and heads are counted from 0, as in state-dict names: `layer 3 head 5` is head 5 of
    `encoder.layer.3`.
    """

    case: str
    """Precision, attention backend and batch, as in `fp32 sdpa padded right`."""
    name: str
    """`embeddings`, `layer 3`, `layer 3 head 5`, `logits`, `grad <parameter>`."""
    max_abs: float
    """Maximum absolute difference."""
    mean_abs: float
    """Mean absolute difference."""
    max_relative: float
    """`max_abs` divided by the reference tensor's scale (usually its largest magnitude)."""
    tolerance: float
    """The bound on `max_relative`."""
    passed: bool
    """Whether the tensor is within its bounds; False for NaN."""
    upstream_error: float | None = None
    """In low precision: the maximum error of upstream, compared with its float32 result."""
    note: str = ""
    """The cause of a failure that the numbers do not show."""

    @classmethod
    def failure(cls, case: str, name: str, note: str) -> ParityRow:
        """A row for a missing output, or one of another shape."""
        return cls(case, name, math.inf, math.inf, math.inf, 0.0, False, None, note)

    @property
    def used(self) -> float:
        """The used share of the tolerance; infinite for NaN."""
        if math.isnan(self.max_relative):
            return math.inf
        if self.max_relative == 0:
            return 0.0
        return self.max_relative / self.tolerance if self.tolerance > 0 else math.inf

    @property
    def precision(self) -> str:
        """The first word of the case if it is a precision, else `fp32`."""
        first = self.case.partition(" ")[0]
        return first if first in ("bf16", "fp16", "fp64") else "fp32"


class ParityReport(Report[ParityRow]):
    """Every compared tensor, in the order of the computation, and the verdict."""

    @property
    def worst(self) -> ParityRow | None:
        """The row furthest beyond its tolerance, or else nearest to it; None without rows."""
        return max(self.rows, key=lambda row: (not row.passed, row.used), default=None)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        counts = {"compared": len(self.rows), "failed": len(self.failures)}
        return super().to_dict() | counts | {"worst": plain(self.worst)}

    def summary(self) -> str:
        """The verdict in one line, for an assertion's message or a log."""
        worst = self.worst
        if worst is None:
            return "nothing was compared"
        count = f"{len(self.rows):,} comparison{'s' * (len(self.rows) > 1)}"
        verdict = (
            f"{count} passed" if self.passed else f"FAILED in {len(self.failures):,} of {count}"
        )
        where = f"{worst.name} ({worst.case}): max abs {worst.max_abs:.2e}"
        note = f": {worst.note}" if worst.note else ""
        return f"{verdict}; the worst is {where}, {_percent(worst)} of its tolerance{note}"

    def render(self, console: Console, *, cases: bool = True, heads: bool = False) -> None:
        """Print the report as tables.

        Args:
            console: The rich console to print on.
            cases: Also print one line per case (precision, backend, batch).
            heads: Also print a grid of layers by heads with the equal digits.
        """
        if self.title:
            console.print(self.title, style="bold", markup=False)
        if cases:
            _print_cases(console, self.rows)
        _print_layers(console, [row for row in self.rows if row.case != "loading"])
        if heads:
            _print_heads(console, self.rows)
        # Everything computed after a fault fails, so the first failure of a case tells most.
        begins = {row.case: row for row in reversed(self.failures)}
        shown = sorted(begins.values(), key=self.rows.index)[:FAILURES_SHOWN]
        for row in shown:
            detail = row.note or (
                f"max abs {row.max_abs:.2e}, relative {row.max_relative:.2e} "
                f"over the tolerance {row.tolerance:.2e}"
            )
            line = f"fails first at {row.name} ({row.case}): {detail}"
            console.print(line, style="red", markup=False, highlight=False)
        if len(self.failures) > len(shown):
            more = f"... and {len(self.failures) - len(shown)} more, after these or in other cases"
            console.print(more, style="red", highlight=False)
        for note in self.notes:
            console.print(f"note: {note}", style="dim", markup=False, highlight=False)
        style = "bold green" if self.passed else "bold red"
        console.print(self.summary(), style=style, markup=False, highlight=False)


def _percent(row: ParityRow) -> str:
    """The used share of a tolerance, in a few characters."""
    if math.isinf(row.used):
        return "inf"
    return f"{row.used:.0%}" if row.used < 10 else f"{row.used:.0f}x"


def _number(value: float | None) -> str:
    """A difference in a few characters: `0` for tensors that are equal bit for bit."""
    if value is None:
        return ""
    return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e+")


def _verdict(rows: Iterable[ParityRow]) -> Text:
    return Text("ok", "green") if all(row.passed for row in rows) else Text("FAIL", "bold red")


def _grouped(rows: Iterable[ParityRow], key: Any) -> dict[str, list[ParityRow]]:
    groups: dict[str, list[ParityRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _print_cases(console: Console, rows: list[ParityRow]) -> None:
    """One line per case: its worst tensor."""
    lines = []
    for case, group in _grouped(rows, lambda row: row.case).items():
        worst = max(group, key=lambda row: (not row.passed, row.used))
        figures = (_number(worst.max_abs), _percent(worst), _verdict(group))
        lines.append((case, _short(worst.name), *figures))
    title = "by case: the tensor nearest to its tolerance"
    columns = ("case", "worst at", "max abs", "of limit", "")
    print_table(console, title, columns, lines, words=(0, 1))


def _short(name: str) -> str:
    """A parameter's name without the parts common to all layers."""
    return (
        name.replace("grad bert.", "grad ")
        .replace("encoder.layer.", "layer.")
        .replace("attention.", "attn.")
        .replace("intermediate.", "inter.")
    )


def _layer_key(row: ParityRow) -> str:
    """A row's line in the layer table."""
    head = HEAD_NAME.fullmatch(row.name)
    if head:
        return head["layer"]
    return "gradients" if row.name.startswith("grad ") else row.name


def _print_layers(console: Console, rows: list[ParityRow]) -> None:
    """One line per tensor over all cases, in low precision with upstream's own error."""
    low = sorted({row.precision for row in rows} - {"fp32", "fp64"})
    columns = ["tensor", "max abs", "mean abs"]
    for precision in low:
        columns += [f"{precision} max", "upstream"]
    has_heads = any(HEAD_NAME.fullmatch(row.name) for row in rows)
    columns += ["worst head", ""] if has_heads else [""]
    lines = []
    for name, group in _grouped(rows, _layer_key).items():
        tensors = [row for row in group if not HEAD_NAME.fullmatch(row.name)]
        exact = [row for row in tensors if row.precision not in low]
        cells: list[str | Text] = [_largest(exact, "max_abs"), _largest(exact, "mean_abs")]
        for precision in low:
            inexact = [row for row in tensors if row.precision == precision]
            cells += [_largest(inexact, "max_abs"), _largest(inexact, "upstream_error")]
        if has_heads:
            # Errors of low precision would hide the smaller ones of fp32.
            heads = [row for row in group if row not in tensors]
            heads = [row for row in heads if row.precision not in low] or heads
            worst = max(heads, key=lambda row: (not row.passed, row.max_abs), default=None)
            if worst is None or worst.max_abs == 0:
                cells.append("")
            else:
                cells.append(f"{worst.name.split()[-1]}: {_number(worst.max_abs)}")
        label = f"{name} ({len({row.name for row in tensors})})" if name == "gradients" else name
        lines.append([label, *cells, _verdict(group)])
    title = "by tensor: maximum difference over all cases, without padding"
    print_table(console, title, columns, lines)


def _largest(rows: list[ParityRow], field: str) -> str:
    values = [getattr(row, field) for row in rows if getattr(row, field) is not None]
    return _number(max(values)) if values else ""


def _print_heads(console: Console, rows: list[ParityRow]) -> None:
    """Layers by heads: the equal decimals of the probabilities in fp32 (`=`: all bits)."""
    worst: dict[str, dict[int, ParityRow]] = {}
    for row in rows:
        head = HEAD_NAME.fullmatch(row.name)
        if head and row.precision in ("fp32", "fp64"):
            layer = worst.setdefault(head["layer"], {})
            index = int(head["head"])
            if index not in layer or row.max_abs > layer[index].max_abs:
                layer[index] = row
    count = max((max(layer) + 1 for layer in worst.values()), default=0)
    lines = [
        (name, *(_digits(heads.get(head)) for head in range(count)))
        for name, heads in worst.items()
    ]
    print_table(console, "by head: equal digits", ("", *map(str, range(count))), lines)


def _digits(row: ParityRow | None) -> str | Text:
    if row is None:
        return ""
    if row.max_abs == 0:
        return "="
    digits = f"{-math.log10(row.max_abs):.1f}" if math.isfinite(row.max_abs) else "none"
    return digits if row.passed else Text(digits, "bold red")
