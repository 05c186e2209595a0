"""Text files to pre-training examples, prepared once and kept on disk.

The `datasets` library prepares them in any number of processes. Its results are memory-mapped
files, so a corpus may exceed the memory. A cache key consists of the files' content, the tokenizer
and the options.

All randomness depends on the seed and on numbers of the data (the document's group, the epoch, the
example), never on the order of processes. The same seed makes the same examples with any number of
processes, and a resumed run gets the examples of an uninterrupted one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_bert_impl.data.documents import (
    Document,
    check_files,
    content_digest,
    no_text,
    read_documents,
)
from hf_bert_impl.data.epochs import GROUP, TOKENIZER_BATCH
from hf_bert_impl.data.examples import ExampleOptions, check_pairs, cut_examples
from hf_bert_impl.data.tokenized_documents import TokenizedDocument, tokenize, tokenizer_state
from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import require

if TYPE_CHECKING:
    from datasets import Dataset

#: Part of every cache key. Raise it when the same input gives other examples.
FORMAT = 2


@dataclass(frozen=True)
class Statistics:
    """Statistics of a corpus."""

    documents: int
    sentences: int
    tokens: int
    """Without special tokens, each document counted once."""
    examples: int
    unigram_entropy: float
    """In nats per token: the loss of predicting each token by its frequency in this text."""
    random_pairs: float | None
    """The share of examples whose second segment is random; None without pairs."""


def tokenize_documents(
    files: Sequence[str | Path],
    tokenizer: Any,
    *,
    layout: str = "sentences",
    column: str | None = None,
    processes: int = 1,
    cache_dir: str | Path | None = None,
) -> Dataset:
    """Reads and tokenizes documents, or loads the cached result of an earlier call.

    Args:
        files: Text files.
        tokenizer: Cuts sentences into token ids.
        layout: One of `documents.LAYOUTS`.
        column: As in `read_texts`.
        processes: Number of processes.
        cache_dir: None for the cache of `datasets`.

    Returns:
        One row per document: `tokens` of all its sentences, and the `lengths` of the sentences.

    Raises:
        ValueError: A file is missing or cannot be read, the files have no text, or `cache_dir` is
            not writable.
    """
    if cache_dir is not None:
        _check_cache(Path(cache_dir))
    datasets = require("datasets", "train", "preparing pre-training data")
    check_files(files, column)
    names = [str(Path(file).resolve()) for file in files]
    source = {
        "files": names,
        "layout": layout,
        "column": column,
        "digest": content_digest(files),
        "format": FORMAT,
    }
    try:
        texts = datasets.Dataset.from_generator(
            _generate_documents,
            gen_kwargs=source,
            features=datasets.Features({"sentences": [datasets.Value("string")]}),
            cache_dir=cache_dir and str(cache_dir),
        )
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, ValueError | OSError):
            raise error.__cause__ from None  # the error of the files
        raise
    tokenized = texts.map(
        _tokenize,
        batched=True,
        batch_size=TOKENIZER_BATCH,
        num_proc=_useful(processes, len(texts)),
        remove_columns=texts.column_names,
        fn_kwargs={"tokenizer": tokenizer},
        new_fingerprint=_fingerprint(source, tokenizer_state(tokenizer)),
        desc="tokenizing",
    )
    if not len(tokenized):
        raise no_text(names)
    return tokenized


def _check_cache(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(
            f"`cache_dir` is {folder!s:.200}, where nothing can be written ({error.strerror}). "
            "Choose another folder.",
            "cache_dir",
        ) from None


def hold_out(documents: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Draws whole documents at random to set aside.

    Args:
        documents: Rows of any kind.
        share: The share to set aside, at least one document.
        seed: The seed of the draw.

    Returns:
        The remaining and the drawn documents, both in their order.

    Raises:
        ValueError: The share is out of range, or no document would remain.
    """
    count = max(1, round(share * len(documents)))
    if not 0 < share < 1 or count >= len(documents):
        raise InputError(
            f"holding out {share} of {len(documents)} documents leaves one side empty. "
            "Name validation files instead."
        )
    drawn = np.sort(np.random.default_rng(seed).permutation(len(documents))[:count])
    return documents.select(np.setdiff1d(np.arange(len(documents)), drawn)), documents.select(drawn)


def make_examples(
    documents: Dataset, tokenizer: Any, options: ExampleOptions, *, processes: int = 1
) -> Dataset:
    """Cuts tokenized documents into examples, or loads the cached result of an earlier call.

    Args:
        documents: From `tokenize_documents`.
        tokenizer: Has the special tokens.
        options: How to cut.
        processes: Number of processes.

    Returns:
        One row per example, as `PretrainingCollator` takes them.

    Raises:
        ValueError: The documents make no pairs.
    """
    datasets = require("datasets", "train", "preparing pre-training data")
    if options.objective == "mlm+nsp":
        lengths = documents.select_columns("lengths").iter(batch_size=GROUP)
        longest = (max(map(len, rows["lengths"])) for rows in lengths)
        check_pairs(len(documents), next((count for count in longest if count > 1), 1))
    groups = (len(documents) + GROUP - 1) // GROUP
    jobs = datasets.Dataset.from_dict(
        {
            "copy": [copy for copy in range(options.dupe_factor) for _ in range(groups)],
            "group": [*range(groups)] * options.dupe_factor,
        }
    )
    key = _fingerprint(documents._fingerprint, asdict(options), tokenizer.all_special_ids)
    folder = Path(documents.cache_files[0]["filename"]).parent
    return jobs.map(
        _make_group,
        batched=True,
        batch_size=1,
        num_proc=_useful(processes, len(jobs)),
        remove_columns=jobs.column_names,
        fn_kwargs={"documents": documents, "tokenizer": tokenizer, "options": options},
        new_fingerprint=key,
        cache_file_name=str(folder / f"examples-{key}.arrow"),
        desc="making examples",
    )


def describe(documents: Dataset, examples: Dataset) -> Statistics:
    """The statistics of a corpus."""
    sentences = random_pairs = 0
    counts = np.zeros(0, dtype=np.int64)
    for rows in documents.with_format("numpy").iter(batch_size=GROUP):
        sentences += sum(map(len, rows["lengths"]))
        grown = np.bincount(np.concatenate(list(rows["tokens"])), minlength=len(counts))
        grown[: len(counts)] += counts
        counts = grown
    has_pairs = "next_sentence_label" in examples.column_names
    if has_pairs:
        for rows in examples.select_columns("next_sentence_label").iter(batch_size=GROUP):
            random_pairs += sum(rows["next_sentence_label"])
    shares = counts[counts > 0] / counts.sum()
    return Statistics(
        documents=len(documents),
        sentences=sentences,
        tokens=int(counts.sum()),
        examples=len(examples),
        unigram_entropy=float(-(shares * np.log(shares)).sum()),
        random_pairs=random_pairs / len(examples) if has_pairs else None,
    )


class _StoredDocuments(Sequence[TokenizedDocument]):
    """Documents read from disk one by one."""

    def __init__(self, rows: Dataset) -> None:
        self._rows = rows.with_format("numpy")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        row = self._rows[int(index)]
        return TokenizedDocument(row["tokens"], row["lengths"])


def _generate_documents(
    files: list[str], layout: str, column: str | None, digest: str, format: int
) -> Iterator[dict[str, Document]]:
    """Documents for `datasets`, whose cache key is made of these arguments."""
    is_empty = True
    for document in read_documents(files, layout, column):
        is_empty = False
        yield {"sentences": document}
    if is_empty:
        raise no_text(files)


def _tokenize(rows: dict[str, list[Document]], tokenizer: Any) -> dict[str, list[Any]]:
    documents = [document for document in tokenize(rows["sentences"], tokenizer) if len(document)]
    return {
        "tokens": [document.ids for document in documents],
        "lengths": [document.lengths for document in documents],
    }


def _make_group(
    job: dict[str, list[int]], documents: Dataset, tokenizer: Any, options: ExampleOptions
) -> dict[str, list[Any]]:
    copy, group = job["copy"][0], job["group"][0]
    rng = Random(f"{options.seed}/{copy}/{group}")
    indices = range(group * GROUP, min((group + 1) * GROUP, len(documents)))
    made = [*cut_examples(_StoredDocuments(documents), indices, rng, tokenizer, options)]
    return {name: [example[name] for example in made] for name in made[0]}


def _fingerprint(*parts: Any) -> str:
    from datasets.fingerprint import Hasher

    return str(Hasher.hash([FORMAT, *parts]))


def _useful(processes: int, rows: int) -> int | None:
    """The number of processes for `datasets`; None computes in this process."""
    processes = min(processes, rows)
    return processes if processes > 1 else None
