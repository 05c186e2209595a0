"""`hf-bert serve` as a process: the clients that exist, many at once, dying workers, the end."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("ray.serve", reason="the extra 'serve' is not installed")

import openai
import psutil

from hf_bert_impl import TextEncoder
from hf_bert_impl.errors import InputError
from hf_bert_impl.serving import server
from hf_bert_impl.serving.options import ServingOptions
from hf_bert_impl.serving.server import serve
from tests.serving.conftest import TEXTS

pytestmark = pytest.mark.distributed

RUN = "import sys; from hf_bert_impl.cli import main; sys.exit(main())"
KEY = "a key"
#: Until a server listens: Ray starts about ten processes.
SECONDS = 200


class Server:
    """A server on this machine."""

    def __init__(self, model, *options):
        command = [sys.executable, "-c", RUN, "serve", model, "--port", "0", *options]
        environment = {**os.environ, "HF_BERT_API_KEY": KEY, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.address = ""
        timer = threading.Timer(SECONDS, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        assert line, self.process.stderr.read()
        self.address = re.match(r"(http://127\.0\.0\.1:\d+)/v1/embeddings has", line)[1]

    def post(self, texts, timeout=60):
        """Status and content."""
        body = json.dumps({"input": texts}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        request = urllib.request.Request(f"{self.address}/v1/embeddings", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def vectors(self, texts):
        status, content = self.post(texts)
        assert status == 200, content
        return np.array([row["embedding"] for row in content["data"]], np.float32)

    def workers(self):
        """Processes that have the model."""
        every = psutil.Process(self.process.pid).children(recursive=True)
        found = []
        for child in every:
            with contextlib.suppress(psutil.Error):
                if "ServeReplica" in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def queued(self):
        """Texts at work or waiting."""
        headers = {"Authorization": f"Bearer {KEY}"}
        request = urllib.request.Request(f"{self.address}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return float(re.search(r"^hf_bert_queued_texts (.*)$", answer.read().decode(), re.M)[1])

    def listens(self):
        """Whether a client could connect."""
        host, port = self.address.removeprefix("http://").split(":")
        with socket.socket() as client:
            return client.connect_ex((host, int(port))) == 0


def wait_until(happened):
    """Waits for it, for as long as a server may take to start."""
    end = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture(scope="module")
def running(served):
    made = Server(served("embed"), "--name", "small", "--replicas", "2")
    yield made
    made.process.kill()
    made.process.wait()


@pytest.fixture(scope="module")
def expected(served):
    return TextEncoder.from_pretrained(served("embed"), batch_invariant=True).encode(TEXTS)


def test_the_client_of_openai(running, expected):
    client = openai.OpenAI(base_url=f"{running.address}/v1", api_key=KEY)
    found = client.embeddings.create(model="small", input=TEXTS)
    assert np.array_equal(np.array([row.embedding for row in found.data], np.float32), expected)
    stranger = openai.OpenAI(base_url=f"{running.address}/v1", api_key="no", max_retries=0)
    with pytest.raises(openai.AuthenticationError, match="Bearer KEY"):
        stranger.embeddings.create(model="small", input="a")


def test_workers_are_no_slower_than_their_server_on_a_busy_machine(running):
    own = psutil.Process(running.process.pid).nice()
    assert [worker.nice() for worker in running.workers()] == [own, own]


def test_nobody_gets_what_another_asked_for(running, expected):
    """Sixteen clients at once, each with texts of many lengths."""

    def client(number):
        for turn in range(12):
            own = [(number * 5 + turn * 7 + step) % len(TEXTS) for step in range(1 + turn % 4)]
            assert np.array_equal(running.vectors([TEXTS[n] for n in own]), expected[own])
        return True

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(client, range(16)))


def test_clients_that_go_away_keep_nobody_waiting(running, expected):
    """Their places are free at once, though the workers stand still meanwhile."""
    workers = running.workers()
    for worker in workers:
        worker.suspend()
    try:
        with pytest.raises(TimeoutError):
            running.post(["over and over " * 10] * 1000, timeout=1)
        begin = time.monotonic()
        wait_until(lambda: running.queued() == 0)
        assert time.monotonic() - begin < 20  # `--timeout` is 60
    finally:
        for worker in workers:
            worker.resume()
    assert np.array_equal(running.vectors(TEXTS), expected)


def test_a_worker_that_dies_is_replaced(running, expected):
    """What it was computing is computed again by the other one."""
    before = running.workers()
    assert len(before) == 2
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(running.vectors, TEXTS) for _ in range(40)]
        before[0].send_signal(signal.SIGKILL)
        assert all(np.array_equal(call.result(), expected) for call in calls)
    wait_until(lambda: len(running.workers()) == 2)


def test_all_that_was_taken_is_answered_at_the_end(running, expected):
    """SIGTERM while the workers stand still: nobody connects any more, and no answer is lost."""
    workers = running.workers()
    for worker in workers:
        worker.suspend()
    try:
        with ThreadPoolExecutor(6) as pool:
            calls = [pool.submit(running.vectors, TEXTS) for _ in range(6)]
            wait_until(lambda: running.queued() == 6 * len(TEXTS))
            running.process.terminate()
            wait_until(lambda: not running.listens())
            assert not any(call.done() for call in calls)
            for worker in workers:
                worker.resume()
            assert all(np.array_equal(call.result(), expected) for call in calls)
    finally:
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.resume()
    assert running.process.wait(60) == 0
    assert "Traceback" not in running.process.stderr.read()


def test_a_port_that_is_taken_and_no_model(served, tmp_path):
    with server._listening("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"nothing can listen on 127.0.0.1:{port}"):
            serve(served("embed"), ServingOptions(port=port), lambda *_: pytest.fail("it listens"))
    with pytest.raises(InputError, match="no folder"):
        serve(str(tmp_path / "none"), ServingOptions(), lambda *_: pytest.fail("it listens"))
