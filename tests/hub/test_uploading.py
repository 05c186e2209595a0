"""The hub's refusals: huggingface_hub's own errors, each one clear line."""

import json
import os
import socket
import threading
import uuid
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub import HfApi, constants, get_token

from hf_bert_impl.hub.pushing import push
from hf_bert_impl.hub.uploading import (
    PushError,
    Repository,
    check_repo_id,
    open_repository,
    reserve,
    upload,
)
from hf_bert_impl.model_card import language_codes


@pytest.fixture(autouse=True)
def online(monkeypatch):
    """The hub's library may make connections; they all end at this machine."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def closed():
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    return f"http://127.0.0.1:{port}"


@pytest.fixture
def answering():
    """Starts a server that has a name for the token, and one answer to all else."""
    servers = []

    def start(status, headers=None):
        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                who = self.path == "/api/whoami-v2" and status != 401
                body = json.dumps({"name": "me"} if who else {"error": "said by the hub"})
                self.send_response(200 if who else status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_POST = do_HEAD = answer

            def log_message(self, *words):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return HfApi(endpoint=f"http://127.0.0.1:{server.server_port}", token="hf_test")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def refused(api, name="a-model"):
    with pytest.raises(PushError) as caught:
        open_repository(name, "BertModel", api=api)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_connection_and_no_token(closed, answering, monkeypatch):
    said = refused(HfApi(endpoint=closed, token="hf_test"))
    assert f"could not be read at {closed}" in said and "HF_ENDPOINT" in said
    assert "there is no token" in refused(HfApi(endpoint=closed, token=False))
    said = refused(answering(401))
    assert "the hub answers 401 (" in said and "expected a valid token; log in" in said
    monkeypatch.setattr("hf_bert_impl.hub.uploading.get_token", lambda: None)
    assert "hf auth login" in refused(HfApi(endpoint=closed))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refused(HfApi(endpoint=closed, token="hf_test"))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (403, "a token with that right; choose a repository of your own"),
        (404, "a repository that takes the files"),
        (409, "a repository that takes the files"),
        (503, "an answer; wait a little"),
    ],
)
def test_what_the_hub_says_is_passed_on(answering, status, words):
    said = refused(answering(status), "me/a-model")
    assert f"could not be read: the hub answers {status} (said by the hub)" in said
    assert f"; expected {words}" in said


def test_a_place_that_cannot_be_had_is_refused_before_the_training(answering):
    api = answering(404, {"X-Error-Code": "RepoNotFound"})  # to the wish for a new one as well
    with pytest.raises(PushError, match="me/a-model could not be written"):
        reserve("a-model", "BertModel", api=api)


def test_an_upload_that_fails(answering, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(PushError, match=r"could not be written: the hub answers 503 .*try again$"):
        upload(tmp_path, Repository("me/a-model"), api=answering(503))


def test_names_that_are_none():
    for name in ("a b", "a/b/c", "-a/b", "a--b", "me/", "x.git", "é"):
        with pytest.raises(ValueError, match="expected NAME or OWNER/NAME"):
            check_repo_id(name)


def test_languages():
    assert language_codes("en, nl") == ["en", "nl"]
    assert language_codes("multilingual") == ["multilingual"]
    for text in ("en,", "", "English", "en;nl", "EN"):
        with pytest.raises(ValueError, match=r"`language` has .*; write it as in en, or en,nl"):
            language_codes(text)


@pytest.mark.hub
def test_a_real_push(tiny, tokenizer, tmp_path):
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
        push(tiny(), pushed.repo_id, tokenizer=tokenizer, code=False, api=api)
        held = api.list_repo_files(pushed.repo_id)
        assert not any(name.endswith(".py") for name in held)
    finally:
        api.delete_repo(pushed.repo_id)
