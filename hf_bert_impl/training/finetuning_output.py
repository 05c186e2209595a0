"""The output folder of fine-tuning, which appears complete or stays absent.

Notation: OUT the output folder, OUT.unfinished the folder of the run until it is complete. The
latter has `run.json` (the settings), `results.json` (of the finished seeds) and each seed's
checkpoints.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from transformers.trainer import TRAINER_STATE_NAME

from hf_bert_impl.files.atomic import atomic_file, is_disk_full, swap_in
from hf_bert_impl.files.json_files import write_json
from hf_bert_impl.files.output_folder import check_movable, check_output
from hf_bert_impl.model_card import CARD, markdown_table, model_card
from hf_bert_impl.tasks.base import Split, Task
from hf_bert_impl.training.checkpointing import (
    SETTINGS,
    CheckpointError,
    best_checkpoint,
    check_settings,
)
from hf_bert_impl.training.curves import draw_curves
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from hf_bert_impl.training.launch import has_begun
from hf_bert_impl.training.resumable_trainer import TrainingDiverged

RESULTS = "results.json"
#: Files in addition to the model's own and its card.
METRICS = "metrics.json"
CURVE = "training.png"
PREDICTIONS = "predictions.png"


def unfinished(output: Path) -> Path:
    """OUT.unfinished."""
    place = Path(os.path.realpath(output))
    return place.with_name(f"{place.name}.unfinished")


def check_new(options: FinetuningOptions, inputs: Iterable[str] = ()) -> None:
    """Checks the output before anything is read.

    Args:
        options: OUT, and whether it is replaced or resumed.
        inputs: The model and the data; names that are no paths are ignored.

    Raises:
        InputError: OUT is a file, mounted or has files, a stopped run left files, or replacing OUT
            would delete an input.
    """
    # After a restart by the launcher, existing files are its own.
    overwrite = options.overwrite or has_begun(options.output)
    sources = [path for path in map(Path, inputs) if path.exists()]
    check_movable(options.output)
    check_output(options.output, sources, overwrite)
    content = "a run to continue with `resume=True`"
    check_output(unfinished(options.output), sources, overwrite or options.resume, content)


def open_run(options: FinetuningOptions, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Creates OUT.unfinished, or checks the settings of the run in it.

    After a restart by the launcher, a run resumes with unchanged options.

    Args:
        options: OUT, and whether to resume.
        settings: Settings that must match to resume.

    Returns:
        The content of `results.json`; empty at the beginning of a run.

    Raises:
        InputError: There is no run to resume, or it has other settings.
    """
    work = unfinished(options.output)
    if options.resume or (has_begun(options.output) and (work / SETTINGS).exists()):
        check_settings(work, settings)
        return _read_results(work)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    write_json(work / SETTINGS, settings)
    return {}


def _read_results(work: Path) -> dict[str, Any]:
    results = work / RESULTS
    return json.loads(results.read_bytes()) if results.exists() else {}


def write_results(work: Path, results: Mapping[str, Any]) -> None:
    """Records the seeds that are done, and deletes all checkpoints but the best one."""
    with atomic_file(work / RESULTS) as fresh:
        fresh.write_text(json.dumps(results))  # with infinities, unlike `write_json`
    best = work / results["best"]["folder"]
    for place in work.glob("seed-*/*"):
        if place != best:
            shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def kept_after_errors(work: Path, is_owner: bool) -> Iterator[None]:
    """Names the best model so far after an error, or deletes OUT.unfinished without one.

    Args:
        work: OUT.unfinished.
        is_owner: Whether this process creates and removes folders.
    """
    try:
        yield
    except BaseException as error:
        if not is_owner:
            raise
        places = sorted(work.glob("seed-*"), key=lambda place: place.stat().st_mtime)
        whole = [best for best in map(best_checkpoint, places) if best is not None]
        if results := _read_results(work):
            whole.append(work / results["best"]["folder"])
        rest = f"The best model so far is in {whole[-1]}" if whole else "No model was written"
        if not whole:
            shutil.rmtree(work, ignore_errors=True)
        if isinstance(error, TrainingDiverged):
            raise TrainingDiverged(f"{error} {rest}") from error
        if is_disk_full(error) and not isinstance(error, CheckpointError):
            message = f"no space is left on the disk of {work}. Free some and resume. {rest}"
            raise OSError(message) from error
        raise


def finish(output: Path, model: Path, report: Mapping[str, Any]) -> None:
    """Writes metrics.json and the card, and moves the model to OUT.

    Args:
        output: OUT.
        model: The best checkpoint.
        report: From `finetune`.
    """
    for file in model.iterdir():  # what resuming needs; the arguments are a pickle
        if file.suffix in (".pt", ".pth", ".bin") or file.name == TRAINER_STATE_NAME:
            file.unlink()
    write_json(model / METRICS, report)
    (model / CARD).write_text(fine_tuned_card(model, report), encoding="utf-8")
    old = swap_in(model, Path(os.path.realpath(output)))
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(unfinished(output))


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
    panels = {"training loss": {"loss": losses}}
    if scored:
        panels["on the validation set"] = {f"{task.best_metric}, held out": scored}
    if losses:
        draw_curves(folder / CURVE, f"{task.name}: training", "epoch", panels, {})
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
