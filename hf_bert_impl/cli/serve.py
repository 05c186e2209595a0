"""`hf-bert serve`: a model over HTTP."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import typer

from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.shared_options import only
from hf_bert_impl.serving.options import KEY_VARIABLE, LOOPBACK, PATHS, ServingOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Serve(ServingOptions):
    """Serve a model over HTTP; requests are batched without padding.

    The paths are OpenAI's /v1/embeddings, /rerank of Cohere and text-embeddings-inference,
    /classify or /answer, and /health, /metrics and /v1/models. If the environment variable
    HF_BERT_API_KEY is set, clients must send that key. After SIGTERM or Ctrl-C, the server answers
    all accepted requests and exits.

    Example: hf-bert serve sentence-transformers/all-MiniLM-L6-v2 --port 8080
    """

    model: str

    def run(self) -> None:
        """Serves until it is told to stop."""
        self.check()
        from hf_bert_impl.serving.server import serve

        def ready(address: str, info: Any) -> None:
            typer.echo(f"{address}{PATHS[info.task]} serves {info.name}; press Ctrl-C to stop")
            if self.host not in LOOPBACK and not os.environ.get(KEY_VARIABLE):
                typer.echo(
                    f"warning: every client of {self.host} can use this server; set "
                    f"{KEY_VARIABLE} to require a key",
                    err=True,
                )

        with quiet_libraries():
            serve(self.model, only(ServingOptions, self), ready)
