"""`hf-bert prune-heads`: measures the importance of attention heads and removes some."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text as Cell

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import (
    AsJson,
    DataOptions,
    Picture,
    Quiet,
    from_dataclass,
    taken,
)
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.tables import console, print_table
from hf_bert_impl.tasks.pruning_options import PruningOptions

if TYPE_CHECKING:
    from hf_bert_impl.tasks.head_importance import HeadImportance


@from_dataclass(DataOptions, PruningOptions, dataset=None)
def prune_heads(
    fields: dict[str, Any],
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A fine-tuned model: a folder or a hub id.")
    ],
    data: Annotated[str, typer.Option(metavar="FILE", help="Data to measure the importance on.")],
    picture: Picture = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure the importance of attention heads for a task, and remove the least important.

    The model's head names the task: classification, tagging, question answering or masked words.
    The importance of a head is the gradient of the loss with respect to a factor on its output
    (Michel et al. 2019). --share or --count removes heads; --output writes the pruned model.

    Example: hf-bert prune-heads sentiment --data train.tsv --test dev.tsv --text-column 0
    --label-column 1 --share 0.3 --output sentiment-pruned
    """
    with quiet_libraries():
        from hf_bert_impl.pruning import prune_checkpoint

        result = prune_checkpoint(
            checkpoints.open_checkpoint(model),
            data,
            columns=taken(DataOptions, fields).columns,
            progress=not quiet,
            **fields,
        )
        report = result.report
        title = f"{Path(model).name or model}: importance of heads for {report['task']}"
        if picture is not None:
            from hf_bert_impl.visualization import draw_head_importance

            draw_head_importance(picture, result.importance, result.pruned, title)
    if as_json:
        typer.echo(to_json(report))
        return
    print_importance(title, result.importance, result.pruned)
    if result.pruned:
        title = f"{Path(report['test']).name}, {result.test_examples:,} examples"
        scores = [
            (name, *("–" if it is None else f"{it:.4f}" for it in (before, report["after"][name])))
            for name, before in report["before"].items()
        ]
        print_table(console(), title, ("", "before", "after"), scores)


def print_importance(
    title: str, importance: HeadImportance, pruned: Mapping[int, Sequence[int]]
) -> None:
    """Prints the normalised importance of heads, a row per layer; pruned ones are marked."""

    def cell(layer: int, head: int, value: float) -> Cell:
        text = "–" if math.isnan(value) else f"{value:.2f}".removeprefix("0")
        return Cell(f"{text}*", "red") if head in pruned.get(layer, ()) else Cell(text)

    scores = importance.normalized.tolist()
    rows = [
        [Cell(str(layer)), *(cell(layer, head, value) for head, value in enumerate(row))]
        for layer, row in enumerate(scores)
    ]
    note = f"mean |gradient| of {importance.examples:,} examples, ℓ2 norm of a layer 1"
    if pruned:
        note += f"; * pruned: {sum(map(len, pruned.values()))} of {importance.heads} heads"
    columns = ("layer", *map(str, range(len(scores[0]))))
    print_table(console(), title, columns, rows, note, words=())
