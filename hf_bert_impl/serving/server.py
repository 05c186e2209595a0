"""One process takes requests, and workers of Ray Serve compute them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from hf_bert_impl.data.option_ranges import COUNT, Range
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.extras import require
from hf_bert_impl.serving.model_worker import (
    PATHS,
    Computed,
    ModelInfo,
    ModelWorker,
    Refused,
    task_of,
)

#: The environment variable that holds the key of clients.
KEY_VARIABLE = "HF_BERT_API_KEY"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
#: How often a request is computed again whose worker died.
RETRIES = 2
#: Requests that a worker has at once: the front bounds them by their texts.
AT_ONCE = 1_000_000


@dataclasses.dataclass(frozen=True)
class ServingOptions:
    """How a model is served."""

    host: str = "127.0.0.1"
    """The address to listen on. Others than this machine reach it at 0.0.0.0."""
    port: int = 8000
    """0 takes a free one."""
    replicas: int = 1
    """Workers, each with the model and its share of the threads."""
    task: str | None = None
    """embed, rerank, classify or answer; None for what the model was made for."""
    name: str | None = None
    """What clients call the model; None for the last part of MODEL."""
    dtype: str | None = None
    """float32, bfloat16, float16, int8 or auto; None for as the weights are saved."""
    normalize: bool = False
    """Make vectors of length 1."""
    max_texts: int = 1024
    """Most texts of a request."""
    max_characters: int = 100_000
    """Most characters of a text."""
    max_bytes: int = 8 * 2**20
    """Most bytes of a request."""
    queue: int = 2048
    """Texts at work or waiting, from which on requests are refused with status 429."""
    timeout: float = 60.0
    """Seconds after which a request is given up, with status 504."""
    drain: int = 60
    """Seconds that requests which were taken have to end after SIGTERM or Ctrl-C."""

    def check(self) -> None:
        """Raises InputError if a number is out of its range, or a name is empty."""
        Range(0, 65535, whole=True).check("port", self.port)
        Range(0, 86400, above=True).check("timeout", self.timeout)
        Range(0, 86400, whole=True).check("drain", self.drain)
        Range(1, 64, whole=True).check("replicas", self.replicas)
        for name in ("max_texts", "queue"):
            COUNT.check(name, getattr(self, name))
        for name in ("max_characters", "max_bytes"):
            Range(1, 2**30, whole=True).check(name, getattr(self, name))
        if self.task is not None:
            check_choice("task", self.task, PATHS)
        if self.name is not None and not self.name.strip():
            raise InputError("`name` is empty", "what clients call the model", "give one")


def serve(model: str, options: ServingOptions, ready: Callable[[str, ModelInfo], None]) -> None:
    """Serves a model until SIGTERM or Ctrl-C, and ends when all that was taken is answered.

    Args:
        model: A folder or a hub id.
        options: How.
        ready: Called with the server's address when it listens.

    Raises:
        InputError: The model cannot be served so, or the address is taken.
    """
    options.check()
    uvicorn = require("uvicorn", "serve", "serving")
    require("fastapi", "serve", "serving")
    require("ray.serve", "serve", "serving")
    from hf_bert_impl.serving.app import Limits, make_app

    task = options.task or task_of(model)
    folder = Path(model).expanduser()
    place = str(folder.absolute()) if folder.is_dir() else model
    name = options.name or Path(place).name
    key = os.environ.get(KEY_VARIABLE) or None
    limits = Limits(
        options.max_texts, options.max_characters, options.max_bytes, options.queue, options.timeout
    )
    arguments = (name, task, place, options.dtype, options.normalize)
    with (
        _listening(options.host, options.port) as listener,
        _workers(options.replicas, arguments) as workers,
    ):
        config = uvicorn.Config(
            make_app(workers, limits, key),
            log_level="warning",
            timeout_graceful_shutdown=options.drain,
            lifespan="off",
        )
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        with _quiet_signals():
            ready(f"http://{shown}:{port}", workers.info)
            uvicorn.Server(config).run(sockets=[listener])


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """The socket, taken before a model is loaded."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.closing(listener):
            listener.bind(address)
            yield listener
    except OSError as error:
        if error.errno is None and not isinstance(error, socket.gaierror):
            raise
        raise InputError(
            f"nothing can listen on {host}:{port} ({error.strerror})",
            "a free port of an address of this machine",
            "name another `port` or `host`",
        ) from error


@contextlib.contextmanager
def _quiet_signals() -> Iterator[None]:
    """uvicorn sends itself the signals again that it ended by; then they do nothing."""
    before = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Workers:
    """The workers of Ray Serve, as the application knows them."""

    def __init__(self, handle: Any, errors: tuple[type[Exception], ...], info: ModelInfo) -> None:
        self._handle, self._errors = handle, errors
        self.info = info

    async def compute(self, items: list[Any], options: dict[str, Any]) -> Computed | Refused:
        """See `ModelWorker.compute`: the same is computed again where a worker dies."""
        for _ in range(RETRIES):
            with contextlib.suppress(*self._errors):
                return await self._ask("compute", items, options)
        return await self._ask("compute", items, options, last=True)

    async def check(self) -> None:
        """Raises `Unavailable` if no worker answers."""
        await self._ask("check", last=True)

    async def _ask(self, method: str, *arguments: Any, last: bool = False) -> Any:
        from hf_bert_impl.serving.app import Unavailable

        response = getattr(self._handle, method).remote(*arguments)
        try:
            return await response
        except BaseException as error:
            if last and isinstance(error, self._errors):
                raise Unavailable from error
            response.cancel()
            raise


@contextlib.contextmanager
def _workers(replicas: int, arguments: tuple[Any, ...]) -> Iterator[_Workers]:
    """Ray Serve with the model, on this machine, without a proxy of its own."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # sends nothing unless it is asked to
    import ray
    from ray import serve

    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)
    threads = max(1, torch.get_num_threads() // replicas)
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        # Threads are shared out here; Ray is to start every worker that was asked for.
        num_cpus=max(replicas, 1),
    )
    try:
        serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
        deployment: Any = serve.deployment(
            name="model",
            num_replicas=replicas,
            max_ongoing_requests=AT_ONCE,
            ray_actor_options={"num_cpus": 0},
        )(ModelWorker)
        bound = deployment.bind(*arguments, threads)
        handle: Any = serve.run(bound, name="hf_bert_impl", route_prefix=None)
        died = (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError)
        yield _Workers(handle, died, handle.check.remote().result())
    finally:
        # All that was taken is answered, and this Ray is ours alone: it goes with all its workers.
        ray.shutdown()
