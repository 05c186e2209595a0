"""Admits requests: limits, the bounded queue, errors and metrics."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.exceptions import HTTPException

from hf_bert_impl.files.json_files import check_text
from hf_bert_impl.serving.model_worker import Backend, Computed, Refused, Unavailable
from hf_bert_impl.serving.options import ServingOptions

LOG = logging.getLogger(__name__)
#: What clients read of errors that are not theirs.
FAULT = "an error of the server, which its log has"
#: Bounds of the histogram of seconds.
BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
#: The headers of an error that will soon be over.
SOON = {"Retry-After": "5"}
#: Names of the two texts of an item in messages.
PAIR_NAMES = {"rerank": ("the query", "text {}"), "answer": ("question {}", "context {}")}


class Problem(HTTPException):
    """An error for the client, with its HTTP status and headers."""

    def response(self) -> JSONResponse:
        """The error in OpenAI's shape, which its clients show."""
        kind = "invalid_request_error" if self.status_code < 500 else "server_error"
        error = {"message": self.detail, "type": kind, "param": None, "code": self.status_code}
        return JSONResponse({"error": error}, self.status_code, self.headers)


class Metrics:
    """Counters of one server for Prometheus."""

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


class Admission:
    """Admits requests to the backend and counts their texts.

    Args:
        backend: Computes admitted requests.
        options: The limits. Larger requests get an error before any computation.
    """

    def __init__(self, backend: Backend, options: ServingOptions) -> None:
        self.backend, self.options, self.metrics = backend, options, Metrics()
        self._texts = 0
        self.metrics.queued.set_function(lambda: self._texts)

    async def compute(self, items: list[Any], **options: Any) -> Computed:
        """Computes the items of a request.

        Args:
            items: Texts or pairs of texts.
            **options: As of the `ModelWorker`.

        Raises:
            Problem: The items exceed a limit, the queue is full, or there is no result.
        """
        self._check(items)
        if self._texts and self._texts + len(items) > self.options.queue:
            full = f"{self._texts} texts wait already, of at most {self.options.queue}; try again"
            raise Problem(429, full, SOON)
        self._texts += len(items)
        try:
            async with asyncio.timeout(self.options.timeout):
                result = await self.backend.compute(items, options)
        except TimeoutError:
            late = f"no result within {self.options.timeout:g} s; send fewer texts at once"
            raise Problem(504, late) from None
        except Unavailable:
            raise Problem(503, "the model is being started again; try again", SOON) from None
        except Exception as error:
            LOG.exception("A request could not be computed.")
            raise Problem(500, FAULT) from error
        finally:
            self._texts -= len(items)
        if isinstance(result, Refused):
            raise Problem(400, result.reason)
        self.metrics.texts.inc(len(items))
        self.metrics.tokens.inc(result.tokens)
        return result

    def _check(self, items: list[Any]) -> None:
        if not items:
            raise Problem(400, "there is no text; send one or more")
        count, size = self.options.max_texts, self.options.max_characters
        if len(items) > count:
            raise Problem(413, f"there are {len(items)} texts; send at most {count} at once")
        names = PAIR_NAMES.get(self.backend.info.task, ("text {}", "text {}"))
        for index, item in enumerate(items):
            for text, name in zip([item] if isinstance(item, str) else item, names, strict=False):
                where = name.format(index)
                if len(text) > size:
                    long = f"{where} has {len(text):,} characters"
                    raise Problem(413, f"{long}; cut it into texts of at most {size:,}")
                try:
                    check_text(text, where)
                except ValueError as error:
                    raise Problem(400, str(error)) from None
