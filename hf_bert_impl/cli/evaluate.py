"""`hf-bert evaluate`: the quality of a model on a task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import typer

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.evaluate_senteval import SentEval
from hf_bert_impl.cli.evaluate_squad import Squad
from hf_bert_impl.cli.options import add_command
from hf_bert_impl.cli.reports import show_table
from hf_bert_impl.cli.shared_options import DataOptions, EncoderOptions, only
from hf_bert_impl.tasks.probe_options import PROTOCOLS, ProbeOptions

app = typer.Typer(
    name="evaluate",
    help="Score models on labelled data.",
    epilog="Example: hf-bert evaluate sts MODEL sts/2014 --pooling mean",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sts(EncoderOptions):
    """Correlate cosines of sentence vectors with human similarity scores.

    Correlations are multiplied by 100. Lines without a score are skipped.

    Example: hf-bert evaluate sts sentence-transformers/all-MiniLM-L6-v2 sts/2014
    """

    data: str
    """Lines of score, sentence and sentence with tabs between, or a .jsonl, .json or .parquet with
    score, sentence1 and sentence2, or a folder of such files."""
    plot: Path | None = None
    as_json: bool = False

    def run(self) -> None:
        """Scores, and prints the correlations."""
        from hf_bert_impl.tasks.sts import evaluate_sts, read_sts

        with quiet_libraries():
            files = read_sts(self.data)
            total, by_file = evaluate_sts(self.load().encode, files)
        title = f"{_last(self.model)}: {_last(self.data)}"
        if self.plot is not None:
            from hf_bert_impl.tasks.pictures import draw_bars

            bars = {name: score.spearman for name, score in by_file.items()}
            bars["all"] = total.spearman
            draw_bars(self.plot, title, bars, "Spearman correlation times 100")
        report = {"pooling": self.pooling, **vars(total), "files": by_file}
        rows = [
            (name, f"{score.pairs:,}", f"{score.spearman:.2f}", f"{score.pearson:.2f}")
            for name, score in [*by_file.items(), ("all", total)]
        ]
        show_table(self.as_json, report, title, ("", "pairs", "Spearman", "Pearson"), rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe(DataOptions, ProbeOptions, EncoderOptions):
    """Train logistic regression on fixed sentence vectors, as SentEval does.

    Example: hf-bert evaluate probe MODEL train.tsv --test test.tsv --text-column 0
    --label-column 1
    """

    train: str
    """Training data; without --test it is cross-validated."""
    validation: str | None = None
    """Data to choose the penalty on."""
    test: str | None = None
    """Data to score."""
    protocol: str = dataclasses.field(default="classification", metadata={"choices": PROTOCOLS})
    """classification, pair, entailment or relatedness."""
    plot: Path | None = None
    as_json: bool = False

    def run(self) -> None:
        """Trains, and prints the scores."""
        from hf_bert_impl.tasks.probes import encoder_batcher, read_probe, run_probe

        named = {"train": self.train, "validation": self.validation, "test": self.test}
        with quiet_libraries():
            sources = {name: source for name, source in named.items() if source is not None}
            task, examples = read_probe(self.protocol, sources, self.columns, self.dataset)
            batcher = encoder_batcher(self.load().encode)
            options = only(ProbeOptions, self)
            result = run_probe(self.protocol, task, examples, batcher, options=options)
        title = f"{_last(self.model)}: {self.protocol} by logistic regression"
        if self.plot is not None:
            _draw_scores(self.plot, title, result.scores)
        report = {"protocol": self.protocol, "examples": result.examples, **result.scores}
        heads, columns = ["", "test"], [result.scores]
        if result.deviations is not None:
            report |= {"folds": self.folds, "standard_deviations": result.deviations}
            heads = ["", f"mean of {self.folds} folds", "deviation"]
            columns.append(result.deviations)
        rows = [(name, *(f"{column[name]:.4f}" for column in columns)) for name in result.scores]
        show_table(self.as_json, report, title, heads, rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scored:
    """How a fine-tuned model is scored."""

    model: str
    data: str
    """Labelled data; with --dataset the name of a split."""
    max_length: int | None = None
    """Maximum number of tokens of a sequence; None for the model's."""
    batch_invariant: bool = False
    as_json: bool = False

    @property
    def title(self) -> str:
        """The title of the result."""
        return f"{_last(self.model)}: {_last(self.data)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(Scored, DataOptions):
    """A task with labels."""

    TASK: ClassVar[str]
    plot: Path | None = None

    def run(self) -> None:
        """Scores, and prints the scores."""
        with quiet_libraries():
            checkpoint = open_checkpoint(self.model, any_family=True)
            from hf_bert_impl.inference.loading import load_config
            from hf_bert_impl.tasks.evaluation import evaluate_task, task_for_model

            config = load_config(checkpoint)
            task = task_for_model(self.TASK, config, self.columns, self.dataset)
            scores, split, outputs = evaluate_task(
                task, checkpoint.path, self.data, self.max_length, self.batch_invariant
            )
        title = f"{self.title}, {len(split.examples):,} examples"
        if self.plot is not None and not task.draw(self.plot, split, outputs, title):
            _draw_scores(self.plot, title, scores)
        report = {"task": task.name, "examples": len(split.examples), **scores}
        rows = [(metric, f"{score:.4f}") for metric, score in scores.items()]
        show_table(self.as_json, report, title, ("", ""), rows)


class Regression(Task):
    """Score a fine-tuned regression model; the plot shows predictions against labels.

    Example: hf-bert evaluate regression relatedness dev.tsv --text-column sentence_A
    --text-pair-column sentence_B --label-column score
    """

    TASK = "regression"


class Classification(Task):
    """Score a fine-tuned classifier; the plot is its confusion matrix.

    Example: hf-bert evaluate classification sentiment test.tsv --text-column 0 --label-column 1
    """

    TASK = "classification"


class TokenClassification(Task):
    """Score a fine-tuned tagger by whole entities; the plot is its confusion matrix.

    Example: hf-bert evaluate token-classification tagger test.conll
    """

    TASK = "token-classification"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLM(Scored):
    """Compute the pseudo-perplexity of texts: each token is masked in turn and predicted.

    A text of n tokens takes n passes.

    Example: hf-bert evaluate masked-lm google-bert/bert-base-cased texts.txt --limit 500
    """

    data: str
    """One text per line, or a table; with --dataset a split."""
    text_column: str | None = None
    """Column of the text: a name, or without header a number from 0; None for text."""
    dataset: str | None = None
    """A dataset instead of files: a hub id, ID:CONFIGURATION, or a folder."""
    limit: int | None = None
    """Maximum number of texts, from the start."""
    quiet: bool = False
    """Show no progress."""

    def run(self) -> None:
        """Predicts the tokens, and prints the result."""
        from hf_bert_impl.inference.loading import load_tokenizer
        from hf_bert_impl.progress import text_progress
        from hf_bert_impl.tasks.base import Columns
        from hf_bert_impl.tasks.evaluation import load_fine_tuned
        from hf_bert_impl.tasks.pseudo_perplexity import pseudo_perplexity
        from hf_bert_impl.tasks.registry import make_task

        invariant = self.batch_invariant
        with quiet_libraries():
            path = open_checkpoint(self.model, any_family=True).path
            tokenizer = load_tokenizer(path)
            task = make_task("masked-lm", Columns(self.text_column), self.dataset)
            texts = [example.text for example in task.read(self.data)][: self.limit]
            loaded = load_fine_tuned(path, task.head, batch_invariant=invariant)
            with text_progress(not self.quiet, len(texts)) as advance:
                result = pseudo_perplexity(loaded, tokenizer, texts, self.max_length, advance)
        rows = [
            ("pseudo-perplexity", f"{result.pseudo_perplexity:,.3f}"),
            ("accuracy", f"{result.accuracy:.4f}"),
            ("tokens", f"{result.tokens:,}"),
            ("texts", f"{result.texts:,}"),
            ("texts cut", f"{result.cut:,}"),
        ]
        show_table(self.as_json, vars(result), self.title, ("", ""), rows)


for name, kind in (
    ("squad", Squad),
    ("senteval", SentEval),
    ("sts", Sts),
    ("probe", Probe),
    ("regression", Regression),
    ("classification", Classification),
    ("token-classification", TokenClassification),
    ("masked-lm", MaskedLM),
):
    add_command(app, name, kind)


def _last(name: str) -> str:
    """The last part of a path or a hub id: titles are short."""
    return Path(name).name or name


def _draw_scores(plot: Path, title: str, scores: Mapping[str, float]) -> None:
    from hf_bert_impl.tasks.pictures import draw_bars

    draw_bars(plot, title, scores, "score")
