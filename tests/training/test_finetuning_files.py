"""Bad input of fine-tuning, refused before it trains, and its folder, which survives failures."""

import shutil

import pytest
import safetensors
import safetensors.torch
import torch

import hf_bert_impl
from hf_bert_impl.finite import not_finite
from hf_bert_impl.tasks.registry import make_task
from hf_bert_impl.training import finetuning_trainer
from hf_bert_impl.training.resumable_trainer import TrainingDiverged
from tests.training.cases import COLUMNS, assert_nothing_left


def test_head_of_another_size_is_new_and_a_broken_body_is_refused(run, tiny_bert, tmp_path):
    folder = tmp_path / "three"
    model = hf_bert_impl.BertForSequenceClassification.from_pretrained(tiny_bert, num_labels=3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_bytes((tiny_bert / "vocab.txt").read_bytes())
    assert run(model=str(folder))["labels"] == ["B", "G"]
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.bias"]
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 weight of BERT.*layer.1.output.dense.bias"):
        run(model=str(folder), output=tmp_path / "other")


# --- output --------------------------------------------------------------------------------------


def test_an_output_around_an_input_is_refused(run, tmp_path, tiny_bert):
    """With overwrite the input would be deleted before it is read."""
    model = tmp_path / "out.unfinished" / "seed-1" / "model"
    shutil.copytree(tiny_bert, model)
    with pytest.raises(ValueError, match=r"model is in the output .*out.unfinished"):
        run(model=str(model), overwrite=True)
    (tmp_path / "out").mkdir()
    data = make_task("classification", COLUMNS, f"{tmp_path / 'out'}:plain")
    with pytest.raises(ValueError, match="out is in the output"):
        run(data, overwrite=True)
    assert (model / "vocab.txt").is_file()


def test_a_loss_that_is_not_finite_leaves_the_old_output(run, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    spoil(monkeypatch, 2)
    words = r"the loss of step 2 is inf\. .* \(5e-05\)\. No model was written$"
    with pytest.raises(TrainingDiverged, match=words):
        run(batch_size=20, overwrite=True)
    assert (tmp_path / "out" / "mine").read_text() == "mine"
    assert [file.name for file in tmp_path.glob("*out*")] == ["out"]


def test_full_disk_leaves_the_best_checkpoint(run, tmp_path, monkeypatch):
    """The third checkpoint does not fit; the error names the complete second one."""
    save, accuracies = hf_bert_impl.BertPreTrainedModel.save_pretrained, iter([0.1, 0.2, 0.3])

    def fill(self, folder, *args, **rest):
        save(self, folder, *args, **rest)
        if "checkpoint-6" in str(folder):
            raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    task = make_task("classification", COLUMNS)
    monkeypatch.setattr(type(task), "score", lambda *data: {"accuracy": next(accuracies)})
    monkeypatch.setattr(hf_bert_impl.BertPreTrainedModel, "save_pretrained", fill)
    with pytest.raises(OSError, match=r"No space left .* resume: checkpoint-4 is compl") as caught:
        run(task, epochs=4, batch_size=20)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    kept = [file.parent for file in tmp_path.rglob("model.safetensors") if "out" in str(file)]
    assert [folder.name for folder in kept] == ["checkpoint-4"]
    hf_bert_impl.BertForSequenceClassification.from_pretrained(kept[0])
    # The next run does not throw it away unasked.
    with pytest.raises(ValueError, match=r"out.unfinished has a run to continue with"):
        run()


def spoil(monkeypatch, step):
    """The loss of a step is infinite."""
    compute = finetuning_trainer.FinetuningTrainer.compute_loss

    def compute_loss(self, *args, **kwargs):
        loss = compute(self, *args, **kwargs)
        return loss * torch.inf if self.state.global_step == step - 1 else loss

    monkeypatch.setattr(finetuning_trainer.FinetuningTrainer, "compute_loss", compute_loss)


def test_the_best_model_outlives_a_loss_that_is_not_finite(run, monkeypatch):
    spoil(monkeypatch, 3)
    words = r"the loss of step 3 is inf\. .* The best model so far is in .*checkpoint-2$"
    with pytest.raises(TrainingDiverged, match=words) as caught:
        run(batch_size=20, epochs=3)
    kept = str(caught.value).rpartition(" in ")[2]
    assert not not_finite(hf_bert_impl.BertForSequenceClassification.from_pretrained(kept))


def test_weights_that_are_not_finite_are_not_saved(run, tmp_path, monkeypatch):
    """Nor scored, also where no validation data ask for it."""

    def spoil_weights(self, *args, **rest):
        loss = train(self, *args, **rest)
        self.model.classifier.weight.data[0, 0] = torch.nan  # the gradient is there already
        return loss

    train = finetuning_trainer.FinetuningTrainer.training_step
    monkeypatch.setattr(finetuning_trainer.FinetuningTrainer, "training_step", spoil_weights)
    for changes in ({}, {"validation": None}):
        words = "after step 1 classifier.weight is not finite"
        with pytest.raises(TrainingDiverged, match=words):
            run(batch_size=40, **changes)
        assert_nothing_left(tmp_path)
