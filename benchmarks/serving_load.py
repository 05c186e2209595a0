"""`hf-bert serve` under load: many clients at once compared with one, on this machine.

    python benchmarks/serving_load.py MODEL --seconds 60

Texts have mixed lengths. Each vector is compared with `TextEncoder`'s for the text alone. Rounds
of one client and of all alternate. Run it on an idle machine.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import httpx
import numpy as np
import typer

from hf_bert_impl import TextEncoder
from hf_bert_impl.benchmark.cases import sentences
from hf_bert_impl.tables import console, print_table

COMMAND = str(Path(sys.executable).with_name("hf-bert"))
#: Different texts that the clients ask for.
TEXTS = 512
ROUNDS = 3
LOOK_SECONDS = 0.25


class Load:
    """The measurements of clients in one setting.

    Args:
        texts: Their requests.
        expected: (N, D), their vectors.
    """

    def __init__(self, texts: list[str], expected: np.ndarray) -> None:
        self.texts, self.expected = texts, expected
        self.seconds: list[float] = []
        self.refused = self.failed = self.wrong = 0
        self.elapsed = 0.0
        self.queued = 0

    async def run(self, address: str, clients: int, seconds: float, texts_a_request: int) -> None:
        """Asks for some seconds, and waits for what is under way."""
        end = time.perf_counter() + seconds
        limits = httpx.Limits(max_connections=clients + 1)
        async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as http:
            looking = asyncio.create_task(self._look(http))
            begin = time.perf_counter()
            calls = (self._client(http, n, end, texts_a_request) for n in range(clients))
            await asyncio.gather(*calls)
            self.elapsed += time.perf_counter() - begin
            looking.cancel()

    async def _client(self, http: httpx.AsyncClient, number: int, end: float, count: int) -> None:
        draw = np.random.default_rng(number)
        while time.perf_counter() < end:
            own = draw.integers(len(self.texts), size=count)
            begin = time.perf_counter()
            body = {"input": [self.texts[n] for n in own]}
            answer = await http.post("/v1/embeddings", json=body)
            if answer.status_code == 429:
                self.refused += 1
                await asyncio.sleep(float(answer.headers["retry-after"]))
                continue
            if answer.status_code != 200:
                self.failed += 1
                continue
            self.seconds.append(time.perf_counter() - begin)
            rows = [row["embedding"] for row in answer.json()["data"]]
            self.wrong += not np.array_equal(np.array(rows, np.float32), self.expected[own])

    async def _look(self, http: httpx.AsyncClient) -> None:
        while True:
            page = (await http.get("/metrics")).text
            found = re.search(r"^hf_bert_queued_texts (\S+)", page, re.M)
            self.queued = max(self.queued, int(float(found[1]) if found else 0))
            await asyncio.sleep(LOOK_SECONDS)


def main(
    model: Annotated[str, typer.Argument(help="A folder or a hub id.")],
    clients: Annotated[int, typer.Option(min=2)] = 64,
    seconds: Annotated[float, typer.Option(help="Of each setting, in three rounds.")] = 60.0,
    texts_a_request: Annotated[int, typer.Option(min=1)] = 1,
    replicas: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Start a server, load it, and print what clients saw."""
    texts, origin = sentences(TEXTS)
    expected = TextEncoder.from_pretrained(model, batch_invariant=True).encode(texts)
    command = [COMMAND, "serve", model, "--port", "0", "--replicas", str(replicas)]
    environment = {name: value for name, value in os.environ.items() if name != "HF_BERT_API_KEY"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        listening = re.match(r"(http://[^/]+)", server.stdout.readline())
        if listening is None:
            raise typer.Exit(1)  # it has said why
        settings = {1: Load(texts, expected), clients: Load(texts, expected)}
        for turn in range(ROUNDS):
            for count, load in sorted(settings.items(), reverse=bool(turn % 2)):
                share = seconds / ROUNDS
                asyncio.run(load.run(listening[1], count, share, texts_a_request))
        server.terminate()
    alone = _rate(settings[1], texts_a_request)
    print_table(
        console(),
        f"{texts_a_request} texts a request ({origin}), {replicas} workers, {os.cpu_count()} "
        f"cores, exit status {server.returncode}",
        [
            *("clients", "texts/s", "times one", "p50 ms", "p99 ms", "most queued"),
            *("answers", "429", "errors", "wrong"),
        ],
        [
            [
                str(count),
                f"{_rate(load, texts_a_request):.0f}",
                f"{_rate(load, texts_a_request) / alone:.2f}",
                f"{1000 * statistics.median(load.seconds):.0f}",
                f"{1000 * np.percentile(load.seconds, 99):.0f}",
                *map(str, (load.queued, len(load.seconds), load.refused, load.failed, load.wrong)),
            ]
            for count, load in settings.items()
        ],
    )
    if any(load.failed or load.wrong for load in settings.values()) or server.returncode:
        raise typer.Exit(1)


def _rate(load: Load, texts: int) -> float:
    return len(load.seconds) * texts / load.elapsed


if __name__ == "__main__":
    typer.run(main)
