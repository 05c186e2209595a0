"""What this package uses of transformers' Trainer without a promise, and nothing else."""

import ast
import inspect
from pathlib import Path

import pytest
from transformers import Trainer, TrainingArguments

from hf_bert_impl.training import resumable_trainer

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
    """A release that changes one is named here, before anybody wonders about a lost checkpoint."""
    method = getattr(Trainer, name, None)
    assert method is not None, f"Trainer.{name} is gone: give resumable_trainer.py another way"
    arguments = list(inspect.signature(method).parameters)[1:]
    assert arguments == METHODS[name], f"Trainer.{name} takes other arguments"
    callers = [line for line in inspect.getsource(Trainer).splitlines() if f"self.{name}(" in line]
    assert callers, f"Trainer.{name} is not called any more"


def test_the_device_is_kept_under_a_known_name(tmp_path):
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    assert arguments.device.type == "cpu"
    assert "_setup_devices" in vars(arguments)


def test_no_other_file_uses_private_methods():
    """Neither by overriding nor by calling them."""
    here = Path(resumable_trainer.__file__)
    used = {}
    for file in here.parent.glob("*.py"):
        tree = ast.parse(file.read_text())
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        used[file.name] = {
            name
            for name in names
            if name.startswith("_") and name[1] != "_" and hasattr(Trainer, name)
        }
    assert used.pop(here.name) == set(METHODS)
    assert not {file: names for file, names in used.items() if names}
