"""The hub's refusals: huggingface_hub's own errors, each one clear line."""

import os
import uuid

import pytest
from huggingface_hub import HfApi, constants, get_token

from hf_bert_impl.hub.pushing import push
from hf_bert_impl.hub.uploading import PushError, Repository, open_repository, reserve, upload
from tests.support.hub_server import TOKEN, HubServer, Refused


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


def said(endpoint, token, name="a-model"):
    with pytest.raises(PushError) as caught:
        open_repository(name, "BertModel", api=HfApi(endpoint=endpoint, token=token))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_connection_and_no_token(refusing, monkeypatch):
    closed = "http://127.0.0.1:9"  # a closed port
    words = said(closed, "hf_test")
    assert f"could not be read at {closed}" in words and "HF_ENDPOINT" in words
    assert "There is no token" in said(closed, False)
    words = said(refusing(500, "").endpoint, "hf_other")
    assert "the hub answers 401 (" in words and "Run `hf auth login`" in words
    monkeypatch.setattr("hf_bert_impl.hub.uploading.get_token", lambda: None)
    assert "hf auth login" in said(closed, None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in said(closed, "hf_test")


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


@pytest.mark.hub
def test_a_real_push(tiny, tokenizer):
    """Makes a private repository, loads it back from the hub, pushes again, and deletes it."""
    from transformers import AutoModelForMaskedLM

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
