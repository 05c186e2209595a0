"""The FastAPI application: receives requests, and gives every error one shape."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from hf_bert_impl import __version__
from hf_bert_impl.data.token_budget import TOKEN_BUDGET
from hf_bert_impl.errors import one_line
from hf_bert_impl.serving.admission import SOON, Admission, Problem
from hf_bert_impl.serving.model_worker import Backend, Unavailable
from hf_bert_impl.serving.options import PATHS, ServingOptions
from hf_bert_impl.serving.routes import ROUTES, check_model

#: Paths that need no key: they reveal nothing.
OPEN_PATHS = {"/health"}
#: Seconds for a worker to answer a health check.
HEALTH_SECONDS = 10.0
#: The status in the metrics of requests whose clients went away.
GONE = 499
#: Names of tasks in TEI's /info.
TEI_TASKS = {"embed": "embedding", "rerank": "reranker", "classify": "classifier"}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def make_app(
    backend: Backend, options: ServingOptions | None = None, key: str | None = None
) -> FastAPI:
    """Makes the application of a served model.

    Args:
        backend: Computes the requests.
        options: The limits. Larger requests are refused before any computation.
        key: Clients must send `Authorization: Bearer KEY`; None needs no key.
    """
    admission = Admission(backend, options or ServingOptions())
    app = FastAPI(title="hf_bert_impl", docs_url=None, redoc_url=None)
    app.add_middleware(_Door, admission=admission, key=key)
    ROUTES[backend.info.task](app, admission)
    _add_descriptions(app, admission)
    _add_errors(app, backend.info.task)
    return app


def _add_descriptions(app: FastAPI, admission: Admission) -> None:
    """Adds the paths of every server, which describe it."""
    known, limits = admission.backend.info, admission.options
    own = {"id": known.name, "object": "model", "created": 0, "owned_by": "hf_bert_impl"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [own]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        check_model(admission, name)
        return own

    @app.get("/info")
    async def info() -> dict[str, Any]:
        """TEI's."""
        ids = dict(enumerate(known.labels))
        labels = {"id2label": ids, "label2id": {label: index for index, label in ids.items()}}
        return {
            "model_id": known.name,
            "model_sha": None,
            "model_dtype": known.dtype,
            "model_type": {TEI_TASKS.get(known.task, known.task): labels if ids else {}},
            "max_concurrent_requests": limits.queue,
            "max_input_length": known.max_length,
            "max_batch_tokens": TOKEN_BUDGET,
            "max_batch_requests": None,
            "max_client_batch_size": limits.max_texts,
            "auto_truncate": True,
            "version": __version__,
        }

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> dict[str, Any]:
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                await admission.backend.check()
        except (TimeoutError, Unavailable):
            raise Problem(503, "no worker answers", SOON) from None
        return {"status": "ok", "model": known.name, "task": known.task}

    @app.get("/metrics")
    async def metrics() -> Response:
        page = generate_latest(admission.metrics.registry)
        return Response(page, headers={"content-type": CONTENT_TYPE_LATEST})


def _add_errors(app: FastAPI, task: str) -> None:
    """Turns each error into a response in one line."""

    @app.exception_handler(Problem)
    async def _problem(request: Request, problem: Problem) -> Response:
        return problem.response()

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        kind = request.headers.get("content-type")
        reason = _first(error)
        if kind is None or "json" not in kind:
            given = "no Content-Type" if kind is None else f"the Content-Type {kind!r:.100}"
            reason = f"the request has {given}; send `Content-Type: application/json`"
        return Problem(400, reason).response()

    @app.exception_handler(HTTPException)
    async def _missing(request: Request, error: HTTPException) -> Response:
        remedy = {
            400: "send JSON in UTF-8",
            404: f"post to {PATHS[task]}; this server's model is for {task}",
            405: f"use {(error.headers or {}).get('Allow', 'another method')}",
        }.get(error.status_code, "change the request")
        return Problem(error.status_code, f"{error.detail}; {remedy}").response()

    @app.exception_handler(Exception)
    async def _bug(request: Request, error: Exception) -> Response:
        return Problem(500, "an error of the server, which its log has").response()


def _first(error: RequestValidationError) -> str:
    """The first error of a body, in one line."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return one_line(f"the body is no JSON: {reason} at character {first['loc'][-1]}")
    names = ".".join(str(part) for part in first["loc"] if part != "body")
    where = f"`{names}`: " if names else ""
    return one_line(f"{where}{first['msg'].removeprefix('Value error, ')}")


class _Gone(Exception):
    """The client went away."""


class _Door:
    """Reads each request, counts its answer, and cancels it if its client goes away.

    The key and the size are checked before the body is read.
    """

    def __init__(self, app: Any, admission: Admission, key: str | None) -> None:
        self.app, self.admission = app, admission
        self.key = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        begin, status = time.monotonic(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            body = await self._body(scope, receive)
            await self._answer(scope, body, receive, watched)
        except Problem as problem:
            await problem.response()(scope, receive, watched)
        except asyncio.CancelledError:
            if status:
                raise
            # The server ends, and its time to answer is over.
            end = Problem(503, "the server ends; send the request again", SOON)
            await end.response()(scope, receive, watched)
        except _Gone:
            status = status or GONE
        finally:
            # One series for all unknown paths, because clients can ask for any.
            known = {route.path for route in scope["app"].routes}
            path = scope["path"] if scope["path"] in known else "other"
            self.admission.metrics.requests.labels(path, str(status or 500)).inc()
            self.admission.metrics.seconds.labels(path).observe(time.monotonic() - begin)

    async def _body(self, scope: Message, receive: Receive) -> bytes:
        """The body of a request that is within the limits.

        Raises:
            Problem: The key is wrong, or the body is too large or too late.
        """
        headers = {name.lower(): value for name, value in scope["headers"]}
        sent = headers.get(b"authorization", b"")
        is_locked = self.key is not None and scope["path"] not in OPEN_PATHS
        if is_locked and not hmac.compare_digest(sent, self.key or b""):
            raise Problem(401, "send this server's key as `Authorization: Bearer KEY`")
        most, seconds = self.admission.options.max_bytes, self.admission.options.read_seconds
        length = headers.get(b"content-length", b"0")
        size = int(length) if length.isdigit() else 0
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(seconds):
                while more and max(size, len(body)) <= most:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Gone
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
        except TimeoutError:
            late = f"the body did not come within {seconds:g} s; send less at once"
            raise Problem(408, late, {"Connection": "close"}) from None
        if max(size, len(body)) > most:
            large = f"the request has more than {most:,} bytes; send fewer texts at once"
            raise Problem(413, large)
        return bytes(body)

    async def _answer(self, scope: Message, body: bytes, receive: Receive, send: Send) -> None:
        """Answers a request.

        Raises:
            _Gone: The client went away; the work is cancelled.
        """

        async def read() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def disconnected() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        work = asyncio.ensure_future(self.app(scope, read, send))
        gone = asyncio.ensure_future(disconnected())
        gone.add_done_callback(lambda _: work.cancel())
        try:
            await work
        except asyncio.CancelledError:
            if gone.done():
                raise _Gone from None
            raise
        finally:
            gone.cancel()
