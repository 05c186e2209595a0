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
    test data. STS12 to STS16 compare cosines.

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
    title, columns = f"{Path(model).name or model}: SentEval", ("", "score", "times 100", "±")
    show_table(as_json, report, title, columns, _rows(results, report["mean"]), NOTE, words=(0, 1))


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
