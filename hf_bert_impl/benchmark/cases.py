"""What is measured: mixes of sequence lengths, batches, sentences, and the work that they are.

Lengths come from Python's own `random.Random(seed)`, so a case is the same batch on every machine
and with every version of torch.

Notation: B batch, S sequence, D hidden size, F intermediate size, V vocabulary, L length.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from hf_bert_impl.tasks.sts import StsFile


class Unavailable(Exception):
    """A contestant or a case cannot run here; the message says why, in a few words."""


#: BERT's own; lengths of a case that a model has no positions for are scaled down together.
POSITIONS = 512
#: Sentence lengths of `short`: log-normal, these the mean and spread of the logarithm.
SHORT_LOG_MEAN, SHORT_LOG_SPREAD = 3.9, 0.7
#: The same of `train`: more spread, so more of the batch is padding.
TRAIN_LOG_MEAN, TRAIN_LOG_SPREAD = 3.5, 0.9
#: `line`: rows of each batch, lengths, and how many times as wide the padded batch is.
LINE_ROWS, LINE_LONGEST, LINE_WIDTHS = (8, 16, 24, 32), 64, (1, 2, 4)
LINE_LOG_MEAN = 3.2
#: One label in this many tokens, as BERT's pre-training has it (Devlin et al. 2019, section 3.1).
LABEL_SHARE = 0.15
IGNORED = -100
FIRST_ID = 5
ENCODE_SENTENCES = 5000
#: Cases of texts run in parts, one a round, so that one pass over the texts gives several ratios.
PARTS = 5
#: Texts of a batch of `sts`, as they come.
TEXT_ROWS = 32

#: Every case and what it is, in the order of the table.
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
}
ROWS = {"short": 32, "uniform": 32, "long": 8, "full": 16, "sentence": 1, "busy": 32, "train": 12}
#: Those that take hidden states: every one of ours and every runtime runs them.
FORWARD = ("short", "uniform", "long", "full", "sentence", "busy", "sts")
TEXTS = ("sts", "encode")


@dataclasses.dataclass(frozen=True)
class Case:
    """One padded batch, before it has token ids."""

    name: str
    lengths: tuple[int, ...]
    """Real tokens of each row."""
    width: int
    """Columns of the padded batch: the longest row, or more; 0 for texts, in many batches."""

    @property
    def rows(self) -> int:
        """Sequences in the batch."""
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        """Real tokens in the batch."""
        return sum(self.lengths)

    @property
    def padding(self) -> float:
        """The share of the padded batch that is padding, 0 to 1; of texts `TEXT_ROWS` at a time."""
        if self.width:
            return 1 - self.tokens / (self.rows * self.width)
        starts = range(0, self.rows, TEXT_ROWS)
        batches = [self.lengths[start : start + TEXT_ROWS] for start in starts]
        return 1 - self.tokens / sum(len(batch) * max(batch) for batch in batches)


def log_normal_lengths(
    rows: int, mean: float, spread: float, shortest: int, longest: int, seed: int = 0
) -> list[int]:
    """`rows` times round(exp(normal(mean, spread))), clipped to shortest..longest tokens."""
    draw = random.Random(seed)
    drawn = (round(draw.lognormvariate(mean, spread)) for _ in range(rows))
    return [min(longest, max(shortest, length)) for length in drawn]


def uniform_lengths(rows: int, shortest: int, longest: int, seed: int = 0) -> list[int]:
    """`rows` lengths, each of shortest..longest tokens equally probable."""
    draw = random.Random(seed)
    return [draw.randint(shortest, longest) for _ in range(rows)]


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
    if name not in ROWS:
        raise ValueError(f"no single batch is called {name!r}; there are {', '.join(ROWS)}")
    rows = ROWS[name] if rows is None else rows
    if name in ("short", "busy"):
        lengths = log_normal_lengths(rows, SHORT_LOG_MEAN, SHORT_LOG_SPREAD, 4, 128)
    elif name == "uniform":
        lengths = uniform_lengths(rows, 4, 128)
    elif name == "long":
        lengths = uniform_lengths(rows, 33, 500)
    elif name == "full":
        lengths = [64] * rows
    elif name == "sentence":
        lengths = [12] * rows
    else:
        lengths = log_normal_lengths(rows, TRAIN_LOG_MEAN, TRAIN_LOG_SPREAD, 4, 128)
    lengths = _scaled(lengths, positions)
    return Case(name, tuple(lengths), max(lengths))


def line_cases(
    positions: int = POSITIONS, rows: Sequence[int] = LINE_ROWS
) -> list[tuple[Case, ...]]:
    """The batches of `line`: for each number of rows the same lengths at several widths."""
    groups = []
    for number in rows:
        lengths = log_normal_lengths(number, LINE_LOG_MEAN, SHORT_LOG_SPREAD, 4, LINE_LONGEST)
        lengths = _scaled(lengths, positions)
        widths = [min(positions, factor * max(lengths)) for factor in LINE_WIDTHS]
        groups.append(tuple(Case("line", tuple(lengths), width) for width in widths))
    return groups


def _scaled(lengths: list[int], positions: int) -> list[int]:
    longest = max(lengths)
    if longest <= positions:
        return lengths
    return [max(1, length * positions // longest) for length in lengths]


def make_batch(case: Case, vocab_size: int, device: str = "cpu") -> dict[str, Tensor]:
    """Random ids and the mask of a case: `input_ids` and `attention_mask`, (B, S) each."""
    import torch

    generator = torch.Generator().manual_seed(len(case.lengths))
    lengths = torch.tensor(case.lengths)
    mask = (torch.arange(case.width) < lengths[:, None]).long()  # (B, S)
    longest = max(case.lengths)
    ids = torch.zeros_like(mask)
    # The same tokens whatever the width, so that wider batches of `line` stay comparable.
    ids[:, :longest] = torch.randint(
        min(FIRST_ID, vocab_size - 1), vocab_size, (case.rows, longest), generator=generator
    )
    return {"input_ids": (ids * mask).to(device), "attention_mask": mask.to(device)}


def make_labels(batch: dict[str, Tensor]) -> Tensor:
    """(B, S) labels of masked-LM training: the ids at 15 % of the real tokens, elsewhere -100."""
    import torch

    mask = batch["attention_mask"]
    generator = torch.Generator().manual_seed(1)
    chosen = torch.rand(mask.shape, generator=generator).to(mask.device) < LABEL_SHARE
    chosen &= mask.bool()
    chosen[0, 0] = True  # a loss over nothing would measure nothing
    return batch["input_ids"].masked_fill(~chosen, IGNORED)


def forward_flops(config: Any, lengths: Sequence[int], *, pooler: bool = True) -> int:
    """Floating-point operations of an encoder on real tokens only.

    A multiply-add counts as two. A layer takes, for a sequence of L tokens,
    8 L D² (queries, keys, values, output), 4 L D F (feed-forward) and 4 L² D (scores and the
    weighted sum of values); a pooler takes 2 D² a sequence. Embeddings, LayerNorm, softmax and GELU
    are left out, as torch's own FLOP counter leaves them out.

    Args:
        config: Sizes of the model.
        lengths: Real tokens of each sequence.
        pooler: Whether there is one.

    Returns:
        Operations.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    tokens, squares = sum(lengths), sum(length * length for length in lengths)
    layer = tokens * (8 * hidden**2 + 4 * hidden * inner) + 4 * squares * hidden
    return config.num_hidden_layers * layer + (2 * len(lengths) * hidden**2 if pooler else 0)


def training_flops(config: Any, lengths: Sequence[int], labels: int) -> int:
    """Operations of a masked-LM training step: three times the forward pass.

    The head takes 2 D² + 2 D V for each labelled token; the backward pass is twice the forward one
    (a product for the input's gradient and one for the weight's).
    """
    head = labels * (2 * config.hidden_size**2 + 2 * config.hidden_size * config.vocab_size)
    return 3 * (forward_flops(config, lengths, pooler=False) + head)


def sentences(number: int) -> tuple[list[str], str]:
    """Mixed sentences for `encode`, short reviews among lines of articles.

    Args:
        number: How many.

    Returns:
        The sentences and where they come from: the SST-2 and WikiText-2 files in the folder that
        HF_BERT_DATA names, alternating, or made-up words of log-normal numbers.
    """
    named = os.environ.get("HF_BERT_DATA")
    found = _real_sentences(Path(named)) if named else []
    draw = random.Random(0)
    if found:
        draw.shuffle(found)
        # A file that is too short is read again from its beginning.
        return [found[index % len(found)] for index in range(number)], "SST-2 and WikiText-2"
    lengths = log_normal_lengths(number, 3.0, 0.8, 2, 200)
    words = ["the", "river", "rose", "over", "night", "and", "music", "market", "window", "paper"]
    texts = [" ".join(draw.choice(words) for _ in range(length)) for length in lengths]
    return texts, "made-up sentences (HF_BERT_DATA is not set)"


def sts(year: int, pairs: int | None = None) -> list[StsFile]:
    """The pairs of a year of STS.

    Args:
        year: Of the folder `sts/YEAR` in the one that HF_BERT_DATA names.
        pairs: How many of each source at most; None for all.

    Raises:
        Unavailable: There is no such folder.
    """
    from hf_bert_impl.tasks.sts import StsFile, read_sts

    folder = Path(os.environ.get("HF_BERT_DATA", "")) / "sts" / str(year)
    if not os.environ.get("HF_BERT_DATA") or not folder.is_dir():
        raise Unavailable(f"needs STS {year}: HF_BERT_DATA names no folder with sts/{year}")
    return [StsFile(it.name, it.gold[:pairs], it.pairs[:pairs]) for it in read_sts(folder)]


def sts_texts(files: Sequence[StsFile]) -> list[str]:
    """Every text of these pairs once, in order."""
    return list(dict.fromkeys(text for file in files for pair in file.pairs for text in pair))


def _real_sentences(folder: Path) -> list[str]:
    reviews: list[str] = []
    articles: list[str] = []
    for file in sorted((folder / "sst2").glob("*.tsv")):
        lines = file.read_text(encoding="utf-8").splitlines()
        reviews += [line.rpartition("\t")[0] or line for line in lines if line.strip()]
    for file in sorted((folder / "wikitext2").glob("*.txt")):
        lines = file.read_text(encoding="utf-8").splitlines()
        # Headings are written between equals signs.
        articles += [line.strip() for line in lines if line.strip() and "= " not in line[:3]]
    if not reviews or not articles:
        return reviews or articles
    pairs = zip(reviews, articles, strict=False)
    return [text for pair in pairs for text in pair]
