"""What is measured: mixes of sequence lengths in padded batches, and texts.

Notation: B batch, S sequence.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hf_bert_impl.errors import check_choice
from hf_bert_impl.measuring.batches import LOG_SPREAD, Case, log_normal_lengths, scale_lengths

if TYPE_CHECKING:
    from torch import Tensor


class Unavailable(Exception):
    """A contestant or a case cannot run here; the message says why, in a few words."""


#: Positions of BERT itself. For a model with fewer, all lengths of a case shrink in proportion.
POSITIONS = 512
#: The lengths of `train` spread more than those of `short`, so more of the batch is padding.
TRAIN_LOG_MEAN, TRAIN_LOG_SPREAD = 3.5, 0.9
#: For `line`: rows of the batches, their longest length, and how many times as wide they are.
LINE_ROWS, LINE_LONGEST, LINE_WIDTHS = (8, 16, 24, 32), 64, (1, 2, 4)
LINE_LOG_MEAN = 3.2
#: One label in this many tokens, as BERT's pre-training has it (Devlin et al. 2019, section 3.1).
LABEL_SHARE = 0.15
IGNORED = -100
#: What `train` measures: a forward and a backward pass, and a step of the optimizer.
STEP, UPDATE = "training step", "AdamW step"
#: How many parts texts are cut into. A round takes one part, so a pass over them gives 5 ratios.
PARTS = 5

#: Every case with its description, in the order in which the report shows them.
CASES = {
    "short": "32 sentences, log-normal lengths 4..128: about 55 % of the batch is padding",
    "uniform": "32 sequences, lengths uniform over 4..128",
    "long": "8 documents, lengths uniform over 33..500",
    "full": "16 sequences of 64: no padding at all",
    "sentence": "one sentence of 12 tokens",
    "busy": "short, while as many busy processes as threads compute beside it",
    "line": "cost against total tokens: the same tokens, padded 1, 2 and 4 times as wide",
    "train": "masked-LM training step, 12 log-normal lengths: about 70 % padding; dropout off",
    "sts": "the sentences of STS 2014 as they come, 32 a batch; Spearman of their mean vectors",
    "encode": "text to sentence vectors, tokenising included",
    "dense": "SentenceTransformer.encode on sentences of STS",
    "cross-encoder": "CrossEncoder.predict: a question beside passages of 30 to 300 tokens",
    "sparse": "SparseEncoder.encode_document (SPLADE) on documents of 30 to 300 tokens",
    "multi-vector": "MultiVectorEncoder.encode_document (ColBERT) on documents of 30 to 300 tokens",
}
ROWS = {"short": 32, "uniform": 32, "long": 8, "full": 16, "sentence": 1, "busy": 32, "train": 12}
#: Least and greatest length of the cases whose lengths are uniform.
UNIFORM = {"uniform": (4, 128), "long": (33, 500), "full": (64, 64), "sentence": (12, 12)}
#: Cases that need hidden states only. Both of ours and every runtime can run them.
FORWARD = ("short", "uniform", "long", "full", "sentence", "busy", "sts")
#: Models of sentence-transformers: as they come, and after `hf_bert_impl.optimize`.
LIBRARY = ("dense", "cross-encoder", "sparse", "multi-vector")
#: Cases whose contestants take text and tokenise it themselves.
FROM_TEXT = ("encode", *LIBRARY)
TEXTS = ("sts", *FROM_TEXT)
#: How many texts (pairs, documents) such a case has.
SENTENCES = {
    "encode": 5000,
    "dense": 5000,
    "cross-encoder": 500,
    "sparse": 250,
    "multi-vector": 500,
}
#: Tokens of a passage, least and greatest.
PASSAGE_TOKENS = (30, 300)


def make_case(name: str, rows: int | None = None, positions: int = POSITIONS) -> Case:
    """The batch of a case.

    Args:
        name: A case of `ROWS` (not `line`, `sts` or `encode`, which are several batches).
        rows: Sequences; None takes the number of `ROWS`.
        positions: How many the model has.

    Returns:
        The case, its width the longest length.

    Raises:
        ValueError: There is no such case.
    """
    check_choice("the single batch", name, ROWS)
    rows = ROWS[name] if rows is None else rows
    if name in ("short", "busy"):
        lengths = log_normal_lengths(rows)
    elif name == "train":
        lengths = log_normal_lengths(rows, TRAIN_LOG_MEAN, TRAIN_LOG_SPREAD)
    else:
        draw = random.Random(0)
        least, greatest = UNIFORM[name]
        lengths = [draw.randint(least, greatest) for _ in range(rows)]
    lengths = scale_lengths(lengths, positions)
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
