"""The folder that fine-tuning leaves: it appears complete or not at all.

Notation: OUT the folder that was asked for, OUT.unfinished where it grows.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
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

#: The files besides the model's own and its card that this module writes.
METRICS = "metrics.json"
CURVE = "training.png"
PREDICTIONS = "predictions.png"


class OutputFolder:
    """OUT while it is made; a context manager that gives OUT.unfinished.

    Args:
        folder: OUT.
        overwrite: Whether an OUT with files in it is replaced.
        owner: Whether this process, among several, makes and removes folders.
    """

    def __init__(self, folder: Path, overwrite: bool = False, owner: bool = True) -> None:
        self.folder = folder.resolve()
        self.overwrite = overwrite
        self.owner = owner
        #: The best model so far, whole.
        self.kept: Path | None = None
        self.work = self.folder.with_name(f"{self.folder.name}.unfinished")

    def check(self, inputs: Iterable[str] = ()) -> None:
        """Checks what can be checked before anything is read.

        Args:
            inputs: The model and the data; those that are no paths are passed over.

        Raises:
            InputError: OUT is a file or has files in it, or a run that stopped left its own; or an
                input lies in one of them, which replacing it would delete.
        """
        sources = [path for path in map(Path, inputs) if path.exists()]
        check_output(self.folder, sources, self.overwrite)
        check_output(self.work, sources, self.overwrite, "the checkpoint of a run")

    def __enter__(self) -> Path:
        if self.overwrite and self.owner:
            shutil.rmtree(self.work, ignore_errors=True)
        if self.owner:
            self.work.mkdir(parents=True, exist_ok=True)
        return self.work

    def keep(self, model: Path) -> None:
        """Takes a folder in OUT.unfinished, which is whole, in place of the one before."""
        if self.kept is not None:
            shutil.rmtree(self.kept.parent)
        self.kept = model

    def finish(self, report: Mapping[str, Any]) -> None:
        """Writes the report and puts the kept folder in OUT's place."""
        assert self.kept is not None
        write_report(self.kept, report)
        old = swap_in(self.kept, self.folder)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(self.work)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or not self.owner:
            return
        whole = sorted(file.parent for file in self.work.rglob(TRAINER_STATE_NAME))
        kept = self.kept or (whole[-1] if whole else None)
        rest = f"the best model so far is whole in {kept}"
        if kept is None:
            shutil.rmtree(self.work, ignore_errors=True)
            rest = "nothing was written"
        if isinstance(error, TrainingDiverged):
            raise TrainingDiverged(f"{error}; {rest}") from error
        if is_disk_full(error):
            raise OSError(
                f"no space is left on the disk of {self.folder}; expected room for the model; "
                f"{rest}; free some space and run again"
            ) from error


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


def write_report(folder: Path, report: Mapping[str, Any]) -> None:
    """Writes metrics.json and the model card.

    Args:
        folder: Where to.
        report: What `finetune` returns.
    """
    write_json(folder / METRICS, report)
    (folder / CARD).write_text(fine_tuned_card(folder, report), encoding="utf-8")


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
        examples = ["examples", *(f"{training['examples'][part]:,}" for part in parts)]
        scores = [
            [name, *(_cell(report, part, name) for part in parts)] for name in report[parts[0]]
        ]
        sections.append(markdown_table(["", *parts], [examples, *scores]))
        if "spread" in report:
            sections.append(
                f"With several seeds: mean ± standard deviation of {len(report['seeds'])} runs in "
                "brackets."
            )
    sections += [
        f"![{name.removesuffix('.png')}]({name})"
        for name in (CURVE, PREDICTIONS)
        if (folder / name).is_file()
    ]
    return model_card(data, *sections)


def _cell(report: Mapping[str, Any], part: str, name: str) -> str:
    value = report[part].get(name)
    if value is None:
        return ""
    text = f"{value:.4g}"
    if "spread" in report:
        spread = report["spread"][part][name]
        text += f" ({spread['mean']:.4g} ± {spread['std']:.2g})"
    return text
