"""How a model is served; it stands alone, so that the command line starts at once."""

from __future__ import annotations

import dataclasses

from hf_bert_impl.data.option_ranges import COUNT, Range
from hf_bert_impl.errors import InputError, check_choice

#: The environment variable that holds the key of clients.
KEY_VARIABLE = "HF_BERT_API_KEY"
#: Most seconds that a request's head takes to come, and its body.
READ_SECONDS = 20.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")
#: What a served model does, and the path of its requests.
PATHS = {
    "embed": "/v1/embeddings",
    "rerank": "/rerank",
    "classify": "/classify",
    "answer": "/answer",
}


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

    @property
    def read_seconds(self) -> float:
        """Seconds that the head of a request may take to come, and its body."""
        return min(READ_SECONDS, self.timeout)

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
