"""Checkpoints that are whole or not there, and runs that go on where they were stopped.

Notation: OUT the folder of a run, OUT/checkpoint-N its checkpoint of step N.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import Trainer, TrainerState
from transformers.trainer_utils import get_last_checkpoint, rotate_checkpoints

from hf_bert_impl.files.atomic import atomic_file, is_disk_full, sync
from hf_bert_impl.model.json_files import read_json
from hf_bert_impl.model.loading import not_finite

#: Where a checkpoint grows; what a killed run leaves there counts for nothing.
PARTIAL = "partial-checkpoint"
#: What a run was started with.
SETTINGS = "run.json"
STATE = "trainer_state.json"
#: What `atomic_files` leaves of a process that was killed.
LEFTOVERS = ".partial-*"
MIB = 2**20


class CheckpointError(OSError):
    """A checkpoint could not be written; those before it are whole."""


class TrainingDiverged(ValueError):
    """The loss, a gradient or a weight is no finite number; what was saved before is whole."""


class ResumableTrainer(Trainer):
    """A Trainer whose checkpoints appear complete, under their names, or not at all.

    It stops with `TrainingDiverged` where a loss or a gradient is not finite, before the step that
    would spoil the weights, so that no spoilt model is saved or scored.

    A checkpoint is written to OUT/partial-checkpoint, brought to the disk, and renamed; older ones
    are deleted after that. Before each of them the log is written, so that no average runs across
    it: a resumed run logs what an uninterrupted one does.
    """

    _folder_now: str | None = None
    #: Of the micro-batches since the last step.
    _losses: tuple[Any, ...] = ()

    def _get_output_dir(self, trial: Any) -> str:
        # The base class asks for it before it writes a checkpoint and before it deletes old ones.
        return self._folder_now or str(super()._get_output_dir(trial))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains; the arguments and the result are those of `Trainer.train`.

        Raises:
            TrainingDiverged: A loss, a gradient or a weight is not finite.
        """
        result = super().train(*args, **kwargs)
        self._check_weights()
        return result

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Computes a micro-batch; arguments and result are those of `Trainer.training_step`."""
        loss = super().training_step(*args, **kwargs)
        self._losses = (*self._losses, loss)
        return loss

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        # The base class asks for it before each step of the optimizer. With several processes it
        # is that of all of them.
        norm = super()._get_grad_norm(*args, **kwargs)
        losses, self._losses = self._losses, ()
        loss = float(sum(losses))
        if not math.isfinite(loss):
            raise self._diverged(f"the loss of step {self.state.global_step + 1} is {loss}")
        if norm is not None and not math.isfinite(norm):
            raise self._diverged(f"the gradient of step {self.state.global_step + 1} is {norm}")
        return norm

    def _check_weights(self) -> None:
        """Checks what is about to be saved or scored, in all processes alike."""
        odd = not_finite(self.model)
        flag = torch.tensor([bool(odd)], dtype=torch.int32, device=self.args.device)
        if self.accelerator.gather(flag).any():
            name = next(iter(odd), "a weight in another process")
            raise self._diverged(f"after step {self.state.global_step} {name} is not finite")

    def _diverged(self, what: str) -> TrainingDiverged:
        precise = ", or train in float32" if self.args.bf16 else ""
        return TrainingDiverged(
            f"{what}; expected finite numbers; lower the learning rate, which is "
            f"{self.args.learning_rate:g}{precise}"
        )

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self.control.should_save:
            self.control.should_log = True
        if self.control.should_save or self.control.should_evaluate:
            self._check_weights()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(super()._get_output_dir(trial))
        partial = folder / PARTIAL
        if self.args.should_save:
            shutil.rmtree(partial, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        failure = None
        self._folder_now = str(partial)
        try:
            super()._save_checkpoint(model, trial)
            if self.args.should_save:
                for file in partial.rglob("*"):
                    sync(file)
        except (OSError, RuntimeError, SafetensorError) as error:
            if not is_write_failure(error):
                raise
            failure = error
        finally:
            self._folder_now = None
        flag = torch.tensor([failure is not None], dtype=torch.int32, device=self.args.device)
        if self.accelerator.gather(flag).any():
            if self.args.should_save:
                shutil.rmtree(partial, ignore_errors=True)
            what = f"the checkpoint of step {self.state.global_step}"
            raise _write_error(what, folder, failure) from failure
        if self.args.should_save:
            self._publish(folder, partial)
        self.accelerator.wait_for_everyone()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        # Old releases of transformers have each of several processes load to its own device, and
        # torch does not load to a numbered processor ("cpu:0").
        if self.args.device.type == "cpu":
            self.args.__dict__["_setup_devices"] = torch.device("cpu")
        super()._load_optimizer_and_scheduler(checkpoint)

    def finish_from(self, checkpoint: str) -> None:
        """Takes the weights and the log of a checkpoint, without training on.

        Args:
            checkpoint: That of the last step, after which `Trainer.train` would take one more.
        """
        self._load_from_checkpoint(checkpoint)
        self.state = TrainerState.load_from_json(os.path.join(checkpoint, STATE))

    def _publish(self, folder: Path, partial: Path) -> None:
        """Gives a complete checkpoint its name, and deletes those that are too many."""
        name = f"checkpoint-{self.state.global_step}"
        fresh, final = partial / name, folder / name
        best = self.state.best_model_checkpoint
        if best is not None and Path(best) == fresh:
            self.state.best_model_checkpoint = str(final)
            self.state.save_to_json(str(fresh / STATE))
        if final.exists():  # of a run that went back to an earlier checkpoint
            os.replace(final, partial / "replaced")
        os.replace(fresh, final)
        sync(folder)
        shutil.rmtree(partial, ignore_errors=True)
        rotate_checkpoints(
            output_dir=str(folder),
            save_total_limit=self.args.save_total_limit,
            best_model_checkpoint=self.state.best_model_checkpoint,
        )


def last_checkpoint(folder: str | Path) -> str | None:
    """The last complete checkpoint of a run, or None where there is none."""
    found: str | None = get_last_checkpoint(str(folder))
    return found


def remove_leftovers(folder: Path) -> None:
    """Deletes the half-written files of a killed run, none of which counts for anything."""
    for leftover in (folder / PARTIAL, *folder.glob(LEFTOVERS)):
        shutil.rmtree(leftover, ignore_errors=True)


def step_of(checkpoint: str) -> int:
    """The step of a checkpoint, from its name."""
    return int(checkpoint.rpartition("-")[2])


def is_write_failure(error: BaseException) -> bool:
    """Whether an exception, of whatever library, says that a file could not be written."""
    return isinstance(error, OSError | SafetensorError) or is_disk_full(error)


@contextlib.contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """Turns failures to write, of whatever library, into `CheckpointError`."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if not is_write_failure(error):
            raise
        raise _write_error(what, folder, error) from error


def _write_error(what: str, folder: Path, failure: BaseException | None) -> CheckpointError:
    free = shutil.disk_usage(folder).free / MIB
    reason = "another process failed" if failure is None else _reason(failure)
    last = last_checkpoint(folder)
    whole = f"{Path(last).name} is whole" if last else "there is no checkpoint yet"
    return CheckpointError(
        f"{what} could not be written to {folder} ({reason}; {free:,.0f} MiB are free); expected "
        f"room for it; free some and resume: {whole}"
    )


def _reason(failure: BaseException) -> str:
    if isinstance(failure, OSError) and failure.strerror:
        return failure.strerror
    return " ".join(str(failure).split())[:150]


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Writes down what a run is started with.

    Args:
        folder: OUT.
        settings: JSON values; all that makes another run of it if it changes.
    """
    with atomic_file(folder / SETTINGS) as fresh:
        text = json.dumps(settings, indent=2, ensure_ascii=False)
        fresh.write_text(text + "\n", encoding="utf-8")


def check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Check that a run in a folder was started with the same settings.

    Args:
        folder: OUT.
        settings: Those of now.

    Raises:
        ValueError: There is no such run, or it had others; the message names the first of them.
    """
    file = folder / SETTINGS
    if not file.exists():
        raise ValueError(
            f"there is no run to resume in {folder}; expected a folder with {SETTINGS}; name the "
            "output of an earlier run, or start a new one"
        )
    before = read_json(file, remedy="restore it, or start anew")
    now = _flat(json.loads(json.dumps(settings)))
    then = _flat(before)
    changed = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    if changed:
        shown = [f"{key} was {then.get(key)!r}, now {now.get(key)!r}" for key in changed]
        more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
        raise ValueError(
            f"the run in {folder} was started with other settings ({'; '.join(shown[:3])}{more}); "
            "expected the same; resume with those, or start a new run in another folder"
        )


def _flat(settings: Any, path: str = "") -> dict[str, Any]:
    """Nested settings with dotted names."""
    if not isinstance(settings, Mapping):
        return {path: settings}
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{path}.{key}" if path else str(key))
    return flat
