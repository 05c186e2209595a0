"""`hf-bert evaluate squad`: exact match and F1 of a model or of a file of predictions."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import (
    AsJson,
    BatchInvariant,
    Dtype,
    Overwrite,
    Plot,
    Quiet,
    field_names,
    from_dataclass,
    refuse_unused,
)
from hf_bert_impl.cli.reports import show_table
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.output_folder import claimed
from hf_bert_impl.inference.answer_options import AnswerOptions


@dataclasses.dataclass(frozen=True)
class SquadOptions(AnswerOptions):
    """How questions are answered."""

    max_answer_len: int = 30
    """Maximum number of tokens of an answer, as in run_squad.py."""


@from_dataclass(SquadOptions, top_k=None, align_to_words=None, handle_impossible_answer=None)
def squad(
    fields: dict[str, Any],
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="A folder or a hub id.")
    ] = None,
    data: Annotated[
        str, typer.Option(help="Questions with answers, in SQuAD's format (v1.1 or v2.0).")
    ] = "",
    predictions: Annotated[
        str | None, typer.Option(help="A JSON file of id to text, in place of MODEL.")
    ] = None,
    na_prob: Annotated[
        str | None, typer.Option(help="With --predictions: a JSON file of id to number.")
    ] = None,
    na_prob_threshold: Annotated[
        float, typer.Option(help="With --na-prob: predict no answer above this number.")
    ] = 1.0,
    tune_threshold: Annotated[
        bool,
        typer.Option(
            "--tune-threshold",
            help="Store the threshold with the best F1 in MODEL's config.json.",
        ),
    ] = False,
    dtype: Dtype = None,
    batch_invariant: BatchInvariant = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder for MODEL's predictions.")
    ] = None,
    overwrite: Overwrite = False,
    plot: Plot = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Score answers to SQuAD's questions by exact match and F1, as the official scripts do.

    For v2.0 it also scores answerable and unanswerable questions separately, and reports the best
    scores over all thresholds for 'no answer'. --predictions scores a file in the official format.

    Example: hf-bert evaluate squad MODEL --data dev-v2.0.json
    """
    check_arguments(context)
    with contextlib.ExitStack() as held:
        if output is not None:
            held.enter_context(claimed(output, [Path(data), Path(str(model))], overwrite))
        held.enter_context(quiet_libraries())
        from hf_bert_impl.data.squad import read_squad
        from hf_bert_impl.tasks import pictures
        from hf_bert_impl.tasks import squad as scoring

        questions = read_squad(data, check_places=False)
        if predictions is not None:
            texts = scoring.read_predictions(predictions)
            na_probs = None if na_prob is None else scoring.read_na_probs(na_prob)
            metrics = scoring.evaluate_predictions(questions, texts, na_probs, na_prob_threshold)
            missing = sum(question.id not in texts for question in questions.questions)
            if missing:
                note = f"note: {missing} questions have no prediction and count as wrong"
                typer.echo(note, err=True)
        else:
            checkpoint = checkpoints.open_checkpoint(str(model), True, any_family=True)
            metrics = scoring.evaluate_checkpoint(
                checkpoint.path,
                questions,
                dtype=dtype,
                batch_invariant=batch_invariant,
                tune_threshold=tune_threshold,
                output=output,
                progress=not quiet,
                **fields,
            )
    title = f"{Path(data).name}: {predictions or model}"
    if plot is not None:
        parts = ("", "HasAns_", "NoAns_", "best_")
        names = [part + name for part in parts for name in ("exact", "f1")]
        bars = {name: metrics[name] for name in names if name in metrics}
        pictures.draw_bars(plot, title, bars, "%")
    columns = ("", "questions", "exact match", "F1", "threshold")
    show_table(as_json, metrics, title, columns, _rows(metrics))


def check_arguments(context: typer.Context) -> None:
    """Checks the arguments before anything is read.

    Raises:
        InputError: Arguments are missing or exclude each other.
    """
    names = ("model", "predictions", "tune_threshold")
    model, predictions, tune_threshold = (context.params[name] for name in names)
    if not context.params["data"]:
        raise InputError("There is no data. Add --data FILE with questions in SQuAD's format.")
    if (model is None) == (predictions is None):
        raise InputError("Give either MODEL or --predictions.")
    if predictions is not None:
        unread = ("tune_threshold", "dtype", "batch_invariant", "output", "overwrite")
        refuse_unused(context, "with --predictions", *unread, *field_names(SquadOptions))
        if context.params["na_prob"] is None:
            refuse_unused(context, "without --na-prob", "na_prob_threshold")
    else:
        refuse_unused(context, "with MODEL", "na_prob", "na_prob_threshold")
    if tune_threshold and not Path(str(model)).expanduser().is_dir():
        raise InputError(
            f"{model} is not a folder, so it cannot store the threshold. Download the model "
            f"first: hf download {model} --local-dir my-model"
        )


def _rows(metrics: dict[str, float]) -> list[tuple[str, ...]]:
    """The scores of each set of questions, and the best over all thresholds."""
    used = metrics.get("null_score_diff_threshold")
    rows: list[tuple[str, ...]] = [
        (
            name,
            f"{metrics[f'{prefix}total']:,}",
            f"{metrics[f'{prefix}exact']:.2f}",
            f"{metrics[f'{prefix}f1']:.2f}",
            "" if used is None or prefix else f"{used:.4g}",
        )
        for prefix, name in (("", "all"), ("HasAns_", "with an answer"), ("NoAns_", "without"))
        if f"{prefix}total" in metrics
    ]
    if "best_f1" in metrics:
        thresholds = (metrics[f"best_{name}_thresh"] for name in ("exact", "f1"))
        best = (f"{metrics[f'best_{name}']:.2f}" for name in ("exact", "f1"))
        said = "exact {:.4g}, F1 {:.4g}".format(*thresholds)
        rows.append(("best, by threshold", "", *best, said))
    return rows
