"""`hf-bert evaluate squad`: exact match and F1 of a model or of a file of predictions."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import typer

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.reports import show_table
from hf_bert_impl.cli.shared_options import refuse_unused
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.output_folder import claimed

#: Options of the answers.
ANSWERED = (
    *("max_answer_len", "max_question_len", "max_seq_len", "doc_stride"),
    "null_score_diff_threshold",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Squad:
    """Score answers to SQuAD's questions by exact match and F1, as the official scripts do.

    For v2.0 it also scores answerable and unanswerable questions separately, and reports the best
    scores over all thresholds for 'no answer'.

    Example: hf-bert evaluate squad MODEL dev-v2.0.json

    Example: hf-bert evaluate squad predictions.json dev-v2.0.json
    """

    TAKES_FILE: ClassVar = True

    model: str
    """A folder or a hub id; or predictions in the official format, a .json of id to text."""
    data: str
    """Questions with answers, in SQuAD's format (v1.1 or v2.0)."""
    max_answer_len: int = 30
    """Maximum number of tokens of an answer, as in run_squad.py."""
    max_question_len: int = 64
    """Tokens at which a question is cut, with a note."""
    max_seq_len: int | None = None
    """Maximum number of tokens of a window; None for 384, or the model's limit if lower."""
    doc_stride: int | None = None
    """Tokens that two windows share; None for 128, or half of a short window."""
    null_score_diff_threshold: float | None = None
    """Minimum lead of the score of 'no answer'; None for the model's setting, or 0."""
    tune_threshold: bool = False
    """Store the threshold with the best F1 in the model's config.json."""
    na_prob: str | None = None
    """With predictions: a .json of id to the probability of no answer."""
    na_prob_threshold: float = 1.0
    """With --na-prob: predict no answer above this number."""
    dtype: str | None = None
    batch_invariant: bool = False
    output: Path | None = None
    """A folder for the model's predictions."""
    overwrite: bool = False
    plot: Path | None = None
    as_json: bool = False
    quiet: bool = False
    """Show no progress."""

    def run(self) -> None:
        """Scores, and prints the scores."""
        from_file = self.model.endswith(".json")
        if from_file:
            unread = ("tune_threshold", "dtype", "batch_invariant", "output", "overwrite")
            refuse_unused(self, "with predictions", *unread, *ANSWERED)
            if self.na_prob is None:
                refuse_unused(self, "without `na_prob`", "na_prob_threshold")
        else:
            refuse_unused(self, "with a model", "na_prob", "na_prob_threshold")
        if self.tune_threshold and not Path(self.model).expanduser().is_dir():
            raise InputError(
                f"{self.model} is not a folder, so it cannot store the threshold. Download the "
                f"model first: hf download {self.model} --local-dir my-model"
            )
        with contextlib.ExitStack() as held:
            if self.output is not None:
                sources = [Path(self.data), Path(self.model)]
                held.enter_context(claimed(self.output, sources, self.overwrite))
            held.enter_context(quiet_libraries())
            from hf_bert_impl.data.squad import read_squad

            questions = read_squad(self.data, check_places=False)
            metrics = (self._score_file if from_file else self._score_model)(questions)
        title = f"{Path(self.data).name}: {self.model}"
        if self.plot is not None:
            from hf_bert_impl.tasks.pictures import draw_bars

            parts = ("", "HasAns_", "NoAns_", "best_")
            names = [part + name for part in parts for name in ("exact", "f1")]
            bars = {name: metrics[name] for name in names if name in metrics}
            draw_bars(self.plot, title, bars, "%")
        columns = ("", "questions", "exact match", "F1", "threshold")
        show_table(self.as_json, metrics, title, columns, _rows(metrics))

    def _score_file(self, questions: Any) -> dict[str, float]:
        from hf_bert_impl.tasks import squad

        texts = squad.read_predictions(self.model)
        na_probs = None if self.na_prob is None else squad.read_na_probs(self.na_prob)
        metrics = squad.evaluate_predictions(questions, texts, na_probs, self.na_prob_threshold)
        missing = sum(question.id not in texts for question in questions.questions)
        if missing:
            note = f"note: {missing} questions have no prediction and count as wrong"
            typer.echo(note, err=True)
        return metrics

    def _score_model(self, questions: Any) -> dict[str, float]:
        checkpoint = open_checkpoint(self.model, True, any_family=True)
        from hf_bert_impl.tasks import squad

        return squad.evaluate_checkpoint(
            checkpoint.path,
            questions,
            dtype=self.dtype,
            batch_invariant=self.batch_invariant,
            tune_threshold=self.tune_threshold,
            output=self.output,
            progress=not self.quiet,
            **{name: getattr(self, name) for name in ANSWERED},
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
