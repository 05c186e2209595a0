"""Pre-training examples: pairs or spans of documents with their special tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_bert_impl.data.next_sentence import make_pairs
from hf_bert_impl.data.option_ranges import check_ranges
from hf_bert_impl.data.text_spans import make_spans, pack
from hf_bert_impl.data.tokenized_documents import TokenizedDocument
from hf_bert_impl.errors import InputError, check_choice

OBJECTIVES = ("mlm+nsp", "mlm")

Example = dict[str, Any]


@dataclass(frozen=True)
class ExampleOptions:
    """How documents become examples."""

    objective: str = "mlm+nsp"
    """`mlm+nsp` makes next-sentence pairs, `mlm` spans of one document."""
    max_length: int = 128
    """Maximum tokens of an example, special tokens included."""
    short_seq_prob: float = 0.1
    """Share of documents that are cut to a target length drawn at random."""
    packing: bool = False
    """Fill examples with several spans (objective `mlm`)."""
    given_pairs: bool = False
    """Each document is a pair of sentences, and is not cut (objective `mlm+nsp`)."""
    dupe_factor: int = 1
    """How many times each document is cut, with different cuts and random partners."""
    seed: int = 0
    """The seed of cuts and partners."""

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, OBJECTIVES)
        if self.packing and self.objective != "mlm":
            raise InputError(
                f"packing does not go with objective {self.objective!r}. Use `objective='mlm'`, or "
                "leave `packing` out.",
                "objective='mlm' packing",
            )
        check_ranges(self)


def cut_examples(
    documents: Sequence[TokenizedDocument],
    indices: Sequence[int],
    rng: random.Random,
    tokenizer: Any,
    options: ExampleOptions,
) -> Iterator[Example]:
    """Cuts documents into examples, as `pretraining_collator.PretrainingCollator` takes them.

    Args:
        documents: All documents, for random pairs; none is empty.
        indices: The documents to cut, in this order.
        rng: The only source of randomness.
        tokenizer: Has the special tokens.
        options: How to cut.

    Raises:
        ValueError: The documents make no pairs, or the length is too small.
    """
    cls, sep = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
    length, short = options.max_length, options.short_seq_prob
    if options.objective == "mlm+nsp":
        for first, second, is_random in make_pairs(
            documents,
            indices,
            rng,
            max_length=length,
            short_seq_prob=short,
            given=options.given_pairs,
        ):
            ids = cls + first + sep + second + sep
            types = np.zeros(len(ids), dtype=np.int8)
            types[len(first) + 2 :] = 1
            yield {
                "input_ids": np.array(ids, dtype=np.int32),
                "token_type_ids": types,
                "next_sentence_label": int(is_random),
            }
        return
    spans = [
        cls + span + sep
        for index in indices
        for span in make_spans(documents[index], rng, max_length=length, short_seq_prob=short)
    ]
    if not options.packing:
        yield from ({"input_ids": np.array(span, dtype=np.int32)} for span in spans)
        return
    for numbers in pack([len(span) for span in spans], options.max_length):
        yield {
            "input_ids": np.concatenate([spans[n] for n in numbers]).astype(np.int32),
            "sequence_lengths": np.array([len(spans[n]) for n in numbers], dtype=np.int32),
        }


def check_pairs(documents: int, longest: int) -> None:
    """Checks that documents can make true pairs.

    Args:
        documents: Their number.
        longest: Sentences of the longest document.

    Raises:
        ValueError: Each document is a single sentence.
    """
    if longest < 2:
        raise InputError(
            f"each of the {documents} documents is a single sentence, which no other follows. Use "
            "`layout='files'` or `layout='lines'`, which split sentences, or `objective='mlm'`.",
            "layout='files' layout='lines' objective='mlm'",
        )
