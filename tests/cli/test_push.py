"""`hf-bert push`, and `--push-to-hub` of the commands that train: what is written and said."""

import json
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub import ModelCard

from hf_bert_impl.hub import pushing, uploading
from hf_bert_impl.training import launch
from tests.cli.cases import RUNS, one_error_line
from tests.support.checkpoints import JAPANESE, LETTERS, name_tokenizer
from tests.support.damage import fields

pytestmark = [pytest.mark.usefixtures("hasty", "unchecked")]


def test_what_the_check_finds(hf_bert, save_tiny, tmp_path, unchecked):
    """What does not load is not left behind. Tensors that are left out are named."""
    unchecked(False)
    source, folder = save_tiny("BertForPreTraining"), tmp_path / "a" / "b"
    result = hf_bert("push", source, "me/tiny", "--dry-run", folder)
    assert result.status == 1 and "so so" in result.out
    assert not (tmp_path / "a").exists()
    unchecked(True)
    fields("config.json", architectures=["BertForMaskedLM"])(source)
    printed = hf_bert("push", source, "me/tiny", "--dry-run", folder, "--no-speed").printed
    assert "not published" in printed and "bert.pooler.dense.bias" in printed


def test_what_is_not_published(hf_bert, save_tiny, tmp_path):
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
    monkeypatch.setattr(pushing, "open_repository", Mock(side_effect=KeyboardInterrupt))
    result = hf_bert("push", save_tiny(), "me/tiny")
    assert result.status == 130
    assert "run the same command again" in result.err


def test_what_the_card_lacks_is_said_in_one_line(hf_bert, save_tiny, tmp_path):
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
def test_a_tokenizer_of_another_class_is_copied(hf_bert, save_tiny, tmp_path, settings):
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
def test_pushed_after_training(hf_bert, place, monkeypatch, name):
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
