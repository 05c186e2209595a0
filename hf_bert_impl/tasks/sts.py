"""Semantic textual similarity: how well cosines of sentence vectors rank pairs as people do.

The figure is Spearman's correlation over all pairs of a set ("all" in Gao et al. 2021, appendix B,
https://arxiv.org/abs/2104.08821), not the mean over its files.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_bert_impl.data.arrow_records import is_dataset
from hf_bert_impl.data.text_input import RecordInput, form_of
from hf_bert_impl.errors import InputError
from hf_bert_impl.tasks.metrics import regression_metrics

#: What a line holds, for messages.
LAYOUT = "gold TAB sentence TAB sentence"
#: The columns of files whose columns have names.
COLUMNS = ("score", "sentence1", "sentence2")


@dataclasses.dataclass(frozen=True)
class StsFile:
    """The pairs of one source."""

    name: str
    gold: list[float]
    """The similarity that people gave each pair."""
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
    JSON, Parquet and data sets have `score`, `sentence1` and `sentence2`. Rows without gold are
    passed over: the sets of 2015 and 2016 have many.

    Args:
        path: A file as `RecordInput` reads it, or a folder whose files are one set.

    Returns:
        The files that have pairs with gold, by name.

    Raises:
        ValueError: There is no such file, no pair in it, or a line of another form.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise InputError(f"there is no file or folder {path}", LAYOUT, "check the path")
    names = [path]
    if path.is_dir() and not is_dataset(path):
        names = sorted(
            file for file in path.iterdir() if file.is_file() and file.name[0] not in "._"
        )
    files = [file for file in map(_read_file, names) if file.pairs]
    if not files:
        raise InputError(
            f"{path} has no pair with a gold score",
            LAYOUT,
            "name another file or folder",
        )
    return files


def _read_file(path: Path) -> StsFile:
    found = StsFile(path.name, [], [])
    columns = COLUMNS if form_of(path) in ("json", "parquet", "folder") else ("0", "1", "2")
    with RecordInput(str(path), columns, mend=True, say=lambda note: None) as source:
        for place, (gold, *pair), _ in source.sound():
            if gold is None or not str(gold).strip():
                continue
            if not all(isinstance(text, str) for text in pair):
                raise InputError(f"{place} has no two sentences", LAYOUT, "mend it")
            found.gold.append(gold_score(gold, place, LAYOUT, "mend the line"))
            found.pairs.append((pair[0], pair[1]))
    return found


def gold_score(value: Any, place: str, layout: str, remedy: str) -> float:
    """A similarity that people gave.

    Args:
        value: A number, or its text.
        place: Of its row, for messages.
        layout: What a row holds, for messages.
        remedy: What to do about a wrong one, for messages.

    Raises:
        InputError: It is no finite number.
    """
    try:
        gold = float(value)
    except (TypeError, ValueError):
        gold = math.nan
    if not math.isfinite(gold):
        shown = str(value)[:40]
        raise InputError(f"{place} has the gold score {shown!r}, no number", layout, remedy)
    return gold


def similarities(
    encode: Callable[[list[str]], Any], pairs: Sequence[tuple[str, str]]
) -> np.ndarray[Any, Any]:
    """The cosine of each pair.

    Args:
        encode: Texts to (texts, D) vectors, such as `TextEncoder.encode`.
        pairs: N pairs of texts.

    Returns:
        (N,) float64.
    """
    # A sentence stands in several pairs: it is encoded once.
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    row = {text: index for index, text in enumerate(texts)}
    vectors = np.asarray(encode(texts), np.float64)  # (texts, D)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    left = vectors[[row[first] for first, _ in pairs]]  # (N, D)
    right = vectors[[row[second] for _, second in pairs]]
    cosines: np.ndarray[Any, Any] = (left * right).sum(axis=1)
    return cosines


def evaluate_sts(
    encode: Callable[[list[str]], Any], files: Sequence[StsFile]
) -> tuple[StsScore, dict[str, StsScore]]:
    """Compares cosines with gold scores.

    Args:
        encode: Texts to (texts, D) vectors, such as `TextEncoder.encode`.
        files: What `read_sts` gave.

    Returns:
        The score over all pairs, and that of each file by its name.
    """
    cosines = similarities(encode, [pair for file in files for pair in file.pairs])
    by_file, start = {}, 0
    for file in files:
        by_file[file.name] = _score(file.gold, cosines[start : start + len(file.gold)])
        start += len(file.gold)
    return _score([gold for file in files for gold in file.gold], cosines), by_file


def _score(gold: Sequence[float], cosines: np.ndarray[Any, Any]) -> StsScore:
    figures = regression_metrics(gold, cosines)
    return StsScore(len(gold), 100 * figures["spearman"], 100 * figures["pearson"])
