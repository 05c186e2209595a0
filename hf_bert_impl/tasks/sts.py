"""Semantic textual similarity: rank correlation of cosines with human scores.

The score is Spearman's correlation over all pairs of a set ("all" in Gao et al. 2021, appendix B,
https://arxiv.org/abs/2104.08821), not the mean over its files.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hf_bert_impl.data.arrow_records import is_dataset
from hf_bert_impl.data.text_input import form_of, read_records, sound
from hf_bert_impl.errors import InputError
from hf_bert_impl.tasks.metrics import regression_metrics

#: A line, for messages.
LAYOUT = "gold TAB sentence TAB sentence"
#: In files with named columns.
COLUMNS = ("score", "sentence1", "sentence2")


@dataclasses.dataclass(frozen=True)
class StsFile:
    """The pairs of one source with their human scores."""

    name: str
    gold: list[float]
    pairs: list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class StsScore:
    """Correlations of a set, times 100."""

    pairs: int
    spearman: float
    pearson: float


def read_sts(path: str | Path) -> list[StsFile]:
    """Reads pairs of sentences with their similarity.

    Tables have the gold score and the two sentences in their first three columns, and no header.
    JSON, Parquet and data sets have `score`, `sentence1` and `sentence2`. Rows without a score are
    skipped, as the sets of 2015 and 2016 have many.

    Args:
        path: A file as `read_records` reads it, or a folder whose files are one set.

    Returns:
        The files with scored pairs, by name.

    Raises:
        ValueError: The path is missing or has no pair, or a line has another form.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise InputError(f"there is no file or folder {path}. Check the path.")
    names = [path]
    if path.is_dir() and not is_dataset(path):
        names = sorted(filter(Path.is_file, path.glob("[!._]*")))
    files = [file for file in map(_read_file, names) if file.pairs]
    if not files:
        raise InputError(f"{path} has no pair with a gold score. Write each line as {LAYOUT}.")
    return files


def _read_file(path: Path) -> StsFile:
    file = StsFile(path.name, [], [])
    is_table = form_of(path) not in ("json", "parquet", "folder")
    columns = ("0", "1", "2") if is_table else COLUMNS
    # Some lines of 2015 and 2016 have further fields for their sources. Fields that are missing,
    # such as those of a README in the folder, are reported below.
    rows = read_records(path, columns, header=False, ragged=True, optional=is_table)
    for row in sound(rows, path):
        place, (gold, *pair) = row.place, row.values
        if gold is None or not str(gold).strip():
            continue
        if not all(isinstance(text, str) for text in pair):
            raise InputError(f"{place} has no two sentences. Write each line as {LAYOUT}.")
        file.gold.append(gold_score(gold, place))
        file.pairs.append((pair[0], pair[1]))
    return file


def gold_score(value: Any, place: str) -> float:
    """A human score as a finite number; InputError with its place otherwise."""
    try:
        gold = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        gold = math.nan
    if not math.isfinite(gold):
        raise InputError(f"{place} has the gold score {str(value)[:40]!r}, no number. Fix the row.")
    return gold


def similarities(
    encode: Callable[[list[str]], Any], pairs: Sequence[tuple[str, str]]
) -> np.ndarray:
    """The cosine (N,) of each of N pairs, float64.

    Args:
        encode: Texts to (texts, D) vectors, such as `TextEncoder.encode`.
        pairs: Texts.
    """
    # Each sentence is encoded once, though several pairs may contain it.
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    row = {text: index for index, text in enumerate(texts)}
    vectors = np.asarray(encode(texts), np.float64)  # (texts, D)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    left = vectors[[row[first] for first, _ in pairs]]  # (N, D)
    right = vectors[[row[second] for _, second in pairs]]
    return (left * right).sum(axis=1)


def evaluate_sts(
    encode: Callable[[list[str]], Any], files: Sequence[StsFile]
) -> tuple[StsScore, dict[str, StsScore]]:
    """Correlates cosines with gold scores.

    Args:
        encode: Texts to (texts, D) vectors, such as `TextEncoder.encode`.
        files: From `read_sts`.

    Returns:
        The score over all pairs, and the score of each file by name.
    """
    cosines = similarities(encode, [pair for file in files for pair in file.pairs])
    rest = iter(cosines)
    by_file = {file.name: _score(file.gold, [*islice(rest, len(file.gold))]) for file in files}
    return _score([gold for file in files for gold in file.gold], cosines), by_file


def _score(gold: Sequence[float], cosines: Any) -> StsScore:
    figures = regression_metrics(gold, cosines)
    return StsScore(len(gold), 100 * figures["spearman"], 100 * figures["pearson"])
