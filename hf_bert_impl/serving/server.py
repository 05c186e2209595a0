"""One process takes requests, and workers of Ray Serve compute them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import require, set_up_ray
from hf_bert_impl.serving.model_worker import (
    Computed,
    ModelInfo,
    ModelWorker,
    Refused,
    task_of,
)
from hf_bert_impl.serving.options import KEY_VARIABLE, ServingOptions

#: How often a request is computed again whose worker died.
RETRIES = 2
#: Requests that a worker has at once: the front bounds them by their texts.
AT_ONCE = 1_000_000


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
    from hf_bert_impl.serving.app import make_app

    task = options.task or task_of(model)
    folder = Path(model).expanduser()
    place = str(folder.absolute()) if folder.is_dir() else model
    name = options.name or Path(place).name
    key = os.environ.get(KEY_VARIABLE) or None
    arguments = (name, task, place, options.dtype, options.normalize)
    with (
        _listening(options.host, options.port) as listener,
        _workers(options.replicas, arguments) as workers,
    ):
        config = uvicorn.Config(
            make_app(workers, options, key),
            http=_protocol(options.read_seconds),
            ws="none",
            log_level="warning",
            timeout_graceful_shutdown=options.drain,
            lifespan="off",
        )
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        with _quiet_signals():
            ready(f"http://{shown}:{port}", workers.info)
            uvicorn.Server(config).run(sockets=[listener])


def _protocol(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's HTTP, which closes a connection whose next head takes longer to come."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class Protocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
        _timer: asyncio.TimerHandle | None = None

        def _expect_head(self) -> None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.transport.close)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_head()

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._stop()
            elif self._timer is None and before.response_complete:
                self._expect_head()

        def connection_lost(self, error: Exception | None) -> None:
            self._stop()
            super().connection_lost(error)

    return Protocol


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
    set_up_ray()
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
