"""Starts the server: one process under uvicorn, or workers on Ray Serve for several replicas."""

from __future__ import annotations

import contextlib
import functools
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
    Backend,
    Computed,
    ModelInfo,
    ModelWorker,
    Refused,
    Unavailable,
    task_of,
)
from hf_bert_impl.serving.options import KEY_VARIABLE, ServingOptions

#: How often a request is computed again after its worker died.
RETRIES = 2
#: Concurrent requests of a Ray worker. The queue of the server already limits them.
AT_ONCE = 1_000_000


def serve(model: str, options: ServingOptions, ready: Callable[[str, ModelInfo], None]) -> None:
    """Serves a model until SIGTERM or Ctrl-C, then answers all accepted requests and returns.

    Args:
        model: A folder or a hub id.
        options: Address, limits and number of replicas.
        ready: Called with the server's address when clients can connect.

    Raises:
        InputError: The model cannot be served with these options, a library is missing, or the
            address is taken.
    """
    options.check()
    for library in ("fastapi", "prometheus_client", "uvicorn"):
        require(library, "serve", "serving")
    if options.replicas > 1:
        require("ray", "ray", "`replicas` above 1")
    import uvicorn

    from hf_bert_impl.serving.app import make_app

    folder = Path(model).expanduser()
    place = str(folder.absolute()) if folder.is_dir() else model
    name, task = options.name or Path(place).name, options.task or task_of(place)
    arguments = (name, task, place, options.dtype, options.normalize)
    with (
        _bound_socket(options.host, options.port) as listener,
        _backend(options.replicas, arguments) as backend,
        contextlib.ExitStack() as on_exit,
    ):
        config = uvicorn.Config(
            make_app(backend, options, os.environ.get(KEY_VARIABLE) or None),
            ws="none",
            log_level="warning",
            timeout_graceful_shutdown=options.drain,
            lifespan="off",
        )
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        # uvicorn raises the signals again that it has handled.
        for number in (signal.SIGTERM, signal.SIGINT):
            on_exit.callback(signal.signal, number, signal.signal(number, signal.SIG_IGN))
        on_start = functools.partial(ready, f"http://{shown}:{port}", backend.info)
        _server(config, on_start).run(sockets=[listener])


def _server(config: Any, on_start: Callable[[], None]) -> Any:
    """uvicorn's server, which calls a function when it listens and handles signals."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            on_start()

    return Server(config)


def _bound_socket(host: str, port: int) -> socket.socket:
    """The server's socket, bound before a model is loaded."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InputError(
            f"{host}:{port} cannot be used ({error.strerror}). Choose another `port` or `host`.",
            "port host",
        ) from error
    return listener


@contextlib.contextmanager
def _backend(replicas: int, arguments: tuple[Any, ...]) -> Iterator[Backend]:
    """The model in this process, or workers of a Ray of their own, without Ray's HTTP proxy."""
    if replicas == 1:
        yield ModelWorker(*arguments)
        return
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
        # The threads are divided here, and Ray starts all workers on any number of cores.
        num_cpus=replicas,
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
        yield _Replicas(handle, died, handle.check.remote().result())
    finally:
        # All accepted requests are answered, and this Ray belongs to this server alone.
        ray.shutdown()


class _Replicas:
    """The workers of Ray Serve as a `Backend`."""

    def __init__(self, handle: Any, died: tuple[type[Exception], ...], info: ModelInfo) -> None:
        self._handle, self._died, self.info = handle, died, info

    async def compute(self, items: list[Any], options: dict[str, Any]) -> Computed | Refused:
        """See `ModelWorker.compute`. Another worker computes the request if its worker dies."""
        for _ in range(RETRIES):
            with contextlib.suppress(Unavailable):
                return await self._ask("compute", items, options)
        return await self._ask("compute", items, options)

    async def check(self) -> None:
        """Raises `Unavailable` if no worker answers."""
        await self._ask("check")

    async def _ask(self, method: str, *arguments: Any) -> Any:
        response = getattr(self._handle, method).remote(*arguments)
        try:
            return await response
        except self._died as error:
            raise Unavailable from error
        except BaseException:
            response.cancel()
            raise
