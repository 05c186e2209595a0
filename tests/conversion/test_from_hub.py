"""Conversion from the hub: what is fetched, what is compared, and what is said when it fails."""

import json
import shutil

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from hf_bert_impl.conversion import convert, load_any
from hf_bert_impl.conversion.from_hub import is_hub_id
from hf_bert_impl.conversion.listing import list_tensors
from tests.checkpoints import save_checkpoint
from tests.conversion.cases import assert_same
from tests.hub_server import HubServer

pytest.importorskip("h5py", reason="pip install -e '.[convert]'")
NAME = "someone/small-bert"
WEIGHTS = {
    "safetensors": {"model.safetensors"},
    "torch": {"pytorch_model.bin"},
    "flax": {"flax_model.msgpack"},
    "h5": {"tf_model.h5"},
    "tf1": {"bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", "checkpoint"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model in every format."""
    place = tmp_path_factory.mktemp("formats")
    whole = save_checkpoint(place / "safetensors", "BertModel")
    for kind in ("torch", "flax", "h5", "tf1"):
        convert(whole, place / kind, to=kind, check=False)
        for name in WEIGHTS[kind]:
            shutil.copy(place / kind / name, whole)
    (whole / "optimizer.pt").write_bytes(b"no weights")
    (whole / "onnx").mkdir()
    (whole / "onnx" / "model.onnx").write_bytes(b"neither")
    return whole


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The hub, on this machine."""
    with HubServer() as server:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.address)
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.chdir(tmp_path)
        yield server


def fetched(server):
    """The files that were asked for."""
    found = (request.partition("/resolve/") for request in server.requests)
    return {after.partition("/")[2] for before, _, after in found if before.startswith("GET")} - {
        ""
    }


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
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert_same(found, load_file(folder / "model.safetensors"))
    assert (tmp_path / "out" / "vocab.txt").is_file() or (
        tmp_path / "out" / "tokenizer.json"
    ).is_file()


def test_all_formats_are_compared(server, folder, tmp_path):
    server.add(NAME, folder)
    report = convert(NAME, tmp_path / "out", check_all=True)
    beside = [check.name for check in report.checks if check.name.startswith("tensors beside")]
    assert len(beside) == 4
    assert set().union(*WEIGHTS.values()) <= fetched(server)

    spoilt = shutil.copytree(folder, tmp_path / "spoilt")
    tensors = load_file(spoilt / "model.safetensors")
    name = "encoder.layer.0.output.dense.weight"
    tensors[name][0, 0] += 1
    save_file(tensors, spoilt / "model.safetensors", {"format": "pt"})
    server.add("someone/spoilt", spoilt)
    for source in ("someone/spoilt", spoilt):
        with pytest.raises(ValueError, match=r"not verified: tensors beside .* 1 differ"):
            convert(source, tmp_path / "none", check_all=True)
    assert not (tmp_path / "none").exists()
    report = convert(spoilt, tmp_path / "told", from_format="h5")  # unasked, it is said
    assert any(check.passed is None for check in report.checks)
    assert torch.equal(
        load_file(tmp_path / "told" / "model.safetensors")[name],
        load_file(folder / "model.safetensors")[name],
    )


def test_revisions(server, folder, tmp_path):
    earlier = save_checkpoint(tmp_path / "earlier", "BertModel", seed=1)
    first = server.add(NAME, earlier)
    server.add(NAME, folder)
    server.add(NAME, earlier, branch="old")
    words = "embeddings.word_embeddings.weight"
    for revision, place in ((first, earlier), ("old", earlier), (None, folder)):
        convert(NAME, tmp_path / "out", revision=revision, overwrite=True, check=False)
        assert torch.equal(
            load_file(tmp_path / "out" / "model.safetensors")[words],
            load_file(place / "model.safetensors")[words],
        )
    with pytest.raises(ValueError, match=r"has no revision 'never'; .*check `revision`"):
        convert(NAME, tmp_path / "new", revision="never")
    with pytest.raises(ValueError, match=r"`revision` was given for .*earlier, which is a path"):
        convert(earlier, tmp_path / "new", revision="old")


def test_load_any_and_inspect(server, folder):
    server.add(NAME, folder)
    model = load_any(NAME)
    expected = load_file(folder / "model.safetensors")
    assert torch.equal(
        model.embeddings.word_embeddings.weight, expected["embeddings.word_embeddings.weight"]
    )
    listing = list_tensors(NAME)
    assert (listing["path"], listing["class"]) == (NAME, "BertModel")


def test_without_a_network_what_was_fetched_before_is_read(server, folder, tmp_path, monkeypatch):
    server.add(NAME, folder)
    convert(NAME, tmp_path / "first", check=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    convert(NAME, tmp_path / "second", check=False)
    first, second = (tmp_path / name / "model.safetensors" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    with pytest.raises(ValueError, match="someone/other, and the hub could not be read"):
        convert("someone/other", tmp_path / "third")


def test_what_cannot_be_fetched(server, folder, tmp_path):
    server.add(NAME, folder)
    server.add("someone/gated", folder)
    server.repositories["someone/gated"].gated = True
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text("{}")
    server.add("someone/bare", bare)
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / name, alone)
    server.add("someone/alone", alone)
    for name, options, words in (
        ("someone/else", {}, "nor a model of this name on the hub"),
        ("someone/gated", {}, "someone/gated on the hub is gated"),
        ("someone/bare", {}, "no weights that can be read, but 1 file .config.json"),
        ("someone/alone", {"from_format": "h5"}, r"does not have; .*\(safetensors\)"),
        (NAME, {"from_format": "onnx"}, "from_format is 'onnx'; expected one of safetensors"),
        (alone, {"from_format": "h5"}, r"alone does not have; .*\(safetensors\)"),
    ):
        with pytest.raises(ValueError, match=words) as error:
            convert(name, tmp_path / "out", **options)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "out").exists()


def test_names_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "here").mkdir()
    assert is_hub_id("google-bert/bert-base-cased")
    assert is_hub_id("bert-base-cased")
    for path in (
        *("here", "models/bert", "./bert", "/a/b", "~/bert", "a/b/c", "a/", ""),
        *("bert_model.ckpt", "owner/model.safetensors", "bert.zip", tmp_path / "bert"),
    ):
        assert not is_hub_id(path), path


@pytest.mark.hub
def test_every_format_of_the_first_bert(tmp_path):
    """Each of the repository's formats is the same model, and the outputs are transformers'."""
    report = convert("google-bert/bert-base-cased", tmp_path / "out", check_all=True)
    beside = [check for check in report.checks if check.name.startswith("tensors beside")]
    assert len(beside) >= 3
    assert all(check.passed for check in beside)
    for kind in ("torch", "h5", "flax"):
        convert("google-bert/bert-base-cased", tmp_path / kind, from_format=kind, check=False)
        saved = load_file(tmp_path / kind / "model.safetensors")
        expected = load_file(tmp_path / "out" / "model.safetensors")
        common = saved.keys() & expected.keys()
        assert len(common) > 190
        assert all(torch.equal(saved[key], expected[key]) for key in common)
    assert json.loads((tmp_path / "out" / "conversion_report.json").read_text())["checks"]
