"""transformers' Trainer with complete checkpoints, which stops before a model is damaged.

The public hooks of transformers are not enough. This file has every private `Trainer` method that
the package overrides or calls.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.nn.utils import get_total_norm
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import rotate_checkpoints

from hf_bert_impl.files.atomic import sync
from hf_bert_impl.finite import not_finite
from hf_bert_impl.training.checkpointing import best_checkpoint, remove_leftovers, writing


class TrainingDiverged(ValueError):
    """The loss, a gradient or a weight is not finite; earlier checkpoints are complete."""


class ResumableTrainer(Trainer):
    """A Trainer whose checkpoints are complete if they have trainer_state.json.

    It raises `TrainingDiverged` for a loss or gradient that is not finite, before the step that
    would damage the weights. So no damaged model is saved or scored.

    It writes the log before each checkpoint, so that no average spans it and a resumed run logs the
    same values as an uninterrupted one.

    Args:
        keep_checkpoints: Number of checkpoints to keep.
        **options: The arguments of `Trainer`.
    """

    control: Any

    def __init__(self, keep_checkpoints: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.keep_checkpoints = keep_checkpoints
        self.remove_callback(PrinterCallback)
        self.add_callback(_Guard())

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Computes a micro-batch; arguments and result as in `Trainer.training_step`.

        Raises:
            TrainingDiverged: The loss is not finite.
        """
        loss = super().training_step(*args, **kwargs)
        if not math.isfinite(loss):
            what = f"the loss of step {self.state.global_step + 1} is {float(loss)}"
            raise _diverged(what, self.args)
        return loss

    def log_scores(self, scores: Mapping[str, float], prefix: str) -> dict[str, float]:
        """Logs the scores of an evaluation, and informs the callbacks.

        Args:
            scores: By name.
            prefix: Of the names in the log, such as "eval".

        Returns:
            The scores by their names in the log.
        """
        logged = {f"{prefix}_{name}": value for name, value in scores.items()}
        self.log(logged)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, logged
        )
        return logged

    def train_from(self, checkpoint: str | None) -> None:
        """Trains to the end, which gives the same weights from any checkpoint.

        Args:
            checkpoint: A checkpoint of this run, or None for its beginning.
        """
        if checkpoint is not None:
            state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))
            if state.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"]:
                # `Trainer.train` would add another step. No public method loads a checkpoint of
                # several processes without one.
                self.state = state
                self._load_from_checkpoint(str(best_checkpoint(self.args.output_dir)))
                return
        self.train(resume_from_checkpoint=checkpoint)

    # --- private methods of transformers ----------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self.args.output_dir)
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        try:
            with writing(f"the checkpoint of step {self.state.global_step}", folder):
                super()._save_checkpoint(model, trial)
                if self.args.should_save:
                    # transformers would delete older ones before this one is on the disk.
                    for place in (checkpoint / TRAINER_STATE_NAME, checkpoint, folder):
                        sync(place)
                    best = self.state.best_model_checkpoint
                    rotate_checkpoints(str(folder), self.keep_checkpoints, best)
        except BaseException:
            remove_leftovers(folder)
            raise

    def _save_rng_state(self, output_dir: str) -> None:
        # The last file of each process. The main process writes trainer_state.json next, and all
        # other files must be on the disk by then.
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            for file in (*Path(output_dir).rglob("*"), Path(output_dir)):
                sync(file)

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        # Only here accelerate reads the model to shard it.
        with _one_root(self.model) if self.is_fsdp_enabled else contextlib.nullcontext():
            return super()._prepare_for_training(*args, **kwargs)


class _Guard(TrainerCallback):
    """Stops at gradients and weights that are not finite, before they are used."""

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any
    ) -> None:
        """Checks the clipped gradient, in which infinities are NaN."""
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        local = [grad.to_local() if hasattr(grad, "to_local") else grad for grad in gradients]
        norm = float(get_total_norm(local))
        if not math.isfinite(norm):
            raise _diverged(f"the gradient of step {state.global_step + 1} is {norm}", args)

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any
    ) -> None:
        """Logs before checkpoints, and checks weights that will be saved or scored."""
        if control.should_save:
            control.should_log = True
        if control.should_save or control.should_evaluate:
            self.on_train_end(args, state, control, model)

    on_epoch_end = on_step_end

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any
    ) -> None:
        for name in not_finite(model):
            raise _diverged(f"after step {state.global_step} {name} is not finite", args)


def _diverged(what: str, args: Any) -> TrainingDiverged:
    precise = ", or train in float32" if args.bf16 else ""
    rate = f"the learning rate ({args.learning_rate:g})"
    return TrainingDiverged(f"{what}. Lower {rate}{precise}.")


@contextlib.contextmanager
def _one_root(model: Any) -> Iterator[None]:
    """Prevents accelerate from sharding the embeddings and the decoder as a group.

    The decoder's bias is tied to one outside the group, which torch 2.13 rejects. The layers
    remain groups.
    """
    names = ("get_input_embeddings", "get_output_embeddings")
    for name in names:
        setattr(model, name, lambda: None)
    try:
        yield
    finally:
        for name in names:
            delattr(model, name)
