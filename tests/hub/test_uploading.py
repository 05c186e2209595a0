"""What a push changes in a repository, and the hub's refusals, each one clear line."""

import json
import os
import uuid

import pytest
from huggingface_hub import HfApi, constants, get_token
from transformers import AutoModelForMaskedLM

from hf_bert_impl.cli import main
from hf_bert_impl.hub.pushing import push
from hf_bert_impl.hub.uploading import PushError, Repository, open_repository, reserve, upload
from tests.support.checkpoints import save_checkpoint
from tests.support.hub_server import TOKEN, HubServer, Refused

NAME = "someone/small-bert"
#: Files that a push deletes, and files that it leaves.
STALE = ("pytorch_model.bin", "model-00001-of-00002.safetensors", "tf_model.h5", "modeling_bert.py")
OTHERS = ("handler.py", "my_model.bin", "vocab.txt")


@pytest.fixture(autouse=True)
def online(monkeypatch):
    """The hub's library may make connections; they all end at this machine."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def refusing():
    """Starts a hub that has a name for the token, and one answer to all else."""
    with HubServer() as server:

        def start(status, code):
            server.refusal = Refused(status, code)
            return HfApi(endpoint=server.address, token=TOKEN)

        yield start


def test_no_connection_and_no_token(refusing, monkeypatch):
    closed = "http://127.0.0.1:9"  # a closed port
    for endpoint, token, words in (
        (closed, "hf_test", rf"could not be read at {closed} .*HF_ENDPOINT"),
        (closed, False, "There is no token"),
        (refusing(500, "").endpoint, "hf_other", r"the hub answers 401 \(.*Run `hf auth login`"),
    ):
        with pytest.raises(PushError, match=words):
            open_repository("a-model", "BertModel", api=HfApi(endpoint=endpoint, token=token))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PushError, match="HF_HUB_OFFLINE"):
        open_repository("a-model", "BertModel", api=HfApi(endpoint=closed, token="hf_test"))


@pytest.mark.parametrize(
    ("status", "words"),
    [(403, "Choose a repository of your own"), (400, "Fix this"), (503, "Wait a little")],
)
def test_what_the_hub_says_is_passed_on(refusing, tmp_path, status, words):
    api = refusing(status, "Busy")
    answer = rf"the hub answers {status} \(Busy\)\. {words}"
    with pytest.raises(PushError, match=rf"could not be read: {answer}"):
        open_repository("me/a-model", "BertModel", api=api)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(PushError, match=rf"could not be written: {answer}"):
        upload(tmp_path, Repository("me/a-model"), api=api)


def test_a_place_that_cannot_be_had_is_refused_before_the_training(refusing):
    api = refusing(404, "RepoNotFound")  # to the wish for a new one as well
    with pytest.raises(PushError, match="me/a-model could not be written"):
        reserve("a-model", "BertModel", api=api)


@pytest.mark.slow
def test_commands_that_read_and_write(tmp_path, monkeypatch, capsys):
    masked = save_checkpoint(tmp_path / "masked")
    with HubServer() as server:
        server.stand_in(monkeypatch, tmp_path)
        server.add(NAME, save_checkpoint(tmp_path / "small-bert", "BertModel"))
        assert main(["verify", NAME, "--no-bf16", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["passed"] and f"BertModel of {NAME}" in report["title"]
        assert main(["verify", "someone/else"]) == 2
        assert "error: someone/else" in capsys.readouterr().err
        assert main(["push", str(masked), "a-model", "--private", "--no-speed", "--json"]) == 0
        assert server.address in json.loads(capsys.readouterr().out)["place"]
    held = server.repositories["me/a-model"]
    files = held.at("main")[1]
    assert held.private
    assert files["model.safetensors"] == (masked / "model.safetensors").read_bytes()
    assert {"config.json", "README.md", "modeling_bert.py", "vocab.txt"} <= set(files)


def test_what_an_upload_replaces_and_what_another_branch_keeps(tmp_path, monkeypatch):
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


@pytest.mark.hub
def test_a_real_push(tiny, tokenizer):
    """Makes a private repository, loads it back from the hub, pushes again, and deletes it."""
    if not get_token():
        pytest.skip("needs a token that may write to the Hugging Face hub: set HF_TOKEN")
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    name = f"hf-bert-push-test-{uuid.uuid4().hex[:12]}"
    pushed = push(tiny(), name, tokenizer=tokenizer, private=True, api=api)
    try:
        assert api.model_info(pushed.repo_id).private
        for trusted in (False, True):
            model = AutoModelForMaskedLM.from_pretrained(pushed.repo_id, trust_remote_code=trusted)
            assert type(model).__module__.startswith("transformers_modules.") == trusted
    finally:
        api.delete_repo(pushed.repo_id)
