"""Where the measured models come from: a checkpoint, or random weights of a known size."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.benchmark.cases import Unavailable
from hf_bert_impl.checkpoints import TOKENIZERS, demo_folder
from hf_bert_impl.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SEED = 0
#: Sizes of `--random`. Fields that are not given here are those of BERT-base.
RANDOM: dict[str, dict[str, Any]] = {
    "base": {},
    # Both have 12 heads, as BERT-base has.
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    "small": {"hidden_size": 384, "num_hidden_layers": 12, "intermediate_size": 1536},
    # For tests and for trying the command itself.
    "tiny": {
        "hidden_size": 60,
        "num_hidden_layers": 2,
        "num_attention_heads": 5,
        "intermediate_size": 88,
        "vocab_size": 1031,
        "max_position_embeddings": 64,
    },
}


@dataclasses.dataclass(frozen=True)
class Source:
    """A model by its name."""

    path: str | None = None
    """A folder or hub id; None for random weights."""
    random: str = "base"
    """Which of `RANDOM`."""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """What the report calls it; only a folder's own name, so that results can be shared."""
        if self.path is None:
            return f"random weights, {self.random} size"
        return Path(self.path).resolve().name if os.path.isdir(self.path) else self.path

    def config(self) -> Any:
        """The model's config, read without its weights."""
        import hf_bert_impl

        if self.path is None:
            return hf_bert_impl.BertConfig(**RANDOM[self.random])
        return hf_bert_impl.BertConfig.from_pretrained(self.path)

    def load(self, name: str = "BertModel", **fields: Any) -> PreTrainedModel:
        """The model as a class of this package (a base model with its pooler), float32, eval.

        Args:
            name: The class.
            fields: Of the config, where the checkpoint has no such head.
        """
        import torch

        import hf_bert_impl

        cls: Any = getattr(hf_bert_impl, name)
        torch.manual_seed(SEED)  # every process draws the same missing weights
        if self.path is None:
            model = cls(hf_bert_impl.BertConfig(**RANDOM[self.random] | fields))
        else:
            if name in (self.config().architectures or ()):
                fields = {}
            model = cls.from_pretrained(self.path, dtype=torch.float32, **fields)
        loaded: PreTrainedModel = model.to(self.device).eval()
        return loaded

    def sentence_folder(self, scratch: str) -> str:
        """A model with a tokenizer, as sentence encoders load it.

        Args:
            scratch: Where random weights are saved, once a run.

        Returns:
            The checkpoint itself, or random weights beside the tokenizer of the demo's weights.

        Raises:
            Unavailable: There is no tokenizer.
        """
        if self.path is not None:
            folder = Path(self.path)
            if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZERS):
                raise Unavailable("the checkpoint has no tokenizer")
            return self.path
        from transformers import AutoTokenizer

        try:
            folder = demo_folder()
        except InputError as error:
            raise Unavailable(f"random weights need the demo's tokenizer: {error}") from error
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        config = self.config()
        if len(tokenizer) > config.vocab_size:
            raise Unavailable(f"the size {self.random} has a smaller vocabulary than the tokenizer")
        # The sentence model that the tokenizer comes from stops at 128 or 256; this one need not.
        tokenizer.model_max_length = config.max_position_embeddings

        def save(folder: Path) -> None:
            self.load().save_pretrained(folder)
            tokenizer.save_pretrained(folder)

        return str(made_once(scratch, "sentences", save))


def made_once(scratch: str, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the first contestant who needs it makes for all of a run.

    Args:
        scratch: Where all share files.
        name: The folder's name.
        make: Fills an empty folder.
    """
    place = Path(scratch) / name
    if not place.exists():
        fresh = Path(tempfile.mkdtemp(dir=scratch))
        make(fresh)
        fresh.rename(place)
    return place
