"""The Trainer of transformers, with whole checkpoints and a stop before a model is spoilt.

The public hooks of transformers do not reach all of this. Every private method of `Trainer` that
this package overrides or calls is in this file; a test compares them with the installed release.

Notation: OUT the folder of a run, OUT/checkpoint-N its checkpoint of step N.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerState
from transformers.trainer_utils import rotate_checkpoints

from hf_bert_impl.files.atomic import sync
from hf_bert_impl.finite import not_finite
from hf_bert_impl.training.checkpointing import PARTIAL, is_write_failure, write_error

STATE = "trainer_state.json"


class TrainingDiverged(ValueError):
    """The loss, a gradient or a weight is no finite number; what was saved before is whole."""


class ResumableTrainer(Trainer):
    """A Trainer whose checkpoints appear complete, under their names, or not at all.

    It stops with `TrainingDiverged` where a loss or a gradient is not finite, before the step that
    would spoil the weights, so that no spoilt model is saved or scored.

    A checkpoint is written to OUT/partial-checkpoint, brought to the disk, and renamed; older ones
    are deleted after that. Before each of them the log is written, so that no average runs across
    it: a resumed run logs what an uninterrupted one does.

    Args:
        **options: The arguments of `Trainer`.
    """

    control: Any
    _folder_now: str | None = None
    #: The losses of the micro-batches since the last step.
    _losses: tuple[Any, ...] = ()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.remove_callback(PrinterCallback)
        self.add_callback(_BeforeSaving(self))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains; the arguments and the result are those of `Trainer.train`.

        Raises:
            TrainingDiverged: A loss, a gradient or a weight is not finite.
        """
        result = super().train(*args, **kwargs)
        self.check_weights()
        return result

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Computes a micro-batch; arguments and result are those of `Trainer.training_step`."""
        loss = super().training_step(*args, **kwargs)
        self._losses = (*self._losses, loss)
        return loss

    def check_weights(self) -> None:
        """Checks what is about to be saved or scored, in all processes alike.

        Raises:
            TrainingDiverged: A weight is not finite.
        """
        odd = not_finite(self.model)
        if self._anywhere(bool(odd)):
            name = next(iter(odd), "a weight in another process")
            raise self._diverged(f"after step {self.state.global_step} {name} is not finite")

    def log_scores(self, scores: Mapping[str, float], prefix: str) -> dict[str, float]:
        """Logs what an evaluation gave, and tells the callbacks.

        Args:
            scores: By name.
            prefix: What the names in the log begin with, such as "eval".

        Returns:
            The scores with their names in the log.
        """
        logged = {f"{prefix}_{name}": value for name, value in scores.items()}
        self.log(logged)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, logged
        )
        return logged

    def finish_from(self, checkpoint: str) -> None:
        """Takes the weights and the log of a checkpoint, without training on.

        Args:
            checkpoint: That of the last step, after which `Trainer.train` would take one more.
        """
        # No public method loads a checkpoint of several processes without a step after it.
        self._load_from_checkpoint(checkpoint)
        self.state = TrainerState.load_from_json(os.path.join(checkpoint, STATE))

    def _diverged(self, what: str) -> TrainingDiverged:
        precise = ", or train in float32" if self.args.bf16 else ""
        return TrainingDiverged(
            f"{what}; expected finite numbers; lower the learning rate, which is "
            f"{self.args.learning_rate:g}{precise}"
        )

    def _anywhere(self, holds: bool) -> bool:
        """Whether something holds in this process or another one."""
        mine = torch.tensor([holds], dtype=torch.int32, device=self.args.device)
        return bool(self.accelerator.gather(mine).any())

    def _publish(self, folder: Path, partial: Path) -> None:
        """Gives a complete checkpoint its name, and deletes those that are too many."""
        name = f"checkpoint-{self.state.global_step}"
        fresh, final = partial / name, folder / name
        self._take_final_name(fresh, final)
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

    def _take_final_name(self, fresh: Path, final: Path) -> None:
        best = self.state.best_model_checkpoint
        if best is not None and Path(best) == fresh:
            self.state.best_model_checkpoint = str(final)

    # --- private methods of transformers ----------------------------------------------------------

    def _get_output_dir(self, trial: Any) -> str:
        # A checkpoint is written under another name first. transformers asks for the folder here
        # before it writes a checkpoint and before it deletes old ones.
        return self._folder_now or str(super()._get_output_dir(trial))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # The callback for checkpoints comes too late: by then a killed run would have left half a
        # checkpoint under its final name.
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
        except Exception as error:
            if not is_write_failure(error):
                raise
            failure = error
        finally:
            self._folder_now = None
        if self._anywhere(failure is not None):
            if self.args.should_save:
                shutil.rmtree(partial, ignore_errors=True)
            what = f"the checkpoint of step {self.state.global_step}"
            raise write_error(what, folder, failure) from failure
        if self.args.should_save:
            self._publish(folder, partial)
        else:
            name = f"checkpoint-{self.state.global_step}"
            self._take_final_name(partial / name, folder / name)
        self.accelerator.wait_for_everyone()

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        # The norm of the gradient, over all processes, before each step of the optimizer. A
        # callback does not get it, and would have to compute it a second time.
        norm = super()._get_grad_norm(*args, **kwargs)
        losses, self._losses = self._losses, ()
        loss = float(sum(losses))
        if not math.isfinite(loss):
            raise self._diverged(f"the loss of step {self.state.global_step + 1} is {loss}")
        if norm is not None and not math.isfinite(norm):
            raise self._diverged(f"the gradient of step {self.state.global_step + 1} is {norm}")
        return norm

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        # Here, and nowhere else, accelerate looks at the model to shard it.
        with _one_root(self.model) if self.is_fsdp_enabled else contextlib.nullcontext():
            return super()._prepare_for_training(*args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        # Old releases of transformers have each of several processes load to its own device, and
        # torch does not load to a numbered processor ("cpu:0").
        if self.args.device.type == "cpu":
            self.args.__dict__["_setup_devices"] = torch.device("cpu")
        super()._load_optimizer_and_scheduler(checkpoint)


class _BeforeSaving(TrainerCallback):
    """Writes the log before a checkpoint, and checks weights before they are saved or scored."""

    def __init__(self, trainer: ResumableTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Looks at what will follow, which transformers' own callback has decided before."""
        if control.should_save:
            control.should_log = True
        if control.should_save or control.should_evaluate:
            self._trainer.check_weights()

    on_epoch_end = on_step_end


@contextlib.contextmanager
def _one_root(model: Any) -> Iterator[None]:
    """Keeps accelerate from sharding the embeddings and the decoder as a group of their own.

    The decoder's bias is tied to one outside that group, which torch 2.13 refuses; the layers are
    groups of their own all the same.
    """
    names = ("get_input_embeddings", "get_output_embeddings")
    for name in names:
        setattr(model, name, lambda: None)
    try:
        yield
    finally:
        for name in names:
            delattr(model, name)
