"""What takes a hub id, in processes that take a small server on this machine for the hub."""

import json

import pytest
from huggingface_hub import HfApi, constants

from hf_bert_impl.hub.uploading import PushError, open_repository, upload
from tests.checkpoints import save_checkpoint
from tests.commands import run_commands
from tests.hub_server import TOKEN, HubServer

NAME = "someone/small-bert"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("hub") / "small-bert", "BertModel")


@pytest.fixture(scope="module")
def commands(folder, tmp_path_factory):
    """What commands give that read from the hub, and one that writes to it.

    Returns:
        The server, the folder with what was written and pushed, a commit, and results by name.
    """
    place = tmp_path_factory.mktemp("commands")
    masked = save_checkpoint(place / "masked")
    with HubServer() as server:
        first = server.add(NAME, folder)
        server.add(NAME, save_checkpoint(place / "later", "BertModel", seed=1))
        server.add("google-bert/bert-base-cased", masked)
        given = {
            "verify": ("verify", NAME, "--no-bf16", "--json"),
            "unknown": ("verify", "someone/else"),
            "published": ("verify", "google-bert/bert-base-cased", "--no-bf16", "--json"),
            "convert": ("convert", NAME, place / "out", "--revision", first, "--json"),
            "push": ("push", masked, "a-model", "--private", "--json"),
        }
        environment = server.environment(place / "home") | {"COLUMNS": "200"}
        results, _ = run_commands(given.values(), environment)
    return server, place, first, dict(zip(given, results, strict=True))


@pytest.mark.slow
def test_verify(commands):
    *_, results = commands
    assert results["verify"].status == 0, results["verify"].err
    report = json.loads(results["verify"].out)
    assert report["passed"] and f"BertModel of {NAME}" in report["title"]
    assert results["unknown"].status == 2
    assert "error: " in results["unknown"].err and "someone/else" in results["unknown"].err


@pytest.mark.slow
def test_verify_checks_published_figures(commands):
    """Of the repository with that name; the small model in it is another one, so they differ."""
    *_, results = commands
    assert results["published"].status == 1, results["published"].err
    rows = json.loads(results["published"].out)["rows"]
    published = {row["name"]: row["passed"] for row in rows if row["case"] == "published"}
    assert len(published) == 20
    assert "Nice to [MASK] you: meet" in published
    assert not any(published.values())
    assert all(row["passed"] for row in rows if row["case"] != "published")


@pytest.mark.slow
def test_convert(commands, folder):
    _, place, first, results = commands
    assert results["convert"].status == 0, results["convert"].err
    assert f"{NAME} of the hub, commit {first}" in json.loads(results["convert"].out)["notes"]
    saved = (place / "out" / "model.safetensors").read_bytes()
    assert saved == (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_push(commands):
    server, place, _, results = commands
    assert results["push"].status == 0, results["push"].err
    held = server.repositories["me/a-model"]
    files = held.at("main")[1]
    assert held.private
    assert files["model.safetensors"] == (place / "masked" / "model.safetensors").read_bytes()
    assert {"config.json", "README.md", "modeling_bert.py", "vocab.txt"} <= set(files)
    assert server.address in json.loads(results["push"].out)["place"]


def test_what_an_upload_replaces_and_what_another_branch_keeps(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    earlier, later = tmp_path / "earlier", tmp_path / "later"
    for folder, names in (
        (earlier, ("pytorch_model.bin", "modeling_bert.py", "notes.txt")),
        (later, ("model.safetensors", "notes.txt")),
    ):
        folder.mkdir()
        (folder / "config.json").write_text('{"architectures": ["BertModel"]}')
        for name in names:
            (folder / name).write_text(f"{name} of {folder.name}")

    with HubServer() as server:
        api = HfApi(endpoint=server.address, token=TOKEN)
        new = open_repository("a-model", "BertModel", api=api)
        assert upload(earlier, new, private=True, api=api) == f"{server.address}/me/a-model"
        held = server.repositories["me/a-model"]
        first = held.at("main")[1]
        branch = open_repository("a-model", "BertModel", revision="next", api=api)
        assert upload(later, branch, api=api).endswith("/me/a-model/tree/next")
        assert held.at("main")[1] == first
        main = open_repository("a-model", "BertModel", api=api)
        upload(later, main, api=api)
        with pytest.raises(PushError, match="holds BertModel"):
            open_repository("a-model", "BertForMaskedLM", api=api)

    assert held.private
    assert set(first) == {".gitattributes", *(path.name for path in earlier.iterdir())}
    for branch_name in ("main", "next"):
        files = held.at(branch_name)[1]
        assert set(files) == {".gitattributes", *(path.name for path in later.iterdir())}
        assert files["notes.txt"] == b"notes.txt of later"
        assert files["model.safetensors"] == b"model.safetensors of later"
