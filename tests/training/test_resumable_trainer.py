"""What this package uses of transformers' Trainer without a promise, and nothing else."""

import inspect

import pytest
from transformers import Trainer, TrainingArguments

#: Private methods of `Trainer` that are overridden or called, and their arguments.
METHODS = {
    "_get_grad_norm": ["model", "grad_norm"],
    "_get_output_dir": ["trial"],
    "_load_from_checkpoint": ["resume_from_checkpoint", "model"],
    "_load_optimizer_and_scheduler": ["checkpoint"],
    "_prepare_for_training": ["max_steps", "train_dataloader", "resume_from_checkpoint"],
    "_save_checkpoint": ["model", "trial"],
}


@pytest.mark.parametrize("name", METHODS)
def test_the_installed_release_has_it(name):
    """A release that changes one is named here, before a checkpoint is lost."""
    method = getattr(Trainer, name, None)
    assert method is not None, f"Trainer.{name} is gone: give resumable_trainer.py another way"
    arguments = list(inspect.signature(method).parameters)[1:]
    assert arguments == METHODS[name], f"Trainer.{name} takes other arguments"
    assert f"self.{name}(" in inspect.getsource(Trainer), f"Trainer.{name} is not called any more"


def test_the_device_is_kept_under_a_known_name(tmp_path):
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    assert arguments.device.type == "cpu"
    assert "_setup_devices" in vars(arguments)
