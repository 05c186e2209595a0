"""The FastAPI application: receives requests, and gives every error one shape."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hf_bert_impl import __version__
from hf_bert_impl.data.token_budget import TOKEN_BUDGET
from hf_bert_impl.serving.admission import FAULT, SOON, Admission, Problem
from hf_bert_impl.serving.model_worker import Backend, Unavailable
from hf_bert_impl.serving.options import PATHS, ServingOptions
from hf_bert_impl.serving.routes import ROUTES, check_model

#: Seconds for a worker to answer a health check.
HEALTH_SECONDS = 10.0
#: The status in the metrics of requests whose clients went away.
GONE = 499
#: The remedy where a client of OpenAI sends token ids.
TOKEN_IDS = (
    "; send texts, not token ids (langchain's OpenAIEmbeddings does with "
    "check_embedding_ctx_length=False)"
)
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
        options: The limits. Larger requests get an error before any computation.
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

    async def respond(request: Request, error: Exception) -> Response:
        if isinstance(error, RequestValidationError):
            return Problem(400, _reason(error)).response()
        if not isinstance(error, HTTPException):
            return Problem(500, FAULT).response()
        if isinstance(error, Problem):
            return error.response()
        remedy = {
            400: "send JSON in UTF-8",
            404: f"post to {PATHS[task]}; this server's model is for {task}",
            405: f"use {(error.headers or {}).get('Allow', 'another method')}",
        }.get(error.status_code, "change the request")
        return Problem(error.status_code, f"{error.detail}; {remedy}", error.headers).response()

    for kind in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, respond)


def _reason(error: RequestValidationError) -> str:
    """The innermost error of a body, in one line."""
    first = max(error.errors(), key=lambda one: len(one["loc"]))
    if first["type"] == "json_invalid":
        return f"the body is no JSON: {first['ctx']['error']} at character {first['loc'][-1]}"
    # pydantic adds the types of a union to the place, such as "str" and "list[str]".
    path = [str(part) for part in first["loc"][1:]]
    path = [part for part in path if re.fullmatch(r"[a-z_]+|\d+", part) and part != "str"]
    if not path:
        return "the body is no JSON object; send one with `Content-Type: application/json`"
    remedy = TOKEN_IDS if path[0] == "input" and first["type"] == "string_type" else ""
    return f"`{'.'.join(path)}`: {first['msg']}{remedy}"


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
            body = await self._body(Request(scope, receive))
            await self._answer(scope, body, receive, watched)
        except Problem as problem:
            await problem.response()(scope, receive, watched)
        except ClientDisconnect:
            status = status or GONE
        except asyncio.CancelledError:
            if status:
                raise
            # The server ends, and its time to answer is over.
            end = Problem(503, "the server ends; send the request again", SOON)
            await end.response()(scope, receive, watched)
        finally:
            # One series for all unknown paths, because clients can ask for any.
            known = {route.path for route in scope["app"].routes}
            path = scope["path"] if scope["path"] in known else "other"
            self.admission.metrics.requests.labels(path, str(status or 500)).inc()
            self.admission.metrics.seconds.labels(path).observe(time.monotonic() - begin)

    async def _body(self, request: Request) -> bytes:
        """The body of a request that is within the limits.

        Raises:
            Problem: The key is wrong, or the body is too large or too late.
            ClientDisconnect: The client went away.
        """
        sent = request.headers.get("authorization", "").encode("latin-1")
        is_locked = self.key is not None and request["path"] != "/health"
        if is_locked and not hmac.compare_digest(sent, self.key or b""):
            raise Problem(401, "send this server's key as `Authorization: Bearer KEY`")
        most, seconds = self.admission.options.max_bytes, self.admission.options.read_seconds
        body, length = bytearray(), int(request.headers.get("content-length", 0))
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    body += chunk
                    if max(length, len(body)) > most:
                        large = f"the request has more than {most:,} bytes"
                        raise Problem(413, f"{large}; send fewer texts at once")
        except TimeoutError:
            late = f"the body did not come within {seconds:g} s; send less at once"
            raise Problem(408, late, {"Connection": "close"}) from None
        return bytes(body)

    async def _answer(self, scope: Message, body: bytes, receive: Receive, send: Send) -> None:
        """Answers a request.

        Raises:
            ClientDisconnect: The client went away; the work is cancelled.
        """

        async def read() -> Message:
            return {"type": "http.request", "body": body}

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
                raise ClientDisconnect from None
            raise
        finally:
            gone.cancel()
