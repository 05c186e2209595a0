"""Documents as token ids, with the borders of their sentences."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_bert_impl.data.documents import Document


class TokenizedDocument:
    """The token ids of a document; its length is the number of its sentences.

    Args:
        ids: (T,) of all sentences, without special tokens.
        lengths: Tokens of each sentence, which add up to T.
    """

    def __init__(self, ids: NDArray[np.integer], lengths: NDArray[np.integer]) -> None:
        self.ids = ids
        self.lengths = lengths
        #: (sentences + 1,) where each sentence begins, and where the last one ends.
        self._borders = np.concatenate([[0], np.cumsum(lengths)])

    @classmethod
    def from_sentences(cls, sentences: Iterable[Sequence[int]]) -> "TokenizedDocument":
        """Makes one from the token ids of each sentence; empty sentences are dropped."""
        rows = [np.asarray(sentence, dtype=np.int32) for sentence in sentences if len(sentence)]
        ids = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32)
        return cls(ids, np.array([len(row) for row in rows], dtype=np.int32))

    def __len__(self) -> int:
        return len(self.lengths)

    def tokens(self, start: int, end: int) -> list[int]:
        """The token ids of the sentences from `start` up to `end`, without `end`."""
        return self.ids[self._borders[start] : self._borders[end]].tolist()

    def reach(self, start: int, target: int) -> int:
        """The end of the fewest sentences from `start` on with `target` tokens, or of all."""
        end = int(np.searchsorted(self._borders, self._borders[start] + target))
        return min(max(end, start + 1), len(self))


def tokenizer_state(tokenizer: Any) -> str:
    """Everything that decides a tokenizer's ids, to detect changes."""
    if tokenizer.is_fast:
        return str(tokenizer.backend_tokenizer.to_str())
    settings = {name: str(value) for name, value in tokenizer.init_kwargs.items()}
    for place in ("name_or_path", *tokenizer.vocab_files_names):
        settings.pop(place, None)  # the vocabulary itself counts
    state = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items()), settings]
    return json.dumps(state, sort_keys=True)


def tokenize(documents: Sequence[Document], tokenizer: Any) -> list[TokenizedDocument]:
    """Cuts the sentences of documents into token ids.

    A document is empty where the tokenizer has no token for its text.
    """
    encoded = tokenizer(
        [sentence for document in documents for sentence in document],
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,  # a sentence may be longer than the model takes: it is cut later
    )
    ids = iter(encoded["input_ids"])
    return [TokenizedDocument.from_sentences([next(ids) for _ in doc]) for doc in documents]
