"""The report of a conversion, for people (a table, a model card) and for programs (JSON)."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCardData
from rich.markup import escape
from rich.text import Text

from hf_bert_impl.extras import NOT_PUBLISHED, install_command
from hf_bert_impl.files.output_folder import REPORT
from hf_bert_impl.model_card import PIPELINE_TAGS, model_card, versions
from hf_bert_impl.report import Report as BaseReport
from hf_bert_impl.tables import print_table

from .checks import Check
from .target import Target, is_finite
from .tensors import dtype_name
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN = 6


@dataclasses.dataclass
class Report(BaseReport[Check]):
    """The report of one conversion; its rows are the checks of the result."""

    source: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Name, format, software and files with their sizes and sha256 sums."""
    result: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Format, class, config choices, parameter count and files."""
    mapped: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """A row for every tensor of the result: names, operation, shape, dtypes, range."""
    ignored: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """A row for every omitted tensor of the source, with the reason."""
    missing: list[str] = dataclasses.field(default_factory=list)
    """Tensors that the source lacked, and that were initialised."""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        fields = super().to_dict()
        return {"checks": fields.pop("rows")} | fields

    def render(self, console: Console) -> None:
        """Print the report as tables."""
        rows = [(Text(label, "bold"), value) for label, value in self.summary_rows() if value]
        print_table(console, "", ("", ""), rows, words=(0, 1))
        for check in self.rows:
            mark, style = _MARKS[check.passed]
            console.print(f"  [{style}]{mark}[/] {escape(check.line)}", highlight=False)

    def summary_rows(self) -> Iterator[tuple[str, str]]:
        """Labels and values for people; a value may be empty."""
        source, result = self.source, self.result
        yield "source", f"{source['name']}: {source['format']}, {source['software']}"
        yield "config", source["config"] or ""
        yield "result", f"{result['class']} ({result['why']}), {result['format']}"
        yield "activation", result["hidden_act"]
        yield "parameters", f"{result['parameters']:,} in {len(self.mapped)} tensors"
        yield "mapped", ", ".join(_counts(row["operation"] for row in self.mapped))
        reasons = _counts(row["reason"] for row in self.ignored)
        yield "ignored", "; ".join(reasons[:_SHOWN]) or "nothing"
        yield "missing", ", ".join(self.missing) or "nothing"
        dtypes = [(row["source_dtype"], row["dtype"]) for row in self.mapped]
        changes = _counts(f"{old} to {new}" for old, new in dtypes if old not in (None, new))
        yield "dtype", ", ".join(changes) or "unchanged"
        spans = [(row["min"], row["max"]) for row in self.mapped if row["finite"]]
        odd = len(self.mapped) - len(spans)
        finite = f"{odd} tensors with NaN or infinity" if odd else "all finite"
        if spans:
            low, high = min(low for low, _ in spans), max(high for _, high in spans)
            yield "numbers", f"from {low:.4g} to {high:.4g}, {finite}"
        yield "tokenizer", result["tokenizer"] or ""
        yield from (("note", note) for note in self.notes)


_MARKS = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("–", "yellow")}


def make_report(target: Target, *, vocabulary: Vocabulary | None, notes: list[str]) -> Report:
    """The report of a conversion, without checks and sums of files.

    Args:
        target: The converted model.
        vocabulary: The tokenizer's source.
        notes: Notes for the user, besides the target's own.
    """
    source = target.source
    sources = source.checkpoint.tensors
    mapped = []
    for name, tensor in target.tensors.items():
        given, operation = target.fit.origins.get(name, (None, None))
        low, high = target.ranges[name]
        finite = is_finite((low, high))
        mapped.append(
            {
                "target": name,
                "source": given,
                "operation": operation.value if operation else "initialised",
                "shape": list(tensor.shape),
                "dtype": dtype_name(tensor),
                "source_dtype": dtype_name(sources[given]) if given else None,
                "min": low if finite else None,
                "max": high if finite else None,
                "finite": finite,
            }
        )
    ignored = [
        {
            "source": name,
            "reason": reason,
            "shape": list(sources[name].shape),
            "dtype": dtype_name(sources[name]),
        }
        for name, reason in target.fit.ignored.items()
    ]
    said = target.config.hidden_act
    return Report(
        source={
            # The name alone: a report is published, and a path is private.
            "name": source.name,
            "archive": source.archive.name if source.archive else None,
            "format": source.checkpoint.format,
            "software": source.plan.table.software,
            "container": source.checkpoint.software,
            "config": source.config_file.name if source.config_file else None,
            "tensors": len(sources),
            "files": [],
        },
        result={
            "format": "safetensors",
            "class": target.class_name,
            "why": target.architecture.reason,
            "num_labels": target.architecture.num_labels,
            "hidden_act": said if isinstance(said, str) else getattr(said, "__name__", str(said)),
            "model_type": target.config.to_dict()["model_type"],
            "parameters": sum(tensor.numel() for tensor in target.tensors.values()),
            "tensors": list(target.tensors),
            "tokenizer": _tokenizer_line(vocabulary),
            "sentence_model": False,
            "files": [],
        },
        mapped=mapped,
        ignored=ignored,
        missing=target.fit.missing,
        notes=[*target.notes, *notes],
        versions=versions(),
    )


def file_rows(files: list[Path], root: Path | None = None) -> list[dict[str, Any]]:
    """Name (or path below `root`), size in bytes and sha256 of files."""
    rows = []
    for path in files:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        name = path.relative_to(root).as_posix() if root else path.name
        rows.append({"name": name, "bytes": path.stat().st_size, "sha256": sha256})
    return rows


def converted_card(report: Report) -> str:
    """A model card with the model's origin; its author completes it."""
    result, source = report.result, report.source
    cls, library, pipeline = result["class"], "transformers", PIPELINE_TAGS.get(result["class"])
    if result["sentence_model"]:
        cls, library, pipeline = "TextEncoder", "sentence-transformers", "sentence-similarity"
    data = ModelCardData(
        library_name=library,
        pipeline_tag=pipeline if result["model_type"] == "bert" else None,
        tags=["bert", "hf_bert_impl"],
    )
    rows = [f"- {label}: {value}" for label, value in report.summary_rows() if value]
    checks = [f"- {_MARKS[check.passed][0]} {check.line}" for check in report.rows]
    return model_card(
        data,
        f"# {source['name']}",
        f"Converted by `hf-bert convert`; `{REPORT}` lists every tensor. "
        f"{NOT_PUBLISHED}: `{install_command()}`.",
        f'```python\nimport hf_bert_impl\n\nmodel = hf_bert_impl.{cls}.from_pretrained("…")\n```',
        "\n".join([*rows, *checks]),
    )


def _counts(words: Iterable[str]) -> list[str]:
    """The count of each word, the most frequent first."""
    return [f"{count} {word}" for word, count in Counter(words).most_common()]


def _tokenizer_line(vocabulary: Vocabulary | None) -> str | None:
    if vocabulary is None:
        return None
    if vocabulary.foreign is not None:
        return f"{vocabulary.kind}: {vocabulary.reason}"
    how = "lower-cased" if vocabulary.lower_case else "cased"
    return f"{vocabulary.path.name}, {how} ({vocabulary.reason})"
