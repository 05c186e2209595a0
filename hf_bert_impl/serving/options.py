"""Options of a server. This module imports no web library, so that commands start quickly."""

from __future__ import annotations

import dataclasses

from hf_bert_impl.data.option_ranges import Range
from hf_bert_impl.errors import check_choice

#: The environment variable that holds the key of clients.
KEY_VARIABLE = "HF_BERT_API_KEY"
#: Maximum seconds for the body of a request to arrive.
READ_SECONDS = 20.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")
#: The tasks of served models, each with its main path.
PATHS = {
    "embed": "/v1/embeddings",
    "rerank": "/rerank",
    "classify": "/classify",
    "answer": "/answer",
}


@dataclasses.dataclass(frozen=True)
class ServingOptions:
    """Options of a server."""

    host: str = "127.0.0.1"
    """The address to listen on. 0.0.0.0 is open to other machines."""
    port: int = 8000
    """The port to listen on. 0 takes a free one."""
    replicas: int = 1
    """Processes with the model, which share the threads. More than 1 need the extra ray."""
    task: str | None = dataclasses.field(default=None, metadata={"choices": PATHS})
    """embed, rerank, classify or answer; None for the task of the model's config."""
    name: str | None = None
    """The model's name for clients; None for the last part of MODEL."""
    dtype: str | None = None
    """float32, bfloat16, float16, int8 or auto; None for that of the weights."""
    normalize: bool = False
    """Make vectors of length 1."""
    max_texts: int = 1024
    """Maximum number of texts per request."""
    max_characters: int = 100_000
    """Maximum number of characters per text."""
    max_bytes: int = 8 * 2**20
    """Maximum number of bytes per request."""
    queue: int = 2048
    """Maximum number of unfinished texts. Further requests get status 429."""
    timeout: float = 60.0
    """Seconds after which a request without a result gets status 504."""
    drain: int = 60
    """Seconds to finish accepted requests after SIGTERM or Ctrl-C."""

    @property
    def read_seconds(self) -> float:
        """Seconds for the body of a request to arrive."""
        return min(READ_SECONDS, self.timeout)

    def check(self) -> None:
        """Raises InputError if a number is out of its range, or there is no such task."""
        Range(0, 65535, whole=True).check("port", self.port)
        Range(0, 86400, above=True).check("timeout", self.timeout)
        Range(0, 86400, whole=True).check("drain", self.drain)
        Range(1, 64, whole=True).check("replicas", self.replicas)
        for name in ("max_texts", "max_characters", "max_bytes", "queue"):
            Range(1, 2**30, whole=True).check(name, getattr(self, name))
        if self.task is not None:
            check_choice("task", self.task, PATHS)
