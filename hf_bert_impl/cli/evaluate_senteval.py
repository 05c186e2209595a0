"""`hf-bert evaluate senteval`: all of SentEval's tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import (
    AsJson,
    BatchInvariant,
    Model,
    Overwrite,
    Pooling,
    Quiet,
    from_dataclass,
)
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.cli.reports import show_table
from hf_bert_impl.files.json_files import write_json
from hf_bert_impl.progress import progress_bar
from hf_bert_impl.tasks.probe_options import ProbeOptions

if TYPE_CHECKING:
    from hf_bert_impl.tasks.senteval import SentEvalResult

NOTE = (
    "Times 100. ± is the standard deviation over folds. The other columns are of SentEval's paper "
    "(Conneau and Kiela 2018), by logistic regression."
)
#: Names of metrics in the table.
HEADS = {
    "accuracy": "accuracy",
    "f1": "F1",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "pearson_mean": "Pearson",
    "spearman_mean": "Spearman",
}


@from_dataclass(ProbeOptions)
def senteval(
    fields: dict[str, Any],
    model: Model,
    data: Annotated[
        str, typer.Option(metavar="FOLDER", help="SentEval's folder `data`, or `downstream` in it.")
    ],
    tasks: Annotated[
        list[str] | None,
        typer.Option(help="Only these tasks, as in MR,CR,STS-B.", show_default="all in FOLDER"),
    ] = None,
    pooling: Pooling = None,
    batch_invariant: BatchInvariant = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A JSON file for the result.")
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Score sentence vectors on SentEval's tasks by its protocols.

    MR, CR, SUBJ and MPQA are cross-validated. TREC, MRPC, SST2, SST5, SNLI, SICK and STS-B have
    test data. STS12 to STS16 compare cosines. The table also has the published figures of SentEval.

    Example: hf-bert evaluate senteval sentence-transformers/all-MiniLM-L6-v2 --data SentEval/data
    """
    if output is not None:
        check_output_file("--output", output, overwrite)
    with quiet_libraries():
        from hf_bert_impl.tasks.probes import encoder_batcher
        from hf_bert_impl.tasks.senteval import read_senteval, run_senteval

        options = ProbeOptions(**fields)
        data_sets = read_senteval(data, tasks, options)
        encoder = checkpoints.load_encoder(model, pooling=pooling, batch_invariant=batch_invariant)
        begun: dict[str, None] = {}
        with progress_bar(not quiet, len(data_sets)) as update:

            def progress(name: str, what: str, share: float) -> None:
                begun[name] = None
                update(len(begun) - 1 + share, f"{name}: {what}")

            batcher = encoder_batcher(encoder.encode)
            results = run_senteval(data_sets, batcher, options=options, progress=progress)
    report = _report(model, options, results)
    if output is not None:
        write_json(output, report)
    title, columns = f"{Path(model).name or model}: SentEval", ("", "score", "this model", "±")
    columns += tuple(report["published"])
    show_table(as_json, report, title, columns, _rows(results, report), NOTE, words=(0, 1))


def _report(model: str, options: ProbeOptions, results: list[SentEvalResult]) -> dict[str, Any]:
    """The scores, and those of each system of the paper on the same tasks."""
    from hf_bert_impl.tasks.senteval import PUBLISHED, means

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
    names = [*tasks]
    published = {}
    for system, figures in PUBLISHED.items():
        shown = {name: figures[name] for name in names if name in figures}
        if shown:
            published[system] = {"tasks": shown, "mean": means(shown, names)}
    own = means({result.name: result.score for result in results}, names)
    settings = dataclasses.asdict(options)
    return {"model": model, **settings, "tasks": tasks, "mean": own, "published": published}


def _rows(results: list[SentEvalResult], report: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    def beside(part: str, name: str) -> list[str]:
        figures = [system[part].get(name) for system in report["published"].values()]
        return ["" if figure is None else f"{figure:.1f}" for figure in figures]

    for result in results:
        kind = " / ".join(HEADS[name] for name in result.metrics)
        scores = " / ".join(f"{result.scores[name]:.1f}" for name in result.metrics)
        spread = result.deviations
        deviation = "" if spread is None else f"{spread[result.metrics[0]]:.1f}"
        yield result.name, kind, scores, deviation, *beside("tasks", result.name)
    for kind, mean in report["mean"].items():
        yield "mean", kind, f"{mean:.1f}", "", *beside("mean", kind)
