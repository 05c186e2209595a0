"""Training examples in order: prepared ones epoch by epoch, or made while files are read."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset as TorchIterableDataset

from hf_bert_impl.data.documents import check_files, no_text, read_documents
from hf_bert_impl.data.examples import Example, ExampleOptions, check_pairs, cut_examples
from hf_bert_impl.data.token_budget import cut_batches
from hf_bert_impl.data.tokenized_documents import TokenizedDocument, tokenize
from hf_bert_impl.errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset

#: Documents per group; each group has a random stream of its own.
GROUP = 1000
TOKENIZER_BATCH = 200


class Epochs(TorchDataset):
    """Prepared examples in a new order each epoch, cut to whole batches.

    Args:
        examples: Rows from `make_examples`.
        batch_size: Examples per optimizer step, over all processes.
        seed: The seed of the orders.
        shuffle: False keeps all rows in their order.

    Raises:
        ValueError: There are fewer examples than one batch.
    """

    def __init__(
        self, examples: Dataset, *, batch_size: int, seed: int, shuffle: bool = True
    ) -> None:
        if shuffle and len(examples) < batch_size:
            raise InputError(
                f"the text makes {len(examples)} examples, fewer than a batch of {batch_size}. "
                "Give more text, or lower `batch_size`.",
                "batch_size",
            )
        self.examples = examples
        self.seed = seed
        self.shuffle = shuffle
        self._length = len(examples) // batch_size * batch_size if shuffle else len(examples)
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Selects an epoch; the Trainer calls it before each."""
        self.epoch = epoch
        order = np.arange(len(self.examples))
        generator = np.random.default_rng([self.seed, epoch])
        self._order = generator.permutation(order) if self.shuffle else order

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Example:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Example]:
        """The examples of a batch at once, as torch's data loader requests them."""
        numbers = self._order[indices]
        rows = self.examples.__getitems__(numbers)
        return [
            row | {"mask_key": (self.epoch, int(number))}
            for row, number in zip(rows, numbers, strict=True)
        ]


@dataclasses.dataclass(eq=False)
class StreamedExamples(TorchIterableDataset):
    """Examples made while the files are read, over and over, in constant memory.

    Pairs are drawn and examples shuffled within windows of `GROUP` documents or more.

    Args:
        files: Text files.
        tokenizer: Cuts sentences into token ids.
        options: How to cut documents.
        layout: One of `documents.LAYOUTS`.
        column: As in `read_texts`.
    """

    files: Sequence[str | Path]
    tokenizer: Any
    options: ExampleOptions
    layout: str = "sentences"
    column: str | None = None

    def __post_init__(self) -> None:
        check_files(self.files, self.column)

    def __iter__(self) -> Iterator[Example]:
        epoch = 0
        while True:
            number = 0
            for window, documents in enumerate(self._windows()):
                if self.options.objective == "mlm+nsp" and not epoch and not window:
                    check_pairs(len(documents), max(map(len, documents)))
                rng = random.Random(f"{self.options.seed}/{epoch}/{window}")
                indices = range(len(documents))
                made = [*cut_examples(documents, indices, rng, self.tokenizer, self.options)]
                rng.shuffle(made)
                for example in made:
                    yield example | {"mask_key": (epoch, number)}
                    number += 1
            if not number:
                raise no_text(self.files)
            epoch += 1

    def _windows(self) -> Iterator[list[TokenizedDocument]]:
        held: list[TokenizedDocument] = []
        read = read_documents(self.files, self.layout, self.column)
        for documents in cut_batches(read, len, batch_size=TOKENIZER_BATCH):
            held += filter(len, tokenize(documents, self.tokenizer))
            # Two windows are held, so that the last one is not too small.
            if len(held) >= 2 * GROUP:
                yield held[:GROUP]
                held = held[GROUP:]
        if held:
            yield held
