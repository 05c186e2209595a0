"""What takes a hub id, in processes that take a small server on this machine for the hub."""

import json

import pytest
from huggingface_hub import HfApi, constants

from hf_bert_impl.hub.uploading import PushError, open_repository, reserve, upload
from tests.support.checkpoints import save_checkpoint
from tests.support.commands import run_commands
from tests.support.hub_server import TOKEN, HubServer

NAME = "someone/small-bert"
#: Files that a push deletes, and files that it leaves.
STALE = ("pytorch_model.bin", "model-00001-of-00002.safetensors", "tf_model.h5", "modeling_bert.py")
OTHERS = ("handler.py", "my_model.bin", "vocab.txt")


@pytest.mark.slow
def test_commands_that_read_and_write(tmp_path):
    folder = save_checkpoint(tmp_path / "small-bert", "BertModel")
    masked = save_checkpoint(tmp_path / "masked")
    with HubServer() as server:
        server.add(NAME, folder)
        given = [
            ("verify", NAME, "--no-bf16", "--json"),
            ("verify", "someone/else"),
            ("push", masked, "a-model", "--private", "--json"),
        ]
        environment = server.environment(tmp_path / "home") | {"COLUMNS": "200"}
        (verify, unknown, push), _ = run_commands(given, environment)
    assert [it.status for it in (verify, unknown, push)] == [0, 2, 0]
    report = json.loads(verify.out)
    assert report["passed"] and f"BertModel of {NAME}" in report["title"]
    assert "error: " in unknown.err and "someone/else" in unknown.err

    held = server.repositories["me/a-model"]
    files = held.at("main")[1]
    assert held.private
    assert files["model.safetensors"] == (masked / "model.safetensors").read_bytes()
    assert {"config.json", "README.md", "modeling_bert.py", "vocab.txt"} <= set(files)
    assert server.address in json.loads(push.out)["place"]


def test_what_an_upload_replaces_and_what_another_branch_keeps(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    earlier, later = tmp_path / "earlier", tmp_path / "later"
    for folder, names in ((earlier, (*STALE, "notes.txt", *OTHERS)), (later, ("notes.txt",))):
        folder.mkdir()
        (folder / "config.json").write_text('{"architectures": ["BertModel"]}')
        for name in names:
            (folder / name).write_text(f"{name} of {folder.name}")
    with HubServer() as server:
        api = HfApi(endpoint=server.address, token=TOKEN)
        reserve("b-model", "BertModel", api=api)
        new = open_repository("a-model", "BertModel", api=api)
        assert upload(earlier, new, private=True, api=api) == f"{server.address}/me/a-model"
        held = server.repositories["me/a-model"]
        first = held.at("main")[1]
        branch = open_repository("a-model", "BertModel", revision="next", api=api)
        assert upload(later, branch, api=api).endswith("/me/a-model/tree/next")
        with pytest.raises(PushError, match="holds BertModel"):
            open_repository("a-model", "BertForMaskedLM", api=api)
        with pytest.raises(PushError, match="me/b-model exists and is public"):
            open_repository("b-model", "BertModel", private=True, api=api)
    assert server.repositories.keys() == {"me/a-model", "me/b-model"} and held.private
    assert held.at("main")[1] == first
    assert set(first) == {".gitattributes", *(path.name for path in earlier.iterdir())}
    files = held.at("next")[1]
    assert set(files) == {".gitattributes", *OTHERS, *(path.name for path in later.iterdir())}
    assert files["notes.txt"] == b"notes.txt of later"
