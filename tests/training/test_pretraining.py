"""Pre-training on the Trainer: what is learnt, logged and written."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

import hf_bert_impl
from hf_bert_impl.training import pretraining
from hf_bert_impl.training.pretraining import pretrain
from hf_bert_impl.training.pretraining_model import build_config, build_model
from hf_bert_impl.training.pretraining_trainer import PretrainingTrainer
from hf_bert_impl.training.resumable_trainer import TrainingDiverged
from tests.training.cases import NO_DROPOUT, SIZES, Recipe, read_log, weights, write_text

STILL = SIZES | NO_DROPOUT


@pytest.mark.slow
def test_it_learns(options, tmp_path):
    """The words of a document, and whether two segments share them."""
    file = tmp_path / "long.txt"
    write_text(file, 300)
    steps = {"max_steps": 220, "batch_size": 16, "learning_rate": 4e-3, "dupe_factor": 3}
    # With dropout so small a model learns this or does not, by the seed.
    run = options(files=(str(file),), sizes=STILL, **steps, logging_steps=110, save_steps=1000)
    result = pretrain(run)
    assert result.statistics.unigram_entropy == pytest.approx(math.log(40), abs=0.05)
    # The words of the document give ln 8, and a random partner shares one in five.
    assert math.log(8) < result.validation["eval_mlm_loss"] < math.log(8) + 0.3
    assert result.validation["eval_nsp_accuracy"] > 0.75


def test_what_is_written(plain):
    run, result = plain
    files = {file.name for file in run.output.iterdir()}
    assert files == {
        *("config.json", "model.safetensors", "vocab.txt", "tokenizer.json"),
        *("tokenizer_config.json", "checkpoint-4", "checkpoint-8", "run.json"),
        *("training_log.jsonl", "tensorboard", "curves.png"),
    }
    log = [json.loads(line) for line in (run.output / "training_log.jsonl").open()]
    training = {entry["step"]: entry for entry in log if "mlm_loss" in entry}
    assert sorted(training) == [3, 4, 6, 8]  # every third, and at checkpoints
    names = {"mlm_loss", "mlm_accuracy", "perplexity", "nsp_loss", "nsp_accuracy"}
    for entry in training.values():
        assert names | {"tokens_per_second", "learning_rate"} <= set(entry)
        assert entry["loss"] == pytest.approx(entry["mlm_loss"] + entry["nsp_loss"], rel=0.02)
        assert entry["tokens_per_second"] > 0
    held_out = {entry["step"] for entry in log if "eval_mlm_loss" in entry}
    assert held_out == {5, 8}
    assert result.steps == 8
    assert (run.output / "curves.png").read_bytes().startswith(b"\x89PNG")
    # The model is plain BERT, for transformers too.
    ours = hf_bert_impl.BertForPreTraining.from_pretrained(run.output).eval()
    stock = AutoModelForMaskedLM.from_pretrained(run.output).eval()
    inputs = AutoTokenizer.from_pretrained(run.output)("w1 [MASK] w3", return_tensors="pt")
    assert torch.allclose(ours(**inputs).prediction_logits, stock(**inputs).logits, atol=1e-5)


@pytest.mark.parametrize(("warmup", "steps"), [(0.25, 2), (2, 2), (1, 1), (0, 0)])
def test_the_rate_rises_then_falls_to_0_along_a_line(options, warmup, steps):
    recipe = Recipe()
    pretrain(options(warmup=warmup, weight_decay=0.3), [recipe])
    rising, falling = [n / 2 for n in range(steps)], range(8 - steps, 0, -1)
    expected = [*rising, *(n / (8 - steps) for n in falling)]
    assert recipe.rates == pytest.approx(expected, abs=1e-6)
    for name, (decay, epsilon) in recipe.groups.items():  # as in BERT's own optimizer
        assert decay == (0 if name.endswith("bias") or "LayerNorm" in name else 0.3), name
        assert epsilon == 1e-6


def test_the_loss_is_the_models_own_however_a_step_is_divided(options, tmp_path, monkeypatch):
    seen, compute = [], PretrainingTrainer.compute_loss

    def recorded(self, model, inputs, *args, **kwargs):
        with torch.no_grad():
            seen.append(float(model(**inputs).loss))
        return compute(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(PretrainingTrainer, "compute_loss", recorded)
    logged, trained = [], []
    for parts in (1, 3):
        run = options(gradient_accumulation=parts, sizes=STILL, max_steps=2, logging_steps=1)
        run = dataclasses.replace(run, output=tmp_path / f"run{parts}")
        pretrain(run)
        logged.append([entry["loss"] for entry in read_log(run.output) if "mlm_loss" in entry])
        trained.append(weights(run.output))
    assert logged[0] == pytest.approx(seen[:2], abs=1e-5)
    assert logged[1] == pytest.approx(logged[0], abs=1e-5)
    assert_near_weights(*trained)


def assert_near_weights(one, other, limit=1e-5):
    assert max((one[key] - other[key]).abs().max() for key in one) <= limit


def test_evaluation_is_that_of_every_position(plain):
    """Scoring labelled tokens alone, without dropout, gives what a plain evaluation gives."""
    run, result = plain
    tokenizer = pretraining.load_tokenizer(run)
    _, data, _ = pretraining.prepare(run, tokenizer)
    masker = pretraining.Masker(tokenizer, run.masking_options())
    collate = pretraining.PretrainingCollator(masker, seed=run.seed, pad_id=0)
    batch = collate([data[index] for index in range(len(data))])
    with torch.no_grad():
        model = hf_bert_impl.BertForPreTraining.from_pretrained(run.output).eval()
        loss = float(model(**batch).loss)
    scores = result.validation
    assert scores["eval_mlm_loss"] + scores["eval_nsp_loss"] == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{"eval_steps": 2, "logging_steps": 1}, {"workers": 1}, {"gradient_checkpointing": True}],
)
def test_what_changes_nothing(plain, options, changes):
    """How often it is logged and evaluated, who loads the examples, and what is computed again."""
    run = options(**changes)
    pretrain(run)
    limit = 1e-5 if "gradient_checkpointing" in changes else 0
    assert_near_weights(weights(plain[0].output), weights(run.output), limit)


@pytest.mark.parametrize(
    "changes",
    [
        {"masking": "whole-word", "max_predictions": 3},
        {"streaming": True, "validation_share": 0.0},
        {"precision": "bfloat16"},
        {"max_steps": None, "epochs": 1.5},
    ],
)
def test_variations(options, changes):
    run = options(**changes)
    result = pretrain(run)
    assert result.steps == 8 or read_log(run.output)[-1]["epoch"] == pytest.approx(1.5, abs=0.1)
    assert 0 < result.training["mlm_loss"] < 5
    assert (result.statistics is None) == bool(changes.get("streaming"))


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm"])
def test_going_on_with_a_checkpoint(plain, options, objective):
    """Its weights, with the same heads or fewer."""
    changes = {"model": str(plain[0].output), "tokenizer": None, "sizes": {}}
    run = options(**changes, objective=objective, learning_rate=1e-12, weight_decay=0.0)
    result = pretrain(run)
    # Nothing was learnt, so the losses are those with which the first run ended.
    before = plain[1].validation["eval_mlm_loss"]
    assert result.validation["eval_mlm_loss"] == pytest.approx(before, abs=0.05)
    if objective == "mlm+nsp":
        assert result.validation["eval_mlm_loss"] == pytest.approx(before, abs=1e-6)


def test_configs(options, tmp_path):
    """Fields of a file, other sizes, and the tokenizer's pad token, which saves computation."""
    words = (Path(options().tokenizer) / "vocab.txt").read_text(encoding="utf-8").split()
    words.insert(3, words.pop(0))  # the pad token has the id 3
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(tmp_path)
    hf_bert_impl.BertConfig(vocab_size=48, **SIZES).save_pretrained(tmp_path / "config")
    of_a_file = {"config": str(tmp_path / "config"), "sizes": {"num_hidden_layers": 1}}
    for changes, expected in (({}, (45, 2, 30)), (of_a_file, (48, 1, 30))):
        config = build_config(options(**changes), tokenizer)
        assert (config.vocab_size, config.num_hidden_layers, config.hidden_size) == expected
        model = build_model(options(**changes), config)
        assert model.bert.embeddings.word_embeddings.padding_idx == config.pad_token_id == 3


def test_held_out_text_that_is_trained_on_is_noted(options, place, tmp_path, recwarn):
    copy, other = tmp_path / "copy.txt", tmp_path / "other.txt"
    copy.write_bytes((place / "text.txt").read_bytes())
    write_text(other, 20)
    held_out = (str(other), str(copy))
    pretrain(options(max_steps=1, validation=held_out, validation_share=0.0))
    notes = [str(one.message) for one in recwarn if "is training text too" in str(one.message)]
    assert [note.split()[0] for note in notes] == [str(copy)]


def test_a_run_stops_before_it_is_spoilt(options, monkeypatch):
    """The last good checkpoint stays, and the run resumes from it."""
    run, compute = options(gradient_accumulation=3), PretrainingTrainer.compute_loss

    def spoilt(self, *args, **rest):
        loss = compute(self, *args, **rest)
        if self.state.global_step == 6:
            loss.register_hook(lambda gradient: gradient * torch.nan)
        return loss

    words = r"the gradient of step 7 is nan.*Lower the learning rate \(0\.001\).*checkpoint-4"
    with monkeypatch.context() as patch, pytest.raises(TrainingDiverged, match=words) as caught:
        patch.setattr(PretrainingTrainer, "compute_loss", spoilt)
        pretrain(run)
    assert "\n" not in str(caught.value)
    assert [path.name for path in run.output.glob("*checkpoint*")] == ["checkpoint-4"]
    assert not (run.output / "model.safetensors").exists()
    assert pretrain(dataclasses.replace(run, resume=True)).steps == 8
    assert all(tensor.isfinite().all() for tensor in weights(run.output).values())
