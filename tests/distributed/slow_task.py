"""A task that leaves its process number and takes its time, so that it can be killed at work."""

import os
import time
from pathlib import Path
from typing import Any

from hf_bert_impl.distributed import EmbedTexts


class SlowEmbed(EmbedTexts):
    """`EmbedTexts` at the pace of a large model."""

    def __init__(self, model: str, column: str = "text", *, pids: str, seconds: float) -> None:
        super().__init__(model, column)
        self.seconds = seconds
        Path(pids, str(os.getpid())).touch()

    def compute(self, *texts: list[str]) -> tuple[Any, ...]:
        time.sleep(self.seconds)
        return super().compute(*texts)
