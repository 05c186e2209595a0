"""Modules that sentence-transformers has between BERT and the pooling: CNN and WordWeights.

They are the library's own, as is the pooling behind them, and run in float32 on padded batches.
BERT before them computes no padding, so that padding is zero here. The library's CNN reads several
tokens at once, and so the padding after a text: here a text in a batch gets the vector that the
library gives it alone. Its LSTM reads lengths that only its own word embeddings give it, not BERT.

Notation: N texts, S tokens of the longest, T of all of them side by side, D hidden size.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from hf_bert_impl.extras import require
from hf_bert_impl.inference.batching import Ids
from hf_bert_impl.inference.pooling import Pooling

#: Kinds that take the states of the tokens and give others.
TOKEN_MODULES = ("CNN", "WordWeights")


class LibraryPooling(Pooling):
    """A pooling with modules of sentence-transformers before it.

    Args:
        described: What the pooling's config says.
        modules: The library's modules, the pooling last.
    """

    def __init__(self, described: Pooling, modules: Sequence[Any]) -> None:
        super().__init__(described.modes, described.include_prompt)
        self.modules = nn.Sequential(*modules).float().eval()

    @classmethod
    def load(
        cls,
        path: str,
        place: Mapping[str, Any],
        listed: Sequence[tuple[str, str]],
        described: Pooling,
    ) -> "LibraryPooling":
        """Loads the modules from a folder or the hub.

        Args:
            path: The folder or the hub id.
            place: For a hub id, `revision`, `token`, `cache_dir` and `local_files_only`.
            listed: Kind and folder of each, the pooling last.
            described: What the pooling's config says.

        Raises:
            InputError: sentence-transformers is not installed.
        """
        kinds = ", ".join(kind for kind, _ in listed[:-1])
        require("sentence_transformers", "demo", f"a model with {kinds}")
        library = import_module("sentence_transformers.models")
        options = dict(place)
        if "cache_dir" in options:
            options["cache_folder"] = str(options.pop("cache_dir"))
        return cls(
            described,
            [getattr(library, kind).load(path, subfolder=it, **options) for kind, it in listed],
        )

    def width(self, hidden_size: int) -> int:
        size: int = self.modules[-1].get_embedding_dimension()  # type: ignore[operator]
        return size

    @torch.inference_mode()
    def features(self, states: Tensor, batch: Sequence[Ids], prompt_length: int) -> dict[str, Any]:
        """Runs the modules.

        Args:
            states: (T, D) of BERT.
            batch: The ids of each text, without padding.
            prompt_length: As for `Pooling`.

        Returns:
            `token_embeddings` (N, S, width) after the modules, `sentence_embedding` (N, width) and
            what the modules read and wrote beside them.
        """
        ids = [torch.tensor(row, device=states.device) for row in batch]
        lengths = list(map(len, batch))
        features: dict[str, Any] = {
            "input_ids": pad_sequence(ids, batch_first=True),
            "attention_mask": pad_sequence(list(map(torch.ones_like, ids)), batch_first=True),
            "token_embeddings": pad_sequence(states.float().split(lengths), batch_first=True),
        }
        if prompt_length:
            features["prompt_length"] = prompt_length
        result: dict[str, Any] = self.modules(features)
        return result

    def __call__(self, states: Tensor, batch: Sequence[Ids], prompt_length: int = 0) -> Tensor:
        vectors: Tensor = self.features(states, batch, prompt_length)["sentence_embedding"]
        return vectors

    def token_states(self, states: Tensor, batch: Sequence[Ids]) -> Tensor:
        padded = self.features(states, batch, 0)["token_embeddings"]
        return torch.cat([row[: len(ids)] for row, ids in zip(padded, batch, strict=True)])
