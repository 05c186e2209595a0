"""Tasks that can be killed at work, or fail."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from hf_bert_impl.distributed import EmbedTexts


class SlowEmbed(EmbedTexts):
    """`EmbedTexts` at the pace of a large model, which leaves its process number."""

    def __init__(self, model: str, column: str = "text", *, pids: str, seconds: float) -> None:
        super().__init__(model, column)
        self.seconds = seconds
        Path(pids, str(os.getpid())).touch()

    def compute(self, *texts: list[str]) -> tuple[Any, ...]:
        time.sleep(self.seconds)
        return super().compute(*texts)


class Failing(EmbedTexts):
    """Cannot compute texts with certain words, nor any batch that holds one."""

    def __init__(self, model: str, column: str = "text", *, words: tuple[str, ...]) -> None:
        super().__init__(model, column)
        self.words = words

    def compute(self, *texts: list[str]) -> tuple[Any, ...]:
        if any(word in text.split() for word in self.words for text in texts[0]):
            raise RuntimeError("the model\nfailed \ud83d")
        return super().compute(*texts)


class Deadly(EmbedTexts):
    """Ends its process at a certain text."""

    def __init__(self, model: str, column: str = "text", *, word: str) -> None:
        super().__init__(model, column)
        self.word = word

    def compute(self, *texts: list[str]) -> tuple[Any, ...]:
        if self.word in texts[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compute(*texts)
