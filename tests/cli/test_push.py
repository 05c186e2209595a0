"""`hf-bert push`: what it writes, and what it refuses."""

import json

import pytest
import torch
import transformers
from huggingface_hub import ModelCard, constants

import hf_bert_impl
from hf_bert_impl.hub import load_check, pushing
from hf_bert_impl.hub.load_check import LoadingReport, LoadingRow
from tests.checkpoints import JAPANESE, LETTERS, name_tokenizer
from tests.damage import fields

pytestmark = [pytest.mark.usefixtures("hasty")]


@pytest.fixture
def one_head(monkeypatch):
    """Only one Auto class is tried: tests/hub tries all of them."""
    few = {"AutoModelForMaskedLM": "BertForMaskedLM"}
    monkeypatch.setattr(load_check, "MODEL_CLASSES", few)


@pytest.fixture
def unchecked(monkeypatch):
    """Says of what is written what it is told to say, without looking."""

    def say(passed):
        row = LoadingRow("AutoModelForMaskedLM", "BertForMaskedLM", "x", "y", 0.5, passed, "so so")
        versions = {"hf_bert_impl": "0", "torch": "2", "transformers": "5"}
        monkeypatch.setattr(
            pushing, "check_loading", lambda *args, **options: LoadingReport([row], versions)
        )

    return say


def test_a_dry_run_writes_what_others_load(hf_bert, save_tiny, tmp_path, one_head):
    source, folder = save_tiny(), tmp_path / "new" / "repository"
    result = hf_bert("push", source, "me/tiny", "--dry-run", folder, "--license", "mit")
    assert result.status == 0, result.err
    words = " ".join(result.out.split())
    assert "AutoModelForMaskedLM transformers this code" in words
    assert "times as fast" in words
    assert f"{folder}: " in words
    ours = hf_bert_impl.BertForMaskedLM.from_pretrained(source)
    stock = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    assert type(stock) is transformers.BertForMaskedLM
    batch = transformers.AutoTokenizer.from_pretrained(folder)(["nice to meet you"] * 2)
    ids = torch.tensor(batch["input_ids"])
    with torch.no_grad():
        assert torch.allclose(ours(ids).logits, stock(ids).logits, atol=1e-5)
    data = ModelCard.load(folder / "README.md").data.to_dict()
    assert data["license"] == "mit"
    assert data["pipeline_tag"] == "fill-mask"
    assert (folder / "modeling_bert.py").is_file()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["repository"]


def test_json_without_code(hf_bert, save_tiny, tmp_path, one_head):
    folder = tmp_path / "repository"
    result = hf_bert(
        "push", save_tiny(tokenizer=False), "tiny", "--dry-run", folder, "--no-code", "--json"
    )
    assert result.status == 0, result.err
    found = json.loads(result.out)
    assert found["place"] == str(folder)
    assert found["loading"]["passed"] is True
    assert found["loading"]["rows"][0]["trusted"] is None
    assert found["speed"][0]["ratio"] > 0
    assert found["left_out"] == []
    assert not any(name.endswith(".py") for name in found["files"])
    assert {path.name for path in folder.iterdir()} == set(found["files"])


def test_what_does_not_load_is_not_left_behind(hf_bert, save_tiny, tmp_path, unchecked):
    unchecked(False)
    result = hf_bert("push", save_tiny(), "me/tiny", "--dry-run", tmp_path / "a" / "b")
    assert result.status == 1
    assert "so so" in result.out
    assert not (tmp_path / "a").exists()
    result = hf_bert("push", tmp_path / "BertForMaskedLM", "me/tiny", "--dry-run", "x", "--json")
    assert json.loads(result.out)["passed"] is False


def test_tensors_that_are_left_out_are_named(hf_bert, save_tiny, tmp_path, unchecked):
    unchecked(True)
    source = save_tiny("BertForPreTraining")
    fields("config.json", architectures=["BertForMaskedLM"])(source)
    result = hf_bert("push", source, "me/tiny", "--dry-run", tmp_path / "out")
    assert result.status == 0, result.err
    assert "left out" in result.out
    assert "bert.pooler.dense.bias" in result.out




def test_random_weights_are_not_published(hf_bert, one_error_line, save_tiny, tmp_path):
    source = save_tiny("BertModel")
    fields("config.json", architectures=["BertForTokenClassification"])(source)
    result = hf_bert("push", source, "me/tiny", "--dry-run", tmp_path / "out")
    one_error_line(result, "lacks 2 weights of BertForTokenClassification", "random numbers")
    assert not (tmp_path / "out").exists()


def test_a_hub_out_of_reach_is_one_line(hf_bert, one_error_line, save_tiny, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    result = hf_bert("push", save_tiny(), "me/tiny")
    one_error_line(result, "http://127.0.0.1:9 cannot be reached", "HF_ENDPOINT")


def test_an_interrupt_says_what_to_do(hf_bert, save_tiny, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(pushing, "open_repository", interrupted)
    result = hf_bert("push", save_tiny(), "me/tiny")
    assert result.status == 130
    assert "the same command goes on" in result.err


def test_what_the_card_lacks_is_said_in_one_line(hf_bert, save_tiny, tmp_path, unchecked):
    unchecked(True)
    source, options = save_tiny(), ("--no-speed", "--json")
    result = hf_bert("push", source, "me/a", "--dry-run", tmp_path / "a", *options)
    assert result.status == 0, result.err
    report = json.loads(result.out)
    assert report["speed"] == []
    assert report["missing"] == ["license", "language", "base_model"]
    assert "--license --language --base-model" in result.err
    assert "## Speed" not in (tmp_path / "a" / "README.md").read_text()
    given = ("--license", "mit", "--language", "en,nl", "--base-model", "google-bert/base")
    result = hf_bert("push", source, "me/b", "--dry-run", tmp_path / "b", *given, *options)
    assert (result.status, result.err) == (0, "")
    data = ModelCard.load(tmp_path / "b" / "README.md").data.to_dict()
    assert data["language"] == ["en", "nl"]


@pytest.mark.parametrize("settings", [JAPANESE, {"tokenizer_class": "DistilBertTokenizer"}])
def test_a_tokenizer_of_another_class_is_copied(hf_bert, save_tiny, tmp_path, one_head, settings):
    source, folder = save_tiny(words=LETTERS), tmp_path / "repository"
    named = settings["tokenizer_class"]
    rest = {name: value for name, value in settings.items() if name != "tokenizer_class"}
    name_tokenizer(source, rest, {"tokenizer_class": named})
    result = hf_bert("push", source, "me/tiny", "--dry-run", folder, "--no-speed")
    assert result.status == 0, result.err
    for name in ("vocab.txt", "tokenizer_config.json"):
        assert (folder / name).read_bytes() == (source / name).read_bytes()
    assert json.loads((folder / "config.json").read_text())["tokenizer_class"] == named


def test_a_tokenizer_with_code_is_not_pushed(hf_bert, save_tiny, tmp_path, one_head):
    settings = {"tokenizer_class": "BertTokenizer", "auto_map": {"AutoTokenizer": ["own.X", None]}}
    source = name_tokenizer(save_tiny(), settings)
    (source / "own.py").write_text("raise SystemExit('the code ran')")
    result = hf_bert("push", source, "me/tiny", "--dry-run", tmp_path / "out", "--no-speed")
    assert result.status == 2 and "has code of its own (own.X)" in result.err
