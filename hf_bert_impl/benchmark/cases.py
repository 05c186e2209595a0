"""What is measured: mixes of sequence lengths in padded batches, and texts.

Notation: B batch, S sequence.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hf_bert_impl.errors import check_choice
from hf_bert_impl.measuring.batches import LOG_SPREAD, Case, log_normal_lengths, scale_lengths

if TYPE_CHECKING:
    from torch import Tensor


class Unavailable(Exception):
    """A contestant or a case cannot run, or has failed; the message says why, in a few words."""


#: Positions of BERT itself. For a model with fewer, all lengths of a case shrink in proportion.
POSITIONS = 512
#: For `line`: rows of the batches, their longest length, and how many times as wide they are.
LINE_ROWS, LINE_LONGEST, LINE_WIDTHS = (8, 16, 24, 32), 64, (1, 2, 4)
LINE_LOG_MEAN = 3.2
#: One label in this many tokens, as BERT's pre-training has it (Devlin et al. 2019, section 3.1).
LABEL_SHARE = 0.15
IGNORED = -100
#: `train` times a forward and a backward pass, and, by this name, a step of the optimizer.
UPDATE = "AdamW step"
#: How many parts texts are cut into. A round takes one part, so a pass over them gives 5 ratios.
PARTS = 5


def _uniform(least: int, greatest: int) -> Callable[[int], list[int]]:
    """Lengths by the number of rows, each as likely as the others."""

    def lengths(rows: int) -> list[int]:
        draw = random.Random(0)
        return [draw.randint(least, greatest) for _ in range(rows)]

    return lengths


@dataclasses.dataclass(frozen=True)
class CaseKind:
    """What is known of a case before a model is."""

    what: str
    """What is measured, for people."""
    rows: int = 0
    """Sequences of its batch, where it is a single one."""
    lengths: Callable[[int], list[int]] = log_normal_lengths
    """Their lengths, by the number of rows."""
    texts: int = 0
    """Texts (pairs, documents) where contestants take text and tokenise it themselves."""


#: In the order in which the report shows them.
CASES = {
    "short": CaseKind("32 sentences, log-normal lengths 4..128: about 55 % of it is padding", 32),
    "uniform": CaseKind("32 sequences, lengths uniform over 4..128", 32, _uniform(4, 128)),
    "long": CaseKind("8 documents, lengths uniform over 33..500", 8, _uniform(33, 500)),
    "full": CaseKind("16 sequences of 64: no padding at all", 16, _uniform(64, 64)),
    "sentence": CaseKind("one sentence of 12 tokens", 1, _uniform(12, 12)),
    "busy": CaseKind("short, while as many busy processes as threads compute beside it", 32),
    "line": CaseKind("cost against total tokens: the same tokens, padded 1, 2 and 4 times as wide"),
    "train": CaseKind(
        "masked-LM training step, 12 log-normal lengths: about 70 % padding; dropout off",
        12,
        # They spread more than those of `short`, so more of the batch is padding.
        lambda rows: log_normal_lengths(rows, mean=3.5, spread=0.9),
    ),
    "sts": CaseKind(
        "the sentences of STS 2014 as they come, 32 a batch; Spearman of their mean vectors"
    ),
    "encode": CaseKind("text to sentence vectors, tokenising included", texts=5000),
    "dense": CaseKind("SentenceTransformer.encode on sentences of STS", texts=5000),
    "cross-encoder": CaseKind(
        "CrossEncoder.predict: a question beside passages of 30 to 300 tokens", texts=500
    ),
    "sparse": CaseKind(
        "SparseEncoder.encode_document (SPLADE) on documents of 30 to 300 tokens", texts=250
    ),
    "multi-vector": CaseKind(
        "MultiVectorEncoder.encode_document (ColBERT) on documents of 30 to 300 tokens", texts=500
    ),
}
BATCHES = tuple(name for name, kind in CASES.items() if kind.rows)
FROM_TEXT = tuple(name for name, kind in CASES.items() if kind.texts)
TEXTS = ("sts", *FROM_TEXT)
#: Models of sentence-transformers: as they come, and after `hf_bert_impl.optimize`.
LIBRARY = tuple(name for name in FROM_TEXT if name != "encode")
#: Cases that need hidden states only. Both of ours and every runtime can run them.
FORWARD = (*(name for name in BATCHES if name != "train"), "sts")
#: Tokens of a passage, least and greatest.
PASSAGE_TOKENS = (30, 300)


def make_case(name: str, rows: int | None = None, positions: int = POSITIONS) -> Case:
    """The batch of a case.

    Args:
        name: A case of `BATCHES`.
        rows: Sequences; None takes the usual number.
        positions: How many the model has.

    Returns:
        The case, its width the longest length.

    Raises:
        ValueError: It is no such case.
    """
    check_choice("the single batch", name, BATCHES)
    kind = CASES[name]
    lengths = scale_lengths(kind.lengths(kind.rows if rows is None else rows), positions)
    return Case(name, tuple(lengths), max(lengths))


def line_cases(
    positions: int = POSITIONS, rows: Sequence[int] = LINE_ROWS
) -> list[tuple[Case, ...]]:
    """The batches of `line`: for each number of rows the same lengths at several widths."""
    groups = []
    for number in rows:
        lengths = log_normal_lengths(number, LINE_LOG_MEAN, LOG_SPREAD, 4, LINE_LONGEST)
        lengths = scale_lengths(lengths, positions)
        widths = [min(positions, factor * max(lengths)) for factor in LINE_WIDTHS]
        groups.append(tuple(Case("line", tuple(lengths), width) for width in widths))
    return groups


def make_labels(batch: dict[str, Tensor]) -> Tensor:
    """(B, S) labels of masked-LM training: the ids at 15 % of the real tokens, elsewhere -100."""
    import torch

    mask = batch["attention_mask"]
    generator = torch.Generator().manual_seed(1)
    chosen = torch.rand(mask.shape, generator=generator).to(mask.device) < LABEL_SHARE
    chosen &= mask.bool()
    chosen[0, 0] = True  # without any label there would be no loss
    return batch["input_ids"].masked_fill(~chosen, IGNORED)
