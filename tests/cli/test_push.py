"""`hf-bert push`, and `--push-to-hub` of the commands that train: what is written and said."""

import json

import pytest
import torch
from huggingface_hub import ModelCard

from hf_bert_impl.hub import pushing, uploading
from hf_bert_impl.parity import ParityReport, ParityRow
from hf_bert_impl.training import launch
from tests.cli.cases import RUNS
from tests.support.checkpoints import JAPANESE, LETTERS, name_tokenizer
from tests.support.damage import fields

pytestmark = [pytest.mark.usefixtures("hasty")]


@pytest.fixture
def unchecked(monkeypatch):
    """Says of what is written what it is told to say, without looking."""

    def say(passed):
        row = ParityRow("as it is", "logits", 0.5, 0.5, 0.5, 1.0, passed, None, "so so")
        monkeypatch.setattr(pushing, "check_loading", lambda *args, **options: ParityReport([row]))

    return say


def test_what_does_not_load_is_not_left_behind(hf_bert, save_tiny, tmp_path, unchecked):
    unchecked(False)
    result = hf_bert("push", save_tiny(), "me/tiny", "--dry-run", tmp_path / "a" / "b")
    assert result.status == 1
    assert "so so" in result.out
    assert not (tmp_path / "a").exists()


def test_tensors_that_are_left_out_are_named(hf_bert, save_tiny, tmp_path, unchecked):
    unchecked(True)
    source = save_tiny("BertForPreTraining")
    fields("config.json", architectures=["BertForMaskedLM"])(source)
    result = hf_bert("push", source, "me/tiny", "--dry-run", tmp_path / "out", "--no-speed")
    assert result.status == 0, result.err
    assert "not published" in result.out
    assert "bert.pooler.dense.bias" in result.out


def test_what_is_not_published(hf_bert, one_error_line, save_tiny, tmp_path, unchecked):
    """Random weights, and a tokenizer's own code, which does not run."""
    source, folder = save_tiny("BertModel"), tmp_path / "out"
    fields("config.json", architectures=["BertForTokenClassification"])(source)
    result = hf_bert("push", source, "me/tiny", "--dry-run", folder)
    one_error_line(result, "lacks 2 weights of BertForTokenClassification", "random")
    settings = {"tokenizer_class": "BertTokenizer", "auto_map": {"AutoTokenizer": ["own.X", None]}}
    source = name_tokenizer(save_tiny(), settings)
    (source / "own.py").write_text("raise SystemExit('the code ran')")
    result = hf_bert("push", source, "me/tiny", "--dry-run", folder, "--no-speed")
    one_error_line(result, "has code of its own (own.X)")
    assert not folder.exists()


def test_an_interrupt(hf_bert, save_tiny, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(pushing, "open_repository", interrupted)
    result = hf_bert("push", save_tiny(), "me/tiny")
    assert result.status == 130
    assert "run the same command again" in result.err


def test_what_the_card_lacks_is_said_in_one_line(hf_bert, save_tiny, tmp_path, unchecked):
    unchecked(True)
    source = save_tiny()
    options = ("--no-speed", "--no-code", "--json", "--dry-run")
    result = hf_bert("push", source, "me/a", *options, tmp_path / "a")
    report = result.report
    assert (report["speed"], report["left_out"]) == ([], [])
    assert report["missing"] == ["license", "language", "base_model"]
    assert "--license --language --base-model" in result.err
    assert {path.name for path in (tmp_path / "a").iterdir()} == set(report["files"])
    assert not any(name.endswith(".py") for name in report["files"])
    given = ("--license", "mit", "--language", "en, nl", "--base-model", "google-bert/base")
    result = hf_bert("push", source, "me/b", *given, *options, tmp_path / "b")
    assert (result.status, result.err) == (0, "")
    data = ModelCard.load(tmp_path / "b" / "README.md").data.to_dict()
    assert (data["license"], data["language"]) == ("mit", ["en", "nl"])


@pytest.mark.parametrize("settings", [JAPANESE, {"tokenizer_class": "DistilBertTokenizer"}])
def test_a_tokenizer_of_another_class_is_copied(hf_bert, save_tiny, tmp_path, unchecked, settings):
    unchecked(True)
    source, folder = save_tiny(words=LETTERS), tmp_path / "repository"
    named = settings["tokenizer_class"]
    rest = {name: value for name, value in settings.items() if name != "tokenizer_class"}
    name_tokenizer(source, rest, {"tokenizer_class": named})
    assert hf_bert("push", source, "me/tiny", "--dry-run", folder, "--no-speed").status == 0
    for name in ("vocab.txt", "tokenizer_config.json"):
        assert (folder / name).read_bytes() == (source / name).read_bytes()
    assert json.loads((folder / "config.json").read_text())["tokenizer_class"] == named


# --- after training --------------------------------------------------------------------------

#: Commands that push a model, and its class.
TRAINED = {"finetune": "BertForSequenceClassification", "pretrain": "BertForPreTraining"}


@pytest.mark.parametrize("name", TRAINED)
def test_pushed_after_training(hf_bert, one_error_line, place, monkeypatch, name):
    """The place is looked at before; the model, its tokenizer and its folder go there."""
    calls, out = [], place / "new" / "out"
    if name == "finetune":  # its launcher restarts it
        store = torch.distributed.HashStore()
        store.set(f"output/{out}", "")
        monkeypatch.setattr(launch, "agent_store", lambda: store)
        (place / "new/out.unfinished/model").mkdir(parents=True)
    command = (*RUNS[name].split(), "--push-to-hub", "me/my-bert")
    with monkeypatch.context() as patch:
        patch.setattr(uploading, "get_token", lambda: None)
        one_error_line(hf_bert(*command), "There is no token", "hf auth login")
    assert not out.exists()

    def reserve(name, class_name):
        assert not out.exists()
        calls.append((name, class_name))

    def push(model, name, *, tokenizer, source):
        assert source.absolute() == out and (out / "model.safetensors").is_file()
        assert len(tokenizer) == model.config.vocab_size
        calls.append((name, type(model).__name__))
        if calls[0][1] == TRAINED["pretrain"]:
            raise uploading.PushError("The hub answers 503. Wait.")

    monkeypatch.setattr(uploading, "reserve", reserve)
    monkeypatch.setattr(pushing, "push", push)
    result = hf_bert(*command)
    if name == "pretrain":
        one_error_line(result, "503", "It is complete", "hf-bert push")
    else:
        assert result.status == 0, result.err
    assert calls == [("me/my-bert", TRAINED[name])] * 2
    assert (out / "model.safetensors").is_file()
