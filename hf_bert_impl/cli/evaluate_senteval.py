"""`hf-bert evaluate senteval`: all of SentEval's tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.cli.reports import show_table
from hf_bert_impl.cli.shared_options import EncoderOptions, only
from hf_bert_impl.files.json_files import write_json
from hf_bert_impl.progress import progress_bar
from hf_bert_impl.tasks.probe_options import ProbeOptions

if TYPE_CHECKING:
    from hf_bert_impl.tasks.senteval import SentEvalResult

NOTE = "± is the standard deviation over folds."
#: Names of metrics in the table.
HEADS = {
    "accuracy": "accuracy",
    "f1": "F1",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "pearson_mean": "Pearson",
    "spearman_mean": "Spearman",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentEval(ProbeOptions, EncoderOptions):
    """Score sentence vectors on SentEval's tasks by its protocols.

    MR, CR, SUBJ and MPQA are cross-validated. TREC, MRPC, SST2, SST5, SNLI, SICK and STS-B have
    test data. STS12 to STS16 compare cosines.

    Example: hf-bert evaluate senteval sentence-transformers/all-MiniLM-L6-v2 SentEval/data
    """

    data: str
    """SentEval's folder `data`, or `downstream` in it."""
    tasks: tuple[str, ...] = ()
    """Only these tasks, as in MR,CR,STS-B; None for all in DATA."""
    output: Path | None = None
    """Write the result to this .json."""
    overwrite: bool = False
    quiet: bool = False
    """Show no progress."""
    as_json: bool = False

    def run(self) -> None:
        """Scores, and prints the table."""
        if self.output is not None:
            check_output_file("--output", self.output, self.overwrite, endings=(".json",))
        from hf_bert_impl.tasks.senteval_files import find_tasks

        find_tasks(self.data, self.tasks or None)  # before torch is imported
        with quiet_libraries():
            from hf_bert_impl.tasks.probes import encoder_batcher
            from hf_bert_impl.tasks.senteval import read_senteval, run_senteval

            options = only(ProbeOptions, self)
            data_sets = read_senteval(self.data, self.tasks or None, options)
            batcher = encoder_batcher(self.load().encode)
            begun: dict[str, None] = {}
            with progress_bar(not self.quiet, len(data_sets)) as update:

                def progress(name: str, what: str, share: float) -> None:
                    begun[name] = None
                    update(len(begun) - 1 + share, f"{name}: {what}")

                results = run_senteval(data_sets, batcher, options=options, progress=progress)
        report = _report(self.model, options, results)
        if self.output is not None:
            write_json(self.output, report)
        title = f"{Path(self.model).name or self.model}: SentEval"
        columns, rows = ("", "score", "times 100", "±"), _rows(results, report["mean"])
        show_table(self.as_json, report, title, columns, rows, NOTE, words=(0, 1))


def _report(model: str, options: ProbeOptions, results: list[SentEvalResult]) -> dict[str, Any]:
    from hf_bert_impl.tasks.senteval import means

    tasks: dict[str, dict[str, Any]] = {}
    for result in results:
        tasks[result.name] = {
            "protocol": result.protocol,
            "examples": result.examples,
            "metric": result.metrics[0],
            **result.scores,
        }
        if result.deviations is not None:
            tasks[result.name]["standard_deviations"] = result.deviations
    settings = dataclasses.asdict(options)
    return {"model": model, **settings, "tasks": tasks, "mean": means(results)}


def _rows(results: list[SentEvalResult], means: Mapping[str, float]) -> Iterator[tuple[str, ...]]:
    for result in results:
        kind = " / ".join(HEADS[name] for name in result.metrics)
        scores = " / ".join(f"{result.scores[name]:.1f}" for name in result.metrics)
        spread = result.deviations
        deviation = "" if spread is None else f"{spread[result.metrics[0]]:.1f}"
        yield result.name, kind, scores, deviation
    for kind, mean in means.items():
        yield "mean", kind, f"{mean:.1f}", ""
