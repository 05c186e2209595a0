"""The output folder of fine-tuning, which appears complete or stays absent.

Notation: OUT the output folder, OUT.unfinished the folder until it is complete.
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
#: Files in addition to the model's own and its card.
METRICS = "metrics.json"
CURVE = "training.png"
PREDICTIONS = "predictions.png"


def unfinished(output: Path) -> Path:
    """OUT.unfinished."""
    place = output.resolve()
    return place.with_name(f"{place.name}.unfinished")


def check_new(output: Path, overwrite: bool, inputs: Iterable[str] = ()) -> None:
    """Checks the output before anything is read.

    Args:
        output: OUT.
        overwrite: Whether an OUT with files is replaced.
        inputs: The model and the data; names that are no paths are ignored.

    Raises:
        InputError: OUT is a file or has files, a stopped run left files, or replacing OUT would
            delete an input.
    """
    sources = [path for path in map(Path, inputs) if path.exists()]
    check_output(output.resolve(), sources, overwrite)
    check_output(unfinished(output), sources, overwrite, "the checkpoint of a run")


@contextlib.contextmanager
def growing(output: Path, overwrite: bool, is_owner: bool) -> Iterator[Path]:
    """OUT.unfinished during training; after an error it holds the best model so far.

    Args:
        output: OUT.
        overwrite: Whether files of an earlier run are deleted.
        is_owner: Whether this process creates and removes folders.
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
        rest = f"The best model so far is in {whole[-1]}" if whole else "No model was written"
        if not whole:
            shutil.rmtree(work, ignore_errors=True)
        if isinstance(error, TrainingDiverged):
            raise TrainingDiverged(f"{error} {rest}") from error
        if is_disk_full(error):
            message = f"no space is left on the disk of {work}. Free some and run again. {rest}"
            raise OSError(message) from error
        raise


def finish(output: Path, report: Mapping[str, Any]) -> None:
    """Writes metrics.json (`report`, from `finetune`) and the card, and moves the model to OUT."""
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
    """Draws the training curves, and predictions against gold labels if the task has that picture.

    Args:
        folder: The output.
        task: The task.
        splits: The data by part.
        outputs: The model's outputs by part; test data are preferred to validation data.
        history: The Trainer's log.
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
    """The model card: the model, its training, its scores, and the pictures in its folder.

    Args:
        folder: The model's folder.
        report: From `finetune`.
    """
    base, training = str(report["model"]), report["training"]
    data = ModelCardData(
        library_name="transformers",
        tags=["bert", report["task"], "hf_bert_impl"],
        # A folder here is not a name on the hub.
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
