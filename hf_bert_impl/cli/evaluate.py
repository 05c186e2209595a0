"""`hf-bert evaluate`: the quality of a model on a task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_bert_impl import checkpoints
from hf_bert_impl.cli import evaluate_senteval, evaluate_squad
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import (
    AsJson,
    BatchInvariant,
    DataOptions,
    Model,
    Plot,
    Pooling,
    Quiet,
    from_dataclass,
    taken,
)
from hf_bert_impl.cli.reports import show_table
from hf_bert_impl.tasks.probe_options import ProbeOptions

app = typer.Typer(
    name="evaluate",
    help="Score models on labelled data.",
    epilog="Example: hf-bert evaluate sts MODEL --data sts/2014 --pooling mean",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.command("squad")(evaluate_squad.squad)
app.command("senteval")(evaluate_senteval.senteval)


@app.command()
def sts(
    model: Model,
    data: Annotated[
        str,
        typer.Option(
            metavar="FILE_OR_FOLDER",
            help="Lines of score, sentence and sentence with tabs between, or a .jsonl, .json or "
            ".parquet with score, sentence1 and sentence2, or a folder of such files.",
        ),
    ],
    pooling: Pooling = None,
    batch_invariant: BatchInvariant = False,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Correlate cosines of sentence vectors with human similarity scores.

    Correlations are multiplied by 100. Lines without a score are skipped.

    Example: hf-bert evaluate sts sentence-transformers/all-MiniLM-L6-v2 --data sts/2014
    """
    from hf_bert_impl.tasks.sts import evaluate_sts, read_sts

    with quiet_libraries():
        files = read_sts(data)
        encoder = checkpoints.load_encoder(model, pooling=pooling, batch_invariant=batch_invariant)
        total, by_file = evaluate_sts(encoder.encode, files)
    if plot is not None:
        from hf_bert_impl.tasks.pictures import draw_bars

        bars = {name: score.spearman for name, score in by_file.items()} | {"all": total.spearman}
        draw_bars(plot, f"{_last(model)}: {_last(data)}", bars, "Spearman correlation times 100")
    report = {"pooling": pooling, **vars(total), "files": by_file}
    rows = [
        (name, f"{score.pairs:,}", f"{score.spearman:.2f}", f"{score.pearson:.2f}")
        for name, score in [*by_file.items(), ("all", total)]
    ]
    title, columns = f"{_last(model)}: {_last(data)}", ("", "pairs", "Spearman", "Pearson")
    show_table(as_json, report, title, columns, rows)


@app.command()
@from_dataclass(DataOptions, ProbeOptions)
def probe(
    fields: dict[str, Any],
    model: Model,
    train: Annotated[
        str, typer.Option(help="Training data; without --test it is cross-validated.")
    ],
    validation: Annotated[str | None, typer.Option(help="Data to choose the penalty on.")] = None,
    test: Annotated[str | None, typer.Option(help="Data to score.")] = None,
    protocol: Annotated[
        str, typer.Option(help="classification, pair, entailment or relatedness.")
    ] = "classification",
    pooling: Pooling = None,
    batch_invariant: BatchInvariant = False,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Train logistic regression on fixed sentence vectors, as SentEval does.

    Example: hf-bert evaluate probe MODEL --train train.tsv --test test.tsv --text-column 0
    --label-column 1
    """
    from hf_bert_impl.tasks.probes import encoder_batcher, read_probe, run_probe

    named = {"train": train, "validation": validation, "test": test}
    with quiet_libraries():
        data, options = taken(DataOptions, fields), ProbeOptions(**fields)
        sources = {name: source for name, source in named.items() if source is not None}
        task, examples = read_probe(protocol, sources, data.columns, data.dataset)
        encoder = checkpoints.load_encoder(model, pooling=pooling, batch_invariant=batch_invariant)
        batcher = encoder_batcher(encoder.encode)
        result = run_probe(protocol, task, examples, batcher, options=options)
    title = f"{_last(model)}: {protocol} by logistic regression"
    if plot is not None:
        _draw_scores(plot, title, result.scores)
    report = {"protocol": protocol, "examples": result.examples, **result.scores}
    heads, columns = ["", "test"], [result.scores]
    if result.deviations is not None:
        report |= {"folds": options.folds, "standard_deviations": result.deviations}
        heads = ["", f"mean of {options.folds} folds", "deviation"]
        columns.append(result.deviations)
    rows = [(name, *(f"{column[name]:.4f}" for column in columns)) for name in result.scores]
    show_table(as_json, report, title, heads, rows)


@dataclasses.dataclass(frozen=True)
class EvaluationOptions(DataOptions):
    """How a fine-tuned model is scored."""

    max_length: int | None = None
    """Maximum number of tokens of a sequence; None for the model's."""
    batch_invariant: BatchInvariant = False
    plot: Plot = None


REGRESSION = """Score a fine-tuned regression model; the plot shows predictions against labels.

Example: hf-bert evaluate regression relatedness --data dev.tsv --text-column sentence_A
--text-pair-column sentence_B --label-column score"""
CLASSIFICATION = """Score a fine-tuned classifier; the plot is its confusion matrix.

Example: hf-bert evaluate classification sentiment --data test.tsv --text-column 0
--label-column 1"""
TAGGING = """Score a fine-tuned tagger by whole entities; the plot is its confusion matrix.

Example: hf-bert evaluate token-classification tagger --data test.conll"""


def score(
    fields: dict[str, Any],
    context: typer.Context,
    model: Model,
    data: Annotated[
        str,
        typer.Option(metavar="FILE", help="Labelled data; with --dataset the name of a split."),
    ],
    as_json: AsJson = False,
) -> None:
    """Score a fine-tuned model; the command's name is the task."""
    from hf_bert_impl.inference.loading import load_config
    from hf_bert_impl.tasks.evaluation import evaluate_task, task_for_model

    options = EvaluationOptions(**fields)
    with quiet_libraries():
        checkpoint = checkpoints.open_checkpoint(model, True, any_family=True)
        config = load_config(checkpoint.path)
        name = str(context.info_name)
        task = task_for_model(name, config, options.columns, options.dataset)
        scores, split, outputs = evaluate_task(
            task, checkpoint.path, data, options.max_length, options.batch_invariant
        )
    title = f"{_last(model)}: {_last(data)}, {len(split.examples):,} examples"
    if options.plot is not None and not task.draw(options.plot, split, outputs, title):
        _draw_scores(options.plot, title, scores)
    report = {"task": task.name, "examples": len(split.examples), **scores}
    rows = [(metric, f"{score:.4f}") for metric, score in scores.items()]
    show_table(as_json, report, title, ("", ""), rows)


scored = from_dataclass(EvaluationOptions)(score)
app.command("regression", help=REGRESSION)(scored)
app.command("classification", help=CLASSIFICATION)(scored)
app.command("token-classification", help=TAGGING)(
    from_dataclass(EvaluationOptions, text_pair_column=None)(score)
)


@app.command("masked-lm")
@from_dataclass(EvaluationOptions, text_pair_column=None, label_column=None, plot=None)
def masked_lm(
    fields: dict[str, Any],
    model: Model,
    data: Annotated[
        str,
        typer.Option(metavar="FILE", help="One text per line, or a table; with --dataset a split."),
    ],
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of texts, from the start.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compute the pseudo-perplexity of texts: each token is masked in turn and predicted.

    A text of n tokens takes n passes.

    Example: hf-bert evaluate masked-lm google-bert/bert-base-cased --data texts.txt --limit 500
    """
    from hf_bert_impl.progress import text_progress
    from hf_bert_impl.tasks.evaluation import load_fine_tuned
    from hf_bert_impl.tasks.pseudo_perplexity import pseudo_perplexity
    from hf_bert_impl.tasks.registry import make_task

    options = EvaluationOptions(**fields)
    invariant = options.batch_invariant
    with quiet_libraries():
        checkpoint = checkpoints.open_checkpoint(model, any_family=True)
        tokenizer = checkpoints.load_tokenizer(checkpoint)
        task = make_task("masked-lm", options.columns, options.dataset)
        texts = [example.text for example in task.read(data)][:limit]
        loaded = load_fine_tuned(checkpoint.path, task.head, batch_invariant=invariant)
        with text_progress(not quiet, len(texts)) as advance:
            result = pseudo_perplexity(loaded, tokenizer, texts, options.max_length, advance)
    rows = [
        ("pseudo-perplexity", f"{result.pseudo_perplexity:,.3f}"),
        ("accuracy", f"{result.accuracy:.4f}"),
        ("tokens", f"{result.tokens:,}"),
        ("texts", f"{result.texts:,}"),
        ("texts cut", f"{result.cut:,}"),
    ]
    show_table(as_json, vars(result), f"{_last(model)}: {_last(data)}", ("", ""), rows)


def _last(name: str) -> str:
    """The last part of a path or a hub id: titles are short."""
    return Path(name).name or name


def _draw_scores(plot: Path, title: str, scores: Mapping[str, float]) -> None:
    from hf_bert_impl.tasks.pictures import draw_bars

    draw_bars(plot, title, scores, "score")
