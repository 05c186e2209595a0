"""What fine-tuning refuses, and that nothing is lost when it fails."""

import errno
import json
import shutil

import pytest
import safetensors
import torch
from torch import nn

import hf_bert_impl
from hf_bert_impl.model.loading import not_finite
from hf_bert_impl.tasks.base import Columns, Split
from hf_bert_impl.tasks.registry import make_task
from hf_bert_impl.training import finetuning_output, finetuning_trainer
from hf_bert_impl.training.finetuning import Sources, finetune
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from hf_bert_impl.training.finetuning_output import OutputFolder
from hf_bert_impl.training.finetuning_trainer import _weighted_loss, class_weights
from hf_bert_impl.training.resumable_trainer import TrainingDiverged

COLUMNS = Columns("0", None, "1")
#: As little as a model card needs.
REPORT = {
    "task": "regression",
    "model": "some/bert",
    "training": {
        **{"examples": {"train": 3}, "epochs": 1, "batch_size": 2, "learning_rate": 0.1},
        **{"seed": 0, "max_length": 9, "best_epoch": None},
    },
}


@pytest.fixture
def run(tiny_bert, tmp_path, sentiment):
    """Fine-tune on sentiment data; arguments replace sources and options."""
    files = {"train": sentiment("train", 40, 1), "validation": sentiment("dev", 13, 2)}

    def run(task=None, **changes):
        sources = files | {key: changes.pop(key) for key in (*files, "test") if key in changes}
        options = {"model": str(tiny_bert), "output": tmp_path / "out", "epochs": 1} | changes
        return finetune(
            task or make_task("classification", COLUMNS),
            Sources(**sources),
            FinetuningOptions(**options),
        )

    return run


@pytest.fixture
def write(tmp_path):
    def write(text, name="bad.tsv"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def assert_nothing_left(tmp_path):
    assert not [entry.name for entry in tmp_path.iterdir() if entry.name.startswith("out")]


@pytest.mark.parametrize("part", ["train", "validation", "test"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "bad.tsv is empty"),
        ("one field\n", "no column '1'"),
        ("a day\tB\na day\t \n", "line 2 of .* has the label ' '"),
    ],
)
def test_bad_files(run, write, tmp_path, part, text, words):
    with pytest.raises(ValueError, match=words):
        run(**{part: write(text)})
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize("part", ["validation", "test"])
def test_label_unseen_in_training(run, write, tmp_path, part):
    words = r"line 2 of .*bad.tsv has the label 'N', which no training example has; .*'B', 'G'"
    with pytest.raises(ValueError, match=words):
        run(**{part: write("a\tG\nb\tN\n")})
    assert_nothing_left(tmp_path)


def test_one_label_teaches_nothing(run, write):
    with pytest.raises(ValueError, match=r"1 label\(s\) \(G\); expected at least 2"):
        run(train=write("a\tG\nb\tG\n"))


@pytest.mark.parametrize(
    ("name", "columns", "text", "words"),
    [
        ("regression", COLUMNS, "a\thigh\n", "label 'high'; expected a number"),
        ("regression", COLUMNS, "a\tinf\n", "label 'inf'; expected a number"),
        ("regression", COLUMNS, "a\t1\nb\tnan\n", "line 2 of .*bad.tsv has the label 'nan'"),
        ("regression", COLUMNS, "a\t3e38\n", "'3e38'; .* from -1,000,000,000 to 1,000,000,000"),
        ("multiple-choice", Columns("0", "0,1", "2"), "a\tb\t2\n", "2 choice.* the label '2'"),
        ("multiple-choice", Columns("0", "0,1", "2"), "a\tb\tB\n", "from 0; mend it"),
        ("token-classification", Columns("0", None, "1"), "a b\tO\n", "2 words and 1 tags"),
    ],
)
def test_labels_of_the_wrong_kind(run, write, name, columns, text, words):
    with pytest.raises(ValueError, match=words):
        run(make_task(name, columns), train=write(text))


def test_json_of_the_wrong_kind(run, write):
    def columns(name):
        return make_task(name, Columns("text", "more" if name == "multiple-choice" else None))

    for name, record, words in (
        ("regression", {"text": "a", "label": 10**400}, "the label 1000"),
        ("classification", {"text": 3, "label": "a"}, r"'3' \(int\) for a text"),
        ("classification", {"text": "a", "label": None}, "the label None"),
        ("token-classification", {"text": ["a"], "tags": "O O"}, "1 words and 2 tags"),
        ("token-classification", {"text": [], "tags": []}, "has no words"),
        ("multiple-choice", {"text": "a", "more": ["b"], "label": 0}, r"1 choice\(s\)"),
    ):
        with pytest.raises(ValueError, match=words):
            run(columns(name), train=write(json.dumps(record), "bad.jsonl"))
    several = make_task("classification", multi_label=True)
    with pytest.raises(ValueError, match="the label 3; expected a list of names"):
        run(several, train=write(json.dumps({"text": "a", "label": 3}), "bad.jsonl"))
    unequal = [{"text": "a", "more": ["b"] * n, "label": 0} for n in (2, 3)]
    with pytest.raises(ValueError, match="has 3 choices; expected 2 as in"):
        file = write(json.dumps(unequal), "bad.json")
        run(columns("multiple-choice"), train=file, validation=None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "epochs is 0; expected a number above 0 to 1,000,000; change it"),
        ({"batch_size": 0}, "batch_size is 0; expected a whole number from 1 to 1,000,000"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; expected a number above 0 to 1;"),
        ({"warmup": 1}, "warmup is 1; expected a number from 0 to below 1"),
        ({"early_stopping": 0}, "early_stopping is 0"),
        ({"seeds": (3, 3)}, "no two alike"),
        ({"seeds": (2**32,)}, "from 0 to 4,294,967,295 each"),
        ({"seeds": ()}, "the seeds are"),
        ({"max_length": 44}, "max_length is 44; expected 5 to 43"),
        ({"early_stopping": 1, "validation": None}, "early stopping has no validation data"),
        ({"class_weights": "X=2"}, "class weight is 'X=2'; expected 'balanced', or NAME=WEIGHT"),
        ({"class_weights": "B=-1"}, "expected numbers from 0"),
        ({"class_weights": "B=nan"}, "expected numbers from 0"),
        ({"class_weights": "B=1e300"}, "expected numbers from 0 to 1,000,000"),
    ],
)
def test_bad_options(run, tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        run(**options)
    assert_nothing_left(tmp_path)


def test_bad_tasks():
    with pytest.raises(ValueError, match="the task is 'parsing'; expected one of classification"):
        make_task("parsing")
    with pytest.raises(ValueError, match="regression has no multi-label form"):
        make_task("regression", multi_label=True)
    with pytest.raises(ValueError, match="doc_stride was given for regression"):
        make_task("regression", doc_stride=3)
    with pytest.raises(ValueError, match="no columns of choices"):
        make_task("multiple-choice")
    with pytest.raises(ValueError, match="question answering was given columns"):
        make_task("question-answering", COLUMNS)


def test_head_of_another_size_is_new_and_a_broken_body_is_refused(run, tiny_bert, tmp_path):
    folder = tmp_path / "three"
    model = hf_bert_impl.BertForSequenceClassification.from_pretrained(tiny_bert, num_labels=3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_bytes((tiny_bert / "vocab.txt").read_bytes())
    assert run(model=str(folder))["labels"] == ["B", "G"]
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.bias"]
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 of BERT's weights.*layer.1.output.dense.bias"):
        run(model=str(folder), output=tmp_path / "other")


# --- the output folder ------------------------------------------------------------------------


def test_output_is_replaced_only_when_asked(run, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    run()  # an empty folder is as good as none
    (out / "mine").write_text("kept")
    with pytest.raises(ValueError, match=r"out exists and has files in it; .*`overwrite=True`"):
        run()
    assert (out / "mine").read_text() == "kept"
    run(overwrite=True)
    assert not (out / "mine").exists()
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith("out")] == ["out"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file is a file; expected a folder"):
        run(output=tmp_path / "file")


def test_output_around_an_input_is_refused(run, tmp_path, tiny_bert):
    for output in (tmp_path, tiny_bert, tiny_bert.parent):
        with pytest.raises(ValueError, match=r"lies in the output .* choose another name"):
            run(output=output, overwrite=True)
    assert (tiny_bert / "vocab.txt").is_file()


def test_an_input_in_what_a_stopped_run_left_is_refused(run, tmp_path, tiny_bert):
    """With overwrite that would be deleted before it is read."""
    model = tmp_path / "out.unfinished" / "seed-1" / "model"
    shutil.copytree(tiny_bert, model)
    with pytest.raises(ValueError, match=r"model lies in the output .*out.unfinished"):
        run(model=str(model), overwrite=True)
    (tmp_path / "out").mkdir()
    data = make_task("classification", COLUMNS, f"{tmp_path / 'out'}:plain")
    with pytest.raises(ValueError, match="out lies in the output"):
        run(data, overwrite=True)
    assert (model / "vocab.txt").is_file()


def test_only_the_output_is_replaced(run, tmp_path):
    for name in ("out", "out.replaced"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("mine")
    run(overwrite=True)
    assert (tmp_path / "out.replaced" / "mine").read_text() == "mine"
    assert not (tmp_path / "out" / "mine").exists()
    assert not list(tmp_path.glob(".out*"))


def test_a_label_that_no_file_can_hold(run, write, tmp_path):
    """Half a surrogate pair: said before anything is trained."""
    records = [{"text": "a day", "label": label} for label in ("\ud800", "good")]
    file = write("".join(json.dumps(record) + "\n" for record in records), "bad.jsonl")
    words = r"'label' in line 1 of .*bad.jsonl has half a surrogate pair"
    for task in (make_task("classification"), make_task("classification", multi_label=True)):
        with pytest.raises(ValueError, match=words):
            run(task, train=file)
    assert_nothing_left(tmp_path)


def test_what_fails_leaves_the_old_output(run, tmp_path, monkeypatch):
    run()
    before = (tmp_path / "out" / "metrics.json").read_text()

    def interrupt(*args, **rest):
        raise KeyboardInterrupt

    monkeypatch.setattr(finetuning_trainer.FinetuningTrainer, "training_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(overwrite=True)
    assert (tmp_path / "out" / "metrics.json").read_text() == before
    assert not (tmp_path / "out.unfinished").exists()


@pytest.mark.parametrize("kind", ["safetensors", "os"])
def test_full_disk_leaves_the_best_checkpoint(run, tmp_path, monkeypatch, tiny_bert, kind):
    """The third checkpoint does not fit: the second is whole, and the error says where."""
    save, accuracies = hf_bert_impl.BertPreTrainedModel.save_pretrained, iter([0.1, 0.2, 0.3])

    def fill(self, folder, *args, **rest):
        save(self, folder, *args, **rest)
        if "checkpoint-6" in str(folder):
            if kind == "os":
                raise OSError(errno.ENOSPC, "No space left on device")
            raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    task = make_task("classification", COLUMNS)
    monkeypatch.setattr(task, "score", lambda *data: {"accuracy": next(accuracies)})
    monkeypatch.setattr(hf_bert_impl.BertPreTrainedModel, "save_pretrained", fill)
    with pytest.raises(OSError, match=r"no space is left .* is whole in .*checkpoint-4") as caught:
        run(task, epochs=4, batch_size=20)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    kept = [file.parent for file in tmp_path.rglob("model.safetensors") if "out" in str(file)]
    assert [folder.name for folder in kept] == ["checkpoint-4"]
    hf_bert_impl.BertForSequenceClassification.from_pretrained(kept[0])
    # The next run does not throw it away unasked.
    with pytest.raises(ValueError, match=r"out.unfinished exists and has the checkpoint of a run"):
        run()


def test_full_disk_at_the_very_end_keeps_the_model(tmp_path, monkeypatch):
    folder = OutputFolder(tmp_path / "out")

    def fill(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(finetuning_output, "write_report", fill)
    with pytest.raises(OSError, match=r"whole in .*out.unfinished.seed.model"), folder as work:
        (work / "seed" / "model").mkdir(parents=True)
        folder.keep(work / "seed" / "model")
        folder.finish(REPORT)
    assert (tmp_path / "out.unfinished" / "seed" / "model").is_dir()
    with pytest.raises(OSError, match="nothing was written"), OutputFolder(tmp_path / "b"):
        fill()
    assert not list(tmp_path.glob("b*"))


def spoil(monkeypatch, step):
    """The loss of a step is infinite."""
    compute = finetuning_trainer.FinetuningTrainer.compute_loss

    def compute_loss(self, *args, **kwargs):
        loss = compute(self, *args, **kwargs)
        return loss * torch.inf if self.state.global_step == step - 1 else loss

    monkeypatch.setattr(finetuning_trainer.FinetuningTrainer, "compute_loss", compute_loss)


def test_a_loss_that_is_not_finite_spoils_nothing(run, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    spoil(monkeypatch, 2)
    with pytest.raises(TrainingDiverged, match=r"the loss of step 2 is inf; .* is 5e-05$"):
        run(batch_size=20, overwrite=True)
    assert [file.name for file in tmp_path.glob("*out*")] == ["out"]
    assert (out / "mine").read_text() == "mine"


def test_the_best_model_outlives_a_loss_that_is_not_finite(run, tmp_path, monkeypatch):
    spoil(monkeypatch, 3)
    words = r"the loss of step 3 is inf; .*; the best model so far is whole in .*checkpoint-2$"
    with pytest.raises(TrainingDiverged, match=words) as caught:
        run(batch_size=20, epochs=3)
    kept = str(caught.value).rpartition(" in ")[2]
    model = hf_bert_impl.BertForSequenceClassification.from_pretrained(kept)
    assert not not_finite(model)


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


def test_folder_is_renamed_whole(tmp_path):
    folder = OutputFolder(tmp_path / "a" / "out")
    with folder as work:
        for name in ("first", "second"):
            (work / name / "model").mkdir(parents=True)
            (work / name / "model" / "x").write_text(name)
            folder.keep(work / name / "model")
        assert [entry.name for entry in work.iterdir()] == ["second"]
        assert not (tmp_path / "a" / "out").exists()
        folder.finish(REPORT)
    assert (tmp_path / "a" / "out" / "x").read_text() == "second"
    assert len(list((tmp_path / "a").iterdir())) == 1


# --- class weights ----------------------------------------------------------------------------


def test_balanced_weights_give_each_class_the_same_say():
    task = make_task("classification")
    task.labels = ["a", "b", "c"]
    split = Split([], [{"labels": n} for n in (0, 0, 0, 0, 1, 1, 2)])
    found = class_weights("balanced", task, split)
    assert (found * torch.tensor([4, 2, 1])).tolist() == pytest.approx([7 / 3] * 3)
    assert class_weights(None, task, split) is None
    named = class_weights("c=3", task, split)
    assert (named / named[0]).tolist() == pytest.approx([1, 1, 3])
    assert (named * torch.tensor([4, 2, 1])).sum() == pytest.approx(7)
    with pytest.raises(ValueError, match="regression, which has no classes"):
        class_weights("balanced", make_task("regression"), split)


def test_weights_of_tags_and_of_several_labels():
    tags = make_task("token-classification")
    tags.labels = ["O", "B-x"]
    split = Split([], [{"token_labels": [-100, 0, 0, 1, -100]}, {"token_labels": [-100, 0]}])
    assert class_weights("balanced", tags, split).tolist() == pytest.approx([4 / 6, 4 / 2])
    several = make_task("classification", multi_label=True)
    several.labels = ["a", "b"]
    split = Split([], [{"labels": row} for row in ([1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0])])
    assert class_weights("balanced", several, split).tolist() == pytest.approx([1 / 3, 3])


def test_weighted_loss_is_torchs():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 4, generator=generator)
    labels = torch.randint(0, 4, (3, 5), generator=generator)
    labels[1, 2:] = -100
    weights = torch.tensor([0.5, 1.0, 2.0, 0.1])
    config = hf_bert_impl.BertConfig(problem_type="single_label_classification")
    loss = _weighted_loss(weights, config)
    total = nn.functional.cross_entropy(
        logits.view(-1, 4), labels.view(-1), weight=weights, reduction="sum"
    )
    assert loss({"logits": logits}, labels) == pytest.approx(float(total) / 12)
    # Halves of a step add up to the whole.
    parts = [loss({"logits": logits[rows]}, labels[rows], 12) for rows in (slice(1), slice(1, 3))]
    assert float(sum(parts)) == pytest.approx(float(total) / 12)
    several = hf_bert_impl.BertConfig(problem_type="multi_label_classification")
    hot = (labels.clamp(min=0) % 2).float()[:, :4]
    expected = nn.BCEWithLogitsLoss(pos_weight=weights)(logits[:, 0], hot)
    assert _weighted_loss(weights, several)({"logits": logits[:, 0]}, hot) == pytest.approx(
        float(expected)
    )


def test_class_weights_move_the_predictions(run, tiny_bert, tmp_path, sentiment):
    test = sentiment("test", 40, 3)
    options = {"epochs": 1, "learning_rate": 1e-3, "test": test}
    plain = run(**options)["test"]
    heavy = run(**options, class_weights="G=50", output=tmp_path / "heavy")["test"]
    assert heavy != plain
    assert heavy["accuracy"] < 0.7  # nearly everything is G now
