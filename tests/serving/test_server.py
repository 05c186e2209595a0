"""`hf-bert serve` as a process, without Ray and with two replicas: load, dying workers, the end."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

import httpx
import psutil

from hf_bert_impl import TextEncoder
from hf_bert_impl.errors import InputError
from hf_bert_impl.serving import server
from hf_bert_impl.serving.options import ServingOptions
from hf_bert_impl.serving.server import serve
from tests.support.checkpoints import TEXTS

KINDS = ["one process", "replicas"]
RUN = "import sys; {}from hf_bert_impl.cli import main; sys.exit(main())"
KEY = "a key"


class Server:
    """A server that is a process on this machine."""

    def __init__(self, process):
        self.process = process
        line = process.stdout.readline()
        assert line, process.stderr.read()
        self.address = re.match(r"(http://127\.0\.0\.1:\d+)/v1/embeddings serves", line)[1]

    def ask(self, path, body=None, key=KEY):
        """The answer over a connection of its own."""
        options = {"headers": {"Authorization": f"Bearer {key}"}, "trust_env": False}
        method = "POST" if body else "GET"
        return httpx.request(method, self.address + path, json=body, timeout=60, **options)

    def vectors(self, texts):
        answer = self.ask("/v1/embeddings", {"input": texts})
        assert answer.status_code == 200, answer.text
        return np.array([row["embedding"] for row in answer.json()["data"]], np.float32)

    def workers(self):
        """Processes of Ray that have the model."""
        workers = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "ServeReplica" in " ".join(child.cmdline()):
                    workers.append(child)
        return workers

    def admitted(self):
        """Texts that were computed, or are at work or waiting."""
        line = r"^hf_bert_(?:texts_total|queued_texts) (.*)$"
        return sum(map(float, re.findall(line, self.ask("/metrics").text, re.M)))

    def listens(self):
        """Whether a client could connect."""
        host, port = self.address.removeprefix("http://").split(":")
        with socket.socket() as client:
            return client.connect_ex((host, int(port))) == 0


def wait_until(happened):
    while not happened():
        time.sleep(0.1)


@pytest.fixture(scope="module", params=KINDS)
def running(request, served):
    """One process in which Ray cannot be imported, or two replicas."""
    code, options = "", ["--port", "0", "--name", "small", "--queue", "9999"]
    if request.param == "one process":
        code = "sys.modules['ray'] = None; "
    else:
        pytest.importorskip("ray.serve", reason="the extra 'ray' is not installed")
        options += ["--replicas", "2"]
    command = [sys.executable, "-c", RUN.format(code), "serve", served("embed"), *options]
    environment = {**os.environ, "HF_BERT_API_KEY": KEY, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def expected(served):
    return TextEncoder.from_pretrained(served("embed"), batch_invariant=True).encode(TEXTS)


@pytest.mark.distributed
@pytest.mark.parametrize("running", KINDS[1:], indirect=True)
def test_a_worker_that_dies_is_replaced(running, expected):
    """The other worker computes its requests again. Workers have the priority of their server."""
    before = running.workers()
    own = psutil.Process(running.process.pid).nice()
    assert [worker.nice() for worker in before] == [own, own]
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(running.vectors, TEXTS) for _ in range(40)]
        before[0].send_signal(signal.SIGKILL)
        assert all(np.array_equal(call.result(), expected) for call in calls)
    wait_until(lambda: len(running.workers()) == 2)


@pytest.mark.distributed
def test_accepted_requests_are_answered_at_the_end(running, expected):
    """After SIGTERM no client can connect, and no answer is lost. One without key gets none."""
    assert running.ask("/v1/models", key="no").status_code == 401
    before, texts = running.admitted(), TEXTS * 19
    with ThreadPoolExecutor(6) as pool:
        with contextlib.ExitStack() as suspended:
            workers = running.workers()
            for worker in workers:
                worker.suspend()
                suspended.callback(worker.resume)
            calls = [pool.submit(running.vectors, texts) for _ in range(6)]
            wait_until(lambda: running.admitted() - before == 6 * len(texts))
            running.process.terminate()
            wait_until(lambda: not running.listens())
            assert not (workers and any(call.done() for call in calls))
        assert all(np.array_equal(call.result(), np.tile(expected, (19, 1))) for call in calls)
    assert running.process.wait(60) == 0
    assert "Traceback" not in running.process.stderr.read()


def test_a_signal_is_not_lost(served):
    """Though it comes as soon as the server has said its address."""
    options = ServingOptions(port=0)
    serve(served("embed"), options, lambda *_: os.kill(os.getpid(), signal.SIGTERM))


def test_a_server_that_cannot_start(served, monkeypatch):
    def start(model, **options):
        serve(model, ServingOptions(**options), lambda *_: pytest.fail("it listens"))

    with server._bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"127.0.0.1:{port} cannot be used"):
            start(served("embed"), port=port)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"`replicas` above 1 needs ray, .* -e '\.\[ray\]'"):
        start(served("embed"), replicas=2)
