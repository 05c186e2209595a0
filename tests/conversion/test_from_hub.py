"""Conversion from the hub: fetched files, comparisons, and errors."""

import json
import shutil

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from hf_bert_impl.conversion import convert, load_any
from hf_bert_impl.conversion.listing import list_tensors
from tests.conversion.cases import FIXTURES, assert_same
from tests.support.checkpoints import save_checkpoint
from tests.support.hub_server import HubServer

pytest.importorskip("h5py", reason="pip install -e '.[convert]'")
NAME = "someone/small-bert"
WHOLE = "model.safetensors"
WEIGHTS = {
    "safetensors": {WHOLE},
    "torch": {"pytorch_model.bin.index.json", "pytorch_model.bin"},
    "flax": {"flax_model.msgpack"},
    "h5": {"tf_model.h5"},
    "tf1": {"bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", "checkpoint"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model in every format."""
    place = tmp_path_factory.mktemp("formats")
    skipped = shutil.ignore_patterns("*.npz")
    whole = shutil.copytree(FIXTURES / "hf_safetensors", place / "whole", ignore=skipped)
    for kind, source in (("flax", "flax"), ("h5", "tf2_h5"), ("tf1", "tf1")):
        for name in WEIGHTS[kind] - {"checkpoint"}:
            shutil.copy(FIXTURES / source / name, whole)
    (whole / "checkpoint").write_text('model_checkpoint_path: "bert_model.ckpt"')
    tensors = load_file(whole / WHOLE)
    torch.save(tensors, whole / "pytorch_model.bin")
    index = json.dumps({"weight_map": dict.fromkeys(tensors, "pytorch_model.bin")})
    (whole / "pytorch_model.bin.index.json").write_text(index)
    (whole / "optimizer.pt").write_bytes(b"no weights")
    (whole / "onnx").mkdir()
    (whole / "onnx" / "model.onnx").write_bytes(b"neither")
    return whole


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The hub, on this machine."""
    with HubServer() as server:
        server.stand_in(monkeypatch, tmp_path)
        monkeypatch.chdir(tmp_path)
        yield server


def fetched(server):
    """The files that were asked for."""
    places = (request.partition("/resolve/")[2] for request in server.requests if "GET" in request)
    return {place.partition("/")[2] for place in places if place}


@pytest.mark.parametrize("kind", [None, *WEIGHTS])
def test_only_the_format_that_is_read_is_fetched(server, folder, tmp_path, kind):
    commit = server.add(NAME, folder)
    held = server.repositories[NAME].at("main")[1]
    held["model.fp16.safetensors.index.json"] = b'{"weight_map": {"a": "gone"}}'
    report = convert(NAME, tmp_path / "out", from_format=kind)
    assert report.passed
    assert report.source["name"] == NAME
    assert f"{NAME} of the hub, commit {commit}" in report.notes
    weights = WEIGHTS[kind or "safetensors"]
    assert fetched(server) & set().union(*WEIGHTS.values(), {"optimizer.pt"}) == weights
    assert not any("onnx" in file for file in fetched(server))
    local = convert(folder, tmp_path / "b", from_format=kind, check=False)
    assert local.source["format"] == (kind or "safetensors")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert_same(found, load_file(folder / "model.safetensors"))
    assert {"vocab.txt", "tokenizer.json"} & {file.name for file in (tmp_path / "out").iterdir()}


def test_all_formats_are_compared(server, folder, tmp_path):
    """Those of a folder, and with `check_all` those of the hub."""
    report = convert(folder, tmp_path / "out")
    compared = [check for check in report.rows if check.name.startswith("tensors compared")]
    assert len(compared) == 4 and all(check.passed for check in compared)
    spoilt = shutil.copytree(folder, tmp_path / "spoilt")
    tensors = load_file(spoilt / WHOLE)
    tensors["bert.encoder.layer.0.output.dense.weight"][0, 0] += 1e-3
    save_file(tensors, spoilt / WHOLE, {"format": "pt"})
    server.add(NAME, spoilt)
    words = r"not verified: tensors compared with .* 1\.0e-03: .* 1 differ, such as .*output"
    for source, options in (
        (spoilt, {}),
        (spoilt, {"check_all": True}),
        (NAME, {"check_all": True}),
    ):
        with pytest.raises(ValueError, match=words):
            convert(source, tmp_path / "none", **options)
    assert not (tmp_path / "none").exists()
    assert set().union(*WEIGHTS.values()) <= fetched(server)


def test_revisions(server, folder, tmp_path):
    earlier = save_checkpoint(tmp_path / "earlier", "BertModel", seed=1)
    first = server.add(NAME, earlier)
    server.add(NAME, folder)
    server.add(NAME, earlier, branch="old")
    for revision, place in ((first, earlier), ("old", earlier), (None, folder)):
        convert(NAME, tmp_path / "out", revision=revision, overwrite=True, check=False)
        assert (tmp_path / "out" / WHOLE).read_bytes() == (place / WHOLE).read_bytes()
    for name, revision, words in (
        (NAME, "never", r"has no revision 'never'\. Check `revision`"),
        (earlier, "old", r"`revision` needs a hub id, but .*earlier is a path"),
    ):
        with pytest.raises(ValueError, match=words):
            convert(name, tmp_path / "new", revision=revision)


def test_without_a_network_what_was_fetched_before_is_read(server, folder, monkeypatch):
    server.add(NAME, folder)
    expected = load_file(folder / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    assert torch.equal(load_any(NAME).bert.embeddings.word_embeddings.weight, expected)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert torch.equal(load_any(NAME).bert.embeddings.word_embeddings.weight, expected)
    listing = list_tensors(NAME)
    assert (listing["path"], listing["class"]) == (NAME, "BertForPreTraining")
    with pytest.raises(ValueError, match="someone/other is not a path, and the hub cannot be read"):
        load_any("someone/other")


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("someone/else", None, "no model on the hub has this name"),
        ("someone/gated", None, "someone/gated on the hub is gated"),
        ("someone/bare", None, "1 file .config.json. and no weights"),
        ("someone/alone", "onnx", "from_format is 'onnx'"),
        ("alone", "h5", r"alone has no h5 weights.*: safetensors\."),
    ],
)
def test_what_cannot_be_fetched(server, folder, tmp_path, name, kind, words):
    for place, files in (("bare", ["config.json"]), ("alone", ["config.json", WHOLE])):
        (tmp_path / place).mkdir()
        for file in files:
            shutil.copy(folder / file, tmp_path / place)
        server.add(f"someone/{place}", tmp_path / place)
    server.add("someone/gated", folder)
    server.repositories["someone/gated"].gated = True
    with pytest.raises(ValueError, match=words) as error:
        convert(name, tmp_path / "out", from_format=kind)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.hub
def test_every_format_of_the_first_bert(tmp_path):
    """Each of the repository's formats is the same model, and the outputs are transformers'."""
    report = convert("google-bert/bert-base-cased", tmp_path / "out", check_all=True)
    compared = [check for check in report.rows if check.name.startswith("tensors compared")]
    assert len(compared) >= 3
    assert all(check.passed for check in compared)
