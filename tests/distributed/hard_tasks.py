"""A task that can be killed at work, or fails."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from hf_bert_impl.distributed import EmbedTexts


class Hard(EmbedTexts):
    """`EmbedTexts` at the pace of a large model.

    Args:
        model: As of `EmbedTexts`.
        column: As of `EmbedTexts`.
        seconds: The time of a batch, besides its own.
        pids: A folder in which each process leaves its number.
        failing: Words of texts that cannot be computed, nor any batch that holds one.
        deadly: A text that ends the process.
    """

    def __init__(
        self,
        model: str,
        column: str = "text",
        *,
        seconds: float = 0.0,
        pids: str = "",
        failing: tuple[str, ...] = (),
        deadly: str = "",
    ) -> None:
        super().__init__(model, column)
        self.seconds, self.failing, self.deadly = seconds, failing, deadly
        if pids:
            Path(pids, str(os.getpid())).touch()

    def compute(self, *texts: list[str]) -> tuple[Any, ...]:
        time.sleep(self.seconds)
        if self.deadly in texts[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        if any(word in text.split() for word in self.failing for text in texts[0]):
            raise RuntimeError("the model\nfailed \ud83d")
        return super().compute(*texts)
