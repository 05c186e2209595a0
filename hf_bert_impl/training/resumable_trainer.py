"""The Trainer of transformers, with whole checkpoints and a stop before a model is spoilt.

The public hooks of transformers do not reach all of this. Every private method of `Trainer` that
this package overrides or calls is in this file.
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
from hf_bert_impl.training.checkpointing import remove_leftovers, writing


class TrainingDiverged(ValueError):
    """The loss, a gradient or a weight is no finite number; what was saved before is whole."""


class ResumableTrainer(Trainer):
    """A Trainer whose checkpoints are whole if their trainer_state.json is there.

    It stops with `TrainingDiverged` where a loss or a gradient is not finite, before the step that
    would spoil the weights, so that no spoilt model is saved or scored.

    Before each checkpoint the log is written, so that no average runs across it: a resumed run logs
    what an uninterrupted one does.

    Args:
        keep_checkpoints: How many checkpoints stay.
        **options: The arguments of `Trainer`.
    """

    control: Any

    def __init__(self, keep_checkpoints: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.keep_checkpoints = keep_checkpoints
        self.remove_callback(PrinterCallback)
        self.add_callback(_Guard())

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Computes a micro-batch; arguments and result are those of `Trainer.training_step`.

        Raises:
            TrainingDiverged: The loss is not finite.
        """
        loss = super().training_step(*args, **kwargs)
        if not math.isfinite(loss):
            what = f"the loss of step {self.state.global_step + 1} is {float(loss)}"
            raise _diverged(what, self.args)
        return loss

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
        self.state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))

    # --- private methods of transformers ----------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self.args.output_dir)
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        try:
            with writing(f"the checkpoint of step {self.state.global_step}", folder):
                super()._save_checkpoint(model, trial)
                if self.args.should_save:
                    # transformers itself would delete older ones before this one is on the disk.
                    for place in (checkpoint / TRAINER_STATE_NAME, checkpoint, folder):
                        sync(place)
                    best = self.state.best_model_checkpoint
                    rotate_checkpoints(str(folder), self.keep_checkpoints, best)
        except BaseException:
            remove_leftovers(folder)
            raise

    def _save_rng_state(self, output_dir: str) -> None:
        # The last file of each process. Next the main process writes trainer_state.json: by then
        # the files of all processes have to be there, and on the disk.
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            for file in (*Path(output_dir).rglob("*"), Path(output_dir)):
                sync(file)

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        # Here, and nowhere else, accelerate looks at the model to shard it.
        with _one_root(self.model) if self.is_fsdp_enabled else contextlib.nullcontext():
            return super()._prepare_for_training(*args, **kwargs)


class _Guard(TrainerCallback):
    """Stops before a step by a gradient that is not finite, and before such weights are used."""

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any
    ) -> None:
        """Checks the gradient, which is clipped already: what was infinite is NaN."""
        gradients = [it.grad for it in model.parameters() if it.grad is not None]
        here = [it.to_local() if hasattr(it, "to_local") else it for it in gradients]
        norm = float(get_total_norm(here))
        if not math.isfinite(norm):
            raise _diverged(f"the gradient of step {state.global_step + 1} is {norm}", args)

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any
    ) -> None:
        """Looks at what will follow, which transformers' own callback has decided before."""
        if control.should_save:
            control.should_log = True
        if control.should_save or control.should_evaluate:
            self.on_train_end(args, state, control, model)

    on_epoch_end = on_step_end

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any
    ) -> None:
        """Checks the weights that are about to be saved or scored."""
        for name in not_finite(model):
            raise _diverged(f"after step {state.global_step} {name} is not finite", args)


def _diverged(what: str, args: Any) -> TrainingDiverged:
    precise = ", or train in float32" if args.bf16 else ""
    return TrainingDiverged(
        f"{what}; expected finite numbers; lower the learning rate, which is "
        f"{args.learning_rate:g}{precise}"
    )


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
