"""What clients of a served model see: paths, limits and errors, as a FastAPI application."""

from __future__ import annotations

import asyncio
import base64
import hmac
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Protocol

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.exceptions import HTTPException

from hf_bert_impl import __version__
from hf_bert_impl.errors import one_line
from hf_bert_impl.files.json_files import check_text
from hf_bert_impl.inference.encoding import TOKEN_BUDGET
from hf_bert_impl.serving.model_worker import Computed, ModelInfo, Refused, scores_in_order
from hf_bert_impl.serving.options import PATHS, ServingOptions
from hf_bert_impl.serving.requests import (
    AnswerRequest,
    ClassifyRequest,
    EmbeddingsRequest,
    EmbedRequest,
    RerankRequest,
)

#: Paths that need no key: they tell nothing.
OPEN_PATHS = {"/health"}
#: How long a worker may take to say that it lives.
HEALTH_SECONDS = 10.0
#: The status that counts requests whose clients went away.
GONE = 499
#: Bounds of the histogram of seconds.
BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Backend(Protocol):
    """What computes."""

    info: ModelInfo

    async def compute(self, items: list[Any], options: dict[str, Any]) -> Computed | Refused:
        """As `ModelWorker.compute`; raises `Unavailable` while nothing can compute."""

    async def check(self) -> Any:
        """Raises `Unavailable` if no worker answers."""


class Unavailable(Exception):
    """No worker answers."""


class Problem(Exception):
    """Why a request has no result, and with which status that is said."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self) -> JSONResponse:
        """In OpenAI's shape, which its clients show."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": None, "code": self.status}
        return JSONResponse({"error": error}, self.status, self.headers)


class _Metrics:
    """Of one server, in Prometheus' form."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        at: Any = {"registry": self.registry, "namespace": "hf_bert"}
        labels = ["path", "status"]
        self.requests = Counter("requests", "Requests that were answered", labels, **at)
        self.seconds = Histogram(
            "request_seconds", "Seconds to an answer", ["path"], buckets=BOUNDS, **at
        )
        self.texts = Counter("texts", "Texts that were computed", **at)
        self.tokens = Counter("tokens", "Tokens that were computed", **at)
        self.queued = Gauge("queued_texts", "Texts at work or waiting", **at)


class _Front:
    """Lets requests in, has them computed and counts them."""

    def __init__(self, backend: Backend, options: ServingOptions) -> None:
        self.backend, self.options, self.metrics = backend, options, _Metrics()
        self._texts = 0
        #: Since when there is work, and how many texts are done since then.
        self._busy_since, self._done = 0.0, 0

    def check(self, task: str, model: str | None = None) -> None:
        """Raises Problem if the model of this server is not the one that was meant."""
        info = self.backend.info
        if task != info.task:
            raise Problem(
                404, f"this server's model is for {info.task}; post to {PATHS[info.task]}"
            )
        if model is not None and model != info.name:
            raise Problem(404, f"there is no model {model!r:.100} here; name {info.name!r}")

    async def compute(self, items: list[Any], **options: Any) -> Computed:
        """The results of a request, once it has been let in."""
        self._check(items)
        if self._texts and self._texts + len(items) > self.options.queue:
            raise Problem(
                429,
                f"{self._texts} texts wait already, of at most {self.options.queue}; try again",
                Retry_After=str(self._wait()),
            )
        if not self._texts:
            self._busy_since, self._done = time.monotonic(), 0
        self._texts += len(items)
        self.metrics.queued.set(self._texts)
        try:
            async with asyncio.timeout(self.options.timeout):
                found = await self.backend.compute(items, options)
        except TimeoutError:
            raise Problem(
                504, f"no result within {self.options.timeout:g} s; send fewer texts at once"
            ) from None
        except Unavailable:
            raise Problem(
                503, "the model is being started again; try again soon", Retry_After="5"
            ) from None
        finally:
            self._texts -= len(items)
            self._done += len(items)
            self.metrics.queued.set(self._texts)
        if isinstance(found, Refused):
            raise Problem(400, found.reason)
        self.metrics.texts.inc(len(items))
        self.metrics.tokens.inc(found.tokens)
        return found

    def _check(self, items: list[Any]) -> None:
        if not items:
            raise Problem(400, "there is no text; send one or more")
        most = self.options.max_texts
        if len(items) > most:
            raise Problem(413, f"there are {len(items)} texts; send at most {most} at once")
        # The query of all pairs is one text.
        pair = {"rerank": ("the query", "text {}"), "answer": ("question {}", "context {}")}.get(
            self.backend.info.task, ("text {}", "text {}")
        )
        for index, item in enumerate(items):
            for text, name in zip([item] if isinstance(item, str) else item, pair, strict=False):
                self._check_text(text, name.format(index), not name.startswith("text"))

    def _check_text(self, text: str, name: str, is_needed: bool) -> None:
        if is_needed and not text.strip():
            raise Problem(400, f"{name} is empty; send a text")
        if len(text) > self.options.max_characters:
            raise Problem(
                413,
                f"{name} has {len(text):,} characters; cut it into texts of at most "
                f"{self.options.max_characters:,}",
            )
        try:
            check_text(text, name)
        except ValueError as error:
            raise Problem(400, str(error)) from None

    def _wait(self) -> int:
        """Seconds until half of what waits is likely to be done."""
        seconds = time.monotonic() - self._busy_since
        rate = self._done / seconds if self._done and seconds else self.options.queue
        return min(60, max(1, math.ceil(self._texts / 2 / rate)))


def make_app(
    backend: Backend, options: ServingOptions | None = None, key: str | None = None
) -> FastAPI:
    """The application of a served model.

    Args:
        backend: What computes.
        options: What is let in; more is refused before anything is computed.
        key: What clients have to send as `Authorization: Bearer KEY`; None lets all in.
    """
    front = _Front(backend, options or ServingOptions())
    app = FastAPI(title="hf_bert_impl", docs_url=None, redoc_url=None)
    app.add_middleware(_Door, front=front, key=key)

    async def vectors(
        texts: list[str], body: EmbeddingsRequest | EmbedRequest, normalize: bool | None
    ) -> Computed:
        info = backend.info
        if body.dimensions is not None and body.dimensions > (info.dimension or 0):
            raise Problem(400, f"`dimensions` is {body.dimensions}; this model's vectors have "
                          f"{info.dimension}")  # fmt: skip
        if body.prompt_name is not None and body.prompt_name not in info.prompts:
            known = ", ".join(info.prompts) or "none"
            raise Problem(400, f"`prompt_name` is {body.prompt_name!r:.100}; there are: {known}")
        return await front.compute(
            texts,
            prompt_name=body.prompt_name,
            normalize=normalize,
            dimensions=body.dimensions,
            **body.cut(),
        )

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsRequest) -> Response:
        front.check("embed", body.model)
        texts = [body.input] if isinstance(body.input, str) else body.input
        found = await vectors(texts, body, None)
        is_packed = body.encoding_format == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _base64(row) if is_packed else row.tolist(),
            }
            for index, row in enumerate(found.values)
        ]
        usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
        name = backend.info.name
        return JSONResponse({"object": "list", "data": data, "model": name, "usage": usage})

    @app.post("/embed")
    @app.post("/similarity")
    async def embed(body: EmbedRequest, request: Request) -> Response:
        front.check("embed")
        given = body.inputs
        if isinstance(given, dict):
            texts = [given["source_sentence"], *given["sentences"]]
            first, *others = (await vectors(texts, body, True)).values
            return JSONResponse([float(first @ other) for other in others])
        if request.url.path == "/similarity":
            raise Problem(400, "`inputs` has no `source_sentence` and `sentences`; send both")
        normalize = body.normalize
        if normalize is None and request.url.path == "/embed":
            normalize = True  # TEI's default; at / the hub's, which is the model's own length
        texts = [given] if isinstance(given, str) else given
        return JSONResponse((await vectors(texts, body, normalize)).values.tolist())

    @app.post("/rerank")
    @app.post("/v1/rerank")
    @app.post("/v2/rerank")
    async def rerank(body: RerankRequest) -> Response:
        front.check("rerank", body.model)
        if (body.documents is None) == (body.texts is None):
            raise Problem(400, "give `documents` (as Cohere) or `texts` (as TEI), and not both")
        texts = [
            _text_of(index, document, body.rank_fields)
            for index, document in enumerate(body.documents or body.texts or [])
        ]
        found = await front.compute(
            [(body.query, text) for text in texts],
            raw_scores=body.raw_scores,
            max_tokens_per_doc=body.max_tokens_per_doc,
            **body.cut(),
        )
        order = scores_in_order(found.values)[: body.top_n]
        scores = [float(found.values[index]) for index in order]
        if body.texts is not None:
            kept: list[Any] = [
                {"text": texts[index]} if body.return_text else {} for index in order
            ]
            rows = zip(order, scores, kept, strict=True)
            return JSONResponse([{"index": i, "score": score, **text} for i, score, text in rows])
        kept = [{"document": {"text": texts[i]}} if body.return_documents else {} for i in order]
        results = [
            {"index": index, "relevance_score": score, **document}
            for index, score, document in zip(order, scores, kept, strict=True)
        ]
        meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
        return JSONResponse({"id": str(uuid.uuid4()), "results": results, "meta": meta})

    @app.post("/classify")
    @app.post("/predict")
    async def classify(body: ClassifyRequest, request: Request) -> Response:
        front.check("classify")
        items, is_one = body.items(as_tei=request.url.path == "/predict")
        if any(len(item) > 2 for item in items if not isinstance(item, str)):
            raise Problem(400, "there are more than two texts; send each in a list of its own")
        found = await front.compute(
            items, function="none" if body.raw_scores else body.function_to_apply, **body.cut()
        )
        labels = backend.info.labels
        rows = [
            [
                {"label": labels[index], "score": float(scores[index])}
                for index in scores_in_order(scores)[: body.top_k]
            ]
            for scores in found.values
        ]
        # The hub's clients, which always send `parameters`, expect a list for each text.
        return JSONResponse(rows[0] if is_one and body.parameters is None else rows)

    @app.post("/answer")
    async def answer(body: AnswerRequest) -> Response:
        front.check("answer")
        if (body.inputs is None) == (body.question is None) or (
            (body.question is None) != (body.context is None)
        ):
            raise Problem(400, "give `question` and `context`, or `inputs` of such")
        asked = body.inputs
        if asked is None:
            asked = {"question": body.question, "context": body.context}
        several = asked if isinstance(asked, list) else [asked]
        pairs = [(one["question"], one["context"]) for one in several]
        options = body.model_dump(exclude={"inputs", "question", "context"}, exclude_none=True)
        found = await front.compute(pairs, **options)
        rows = found.values if body.top_k > 1 else [answers[0] for answers in found.values]
        return JSONResponse(rows if isinstance(asked, list) else rows[0])

    handlers: dict[str, Callable[..., Any]] = {
        "embed": embed,
        "rerank": rerank,
        "classify": classify,
        "answer": answer,
    }
    app.post("/")(handlers[backend.info.task])  # where clients of the hub and of TEI post to

    def own_model() -> dict[str, Any]:
        name = backend.info.name
        return {"id": name, "object": "model", "created": 0, "owned_by": "hf_bert_impl"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [own_model()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        front.check(backend.info.task, name)
        return own_model()

    @app.get("/info")
    async def info() -> dict[str, Any]:
        """TEI's."""
        known, limits = backend.info, front.options
        ids = dict(enumerate(known.labels))
        labels = {"id2label": ids, "label2id": {label: index for index, label in ids.items()}}
        kinds = {"embed": "embedding", "rerank": "reranker", "classify": "classifier"}
        return {
            "model_id": known.name,
            "model_sha": None,
            "model_dtype": known.dtype,
            "model_type": {kinds.get(known.task, known.task): labels if known.labels else {}},
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
                await backend.check()
        except (TimeoutError, Unavailable):
            raise Problem(503, "no worker answers", Retry_After="5") from None
        return {"status": "ok", "model": backend.info.name, "task": backend.info.task}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(
            generate_latest(front.metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST}
        )

    @app.exception_handler(Problem)
    async def _problem(request: Request, problem: Problem) -> Response:
        return problem.response()

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        kind = request.headers.get("content-type")
        if kind is None or "json" not in kind:
            given = "no Content-Type" if kind is None else f"the Content-Type {kind!r:.100}"
            return Problem(
                400, f"the request has {given}; send `Content-Type: application/json`"
            ).response()
        return Problem(400, _first(error)).response()

    @app.exception_handler(HTTPException)
    async def _missing(request: Request, error: HTTPException) -> Response:
        said = str(error.detail)
        if error.status_code == 400:  # of what decodes the body
            said = f"{said}; send JSON in UTF-8"
        elif error.status_code == 404:
            said = f"{said}; post to {PATHS[backend.info.task]}"
        elif error.status_code == 405:
            said = f"{said}; use {(error.headers or {}).get('Allow', 'another method')}"
        return Problem(error.status_code, said).response()

    @app.exception_handler(Exception)
    async def _bug(request: Request, error: Exception) -> Response:
        return Problem(500, "an error of the server, which its log has").response()

    return app


class _Door:
    """Takes a request in, and gives it up where its client or the server goes away.

    Its key and its size are looked at before its body is read, and answers are counted.
    """

    def __init__(self, app: Any, front: _Front, key: str | None) -> None:
        self.app, self.front = app, front
        self.key = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.monotonic(), 0
        path = scope["path"] if scope["path"] in self._paths(scope) else "other"

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._enter(scope, receive, watched)
        except Problem as problem:
            await problem.response()(scope, receive, watched)
        except asyncio.CancelledError:
            if status:
                raise
            # The server ends, and its time to answer is over.
            end = Problem(503, "the server ends; send the request again", Retry_After="5")
            await end.response()(scope, receive, watched)
        except _Gone:
            status = GONE
        except BaseException:
            status = status or 500
            raise
        finally:
            self.front.metrics.requests.labels(path, str(status)).inc()
            self.front.metrics.seconds.labels(path).observe(time.monotonic() - begin)

    def _paths(self, scope: Scope) -> set[str]:
        # Anything can be asked for, and every path would be a series of its own.
        return {route.path for route in scope["app"].routes}

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        sent = headers.get(b"authorization", b"")
        is_asked = self.key is not None and scope["path"] not in OPEN_PATHS
        if is_asked and not hmac.compare_digest(sent, self.key or b""):
            raise Problem(401, "send this server's key as `Authorization: Bearer KEY`")
        most, seconds = self.front.options.max_bytes, self.front.options.read_seconds
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(seconds):
                body = await _read(receive, most)
        except TimeoutError:
            raise Problem(
                408, f"the body did not come within {seconds:g} s; send less at once",
                Connection="close",
            ) from None  # fmt: skip

        async def read() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        await _while_there(self.app(scope, read, send), receive)


class _Gone(Exception):
    """The client went away."""


def _too_large(most: int) -> Problem:
    return Problem(413, f"the request has more than {most:,} bytes; send fewer texts at once")


async def _read(receive: Receive, most: int) -> bytes:
    """The body of a request."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        body += message.get("body", b"")
        if len(body) > most:
            raise _too_large(most)
        more = message.get("more_body", False)
    return bytes(body)


async def _while_there(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Awaits the answer to a request, and cancels what it asked for if its client goes away."""
    answer, gone = (asyncio.ensure_future(one) for one in (work, _left(receive)))
    try:
        await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_done = answer.done()
        answer.cancel()
        gone.cancel()
        await asyncio.wait([answer, gone])
    if not is_done:
        raise _Gone
    answer.result()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _text_of(index: int, document: str | dict[str, Any], fields: list[str]) -> str:
    if isinstance(document, str):
        return document
    values = [document[field] for field in fields if field in document]
    if not values or not all(isinstance(value, str) for value in values):
        names = " or ".join(f"`{field}`" for field in fields)
        raise Problem(
            400,
            f'document {index} has no {names} that is a text; give it as a text or {{"text": ...}}',
        )
    return "\n".join(values)


def _base64(vector: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes()).decode("ascii")


def _first(error: RequestValidationError) -> str:
    """The first thing that is wrong with a body, in one line."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return one_line(f"the body is no JSON: {reason} at character {first['loc'][-1]}")
    names = [str(part) for part in first["loc"] if part != "body"]
    where = f"`{'.'.join(names)}`: " if names else ""
    return one_line(f"{where}{first['msg'].removeprefix('Value error, ')}")
