"""The folder that fine-tuning leaves: it appears complete or not at all.

Notation: OUT the folder that was asked for, OUT.unfinished where it grows.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from transformers.trainer import TRAINER_STATE_NAME

from hf_bert_impl.files.atomic import is_disk_full, swap_in
from hf_bert_impl.files.json_files import write_json
from hf_bert_impl.files.output_folder import check_output
from hf_bert_impl.model_card import CARD, markdown_table, model_card
from hf_bert_impl.tasks import pictures
from hf_bert_impl.tasks.base import Split, Task
from hf_bert_impl.training.resumable_trainer import TrainingDiverged

#: In OUT.unfinished, the best model so far.
MODEL = "model"
#: The files besides the model's own and its card that this module writes.
METRICS = "metrics.json"
CURVE = "training.png"
PREDICTIONS = "predictions.png"


def unfinished(output: Path) -> Path:
    """OUT.unfinished."""
    place = output.resolve()
    return place.with_name(f"{place.name}.unfinished")


def check_new(output: Path, overwrite: bool, inputs: Iterable[str] = ()) -> None:
    """Checks what can be checked before anything is read.

    Args:
        output: OUT.
        overwrite: Whether an OUT with files in it is replaced.
        inputs: The model and the data; those that are no paths are passed over.

    Raises:
        InputError: OUT is a file or has files in it, or a run that stopped left its own; or an
            input lies in one of them, which replacing it would delete.
    """
    sources = [path for path in map(Path, inputs) if path.exists()]
    check_output(output.resolve(), sources, overwrite)
    check_output(unfinished(output), sources, overwrite, "the checkpoint of a run")


@contextlib.contextmanager
def growing(output: Path, overwrite: bool, is_owner: bool) -> Iterator[Path]:
    """OUT.unfinished while OUT is made; after a failure it holds the best model so far.

    Args:
        output: OUT.
        overwrite: Whether what an earlier run left is deleted.
        is_owner: Whether this process, among several, makes and removes folders.
    """
    work = unfinished(output)
    if is_owner:
        if overwrite:
            shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True, exist_ok=True)
    try:
        yield work
    except BaseException as error:
        if not is_owner:
            raise
        whole = [file.parent for file in sorted(work.rglob(TRAINER_STATE_NAME))]
        whole += [work / MODEL] * (work / MODEL).exists()
        rest = f"the best model so far is whole in {whole[-1]}" if whole else "nothing was written"
        if not whole:
            shutil.rmtree(work, ignore_errors=True)
        if isinstance(error, TrainingDiverged):
            raise TrainingDiverged(f"{error}; {rest}") from error
        if is_disk_full(error):
            raise OSError(
                f"no space is left on the disk of {work}; expected room for the model; "
                f"{rest}; free some space and run again"
            ) from error
        raise


def finish(output: Path, report: Mapping[str, Any]) -> None:
    """Writes metrics.json and the model card, and puts the best model in OUT's place.

    Args:
        output: OUT.
        report: What `finetune` returns.
    """
    work = unfinished(output)
    model = work / MODEL
    write_json(model / METRICS, report)
    (model / CARD).write_text(fine_tuned_card(model, report), encoding="utf-8")
    old = swap_in(model, output.resolve())
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(work)


def write_pictures(
    folder: Path,
    task: Task,
    splits: Mapping[str, Split],
    outputs: Mapping[str, list[Any]],
    history: list[dict[str, Any]],
) -> None:
    """Draws the course of training, and predictions beside gold labels where the task has that.

    Args:
        folder: Where to.
        task: The task.
        splits: The data by name.
        outputs: What the model gave, by the name of the data. Test data are drawn before
            validation data.
        history: What the Trainer logged.
    """
    key = f"eval_{task.best_metric}"
    losses = [(entry["epoch"], entry["loss"]) for entry in history if "loss" in entry]
    scored = [(entry["epoch"], entry[key]) for entry in history if key in entry]
    scores = {task.best_metric: scored} if scored else {}
    if losses:
        pictures.draw_training(folder / CURVE, f"{task.name}: training", losses, scores)
    for part in ("test", "validation"):
        if part in outputs:
            title = f"{task.name}: {part}, {len(splits[part].examples):,} examples"
            task.draw(folder / PREDICTIONS, splits[part], outputs[part], title)
            break


def fine_tuned_card(folder: Path, report: Mapping[str, Any]) -> str:
    """The model card: what the model is, how it was made, and its figures.

    Args:
        folder: The model's folder; pictures that lie there are shown.
        report: What `finetune` returns.
    """
    base, training = str(report["model"]), report["training"]
    data = ModelCardData(
        library_name="transformers",
        tags=["bert", report["task"], "hf_bert_impl"],
        # Only what is no folder here can be a name on the hub.
        base_model=None if Path(base).expanduser().exists() else base,
    )
    best = training["best_epoch"]
    sections = [
        f"# {Path(base).name} fine-tuned for {report['task']}",
        f"Trained by `hf-bert finetune {report['task']}` on "
        f"{training['examples']['train']:,} examples: {training['epochs']:g} epochs, batches of "
        f"{training['batch_size']}, learning rate {training['learning_rate']:g}, seed "
        f"{training['seed']}, sequences of up to {training['max_length']} tokens"
        + (f", best after epoch {best:g}." if best else "."),
    ]
    if report.get("labels"):
        sections.append(f"Labels: {', '.join(f'`{label}`' for label in report['labels'])}.")
    parts = [part for part in ("validation", "test") if part in report]
    if parts:
        rows = [["examples", *(f"{training['examples'][part]:,}" for part in parts)]]
        for name in report[parts[0]]:
            rows.append([name, *(_cell(report, part, name) for part in parts)])
        sections.append(markdown_table(["", *parts], rows))
    if parts and "spread" in report:
        sections.append(
            f"With several seeds: mean ± standard deviation of {len(report['seeds'])} runs in "
            "brackets."
        )
    drawn = [name for name in (CURVE, PREDICTIONS) if (folder / name).is_file()]
    sections += [f"![{name.removesuffix('.png')}]({name})" for name in drawn]
    return model_card(data, *sections)


def _cell(report: Mapping[str, Any], part: str, name: str) -> str:
    value = report[part].get(name)
    text = "" if value is None else f"{value:.4g}"
    if text and "spread" in report:
        spread = report["spread"][part][name]
        text += f" ({spread['mean']:.4g} ± {spread['std']:.2g})"
    return text
