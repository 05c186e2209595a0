"""From the scores of a question's windows to its best answers: one place for all who ask.

The span from token i to token j ≥ i of the context has the score S·Tᵢ + E·Tⱼ, the sum of its start
and end logits (Devlin et al. 2018, section 4.2). A span belongs to the window in which its first
token has the most context, so that each is counted once. The null answer, that the context holds
none, has the score S·C + E·C of [CLS], the least over the windows (ibid., section 4.3, and Google's
run_squad.py).

Notation: N tokens of a context, L most tokens of an answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hf_bert_impl.data.windows import Context, Window, max_context_windows

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Span:
    """A piece of a context as an answer."""

    start: int
    """Its first character."""
    end: int
    """The character after its last one."""
    score: float
    """S·Tᵢ + E·Tⱼ."""
    probability: float
    """P(start) · P(end), each by a softmax over all tokens of the context and the null answer."""


@dataclasses.dataclass(frozen=True)
class Answers:
    """What the model says to one question."""

    context: str
    spans: tuple[Span, ...]
    """One or more, best first."""
    null_score: float
    """S·C + E·C."""
    null_probability: float
    """The probability of the null answer, computed as that of a `Span`."""

    @property
    def null_score_diff(self) -> float:
        """How far the null answer is ahead of the best span; negative where it is behind."""
        return self.null_score - self.spans[0].score

    def text(self, span: Span) -> str:
        """The text of a span."""
        return self.context[span.start : span.end]

    def best_text(self, null_score_diff_threshold: float | None = None) -> str:
        """The text of the best answer, empty for the null answer.

        Args:
            null_score_diff_threshold: The null answer is given where `null_score_diff` is above it;
                None never gives it.
        """
        threshold = null_score_diff_threshold
        if threshold is not None and self.null_score_diff > threshold:
            return ""
        return self.text(self.spans[0])


def best_answers(
    windows: Sequence[Window],
    start_logits: Sequence[Any],
    end_logits: Sequence[Any],
    *,
    top_k: int = 1,
    max_answer_len: int = 15,
    align_to_words: bool = True,
) -> Answers:
    """Finds the best spans of one question among all of its windows.

    Args:
        windows: All windows of the question, as `cut_windows` gives them.
        start_logits: For each window, a score for each of its tokens as the first of the answer;
            what comes after the window's length (padding) is not looked at.
        end_logits: Likewise as the last.
        top_k: Most spans to return; of those with the same characters, the best.
        max_answer_len: Most tokens of an answer (L).
        align_to_words: Widen spans to whole words, where the tokenizer cuts words.

    Returns:
        The answers.
    """
    context = windows[0].context
    owner = max_context_windows(windows)  # (N,)
    width = min(max_answer_len, len(owner))  # L
    starts = np.full(len(owner), -np.inf)  # S·Tᵢ in the window that i belongs to
    ends = np.full(len(owner), -np.inf)  # the greatest E·Tⱼ of any window
    scores = np.full((len(owner), width), -np.inf)  # of the span from i to i + column
    null_start = null_end = np.inf
    for number, window in enumerate(windows):
        start = np.asarray(start_logits[number], dtype=np.float64)
        end = np.asarray(end_logits[number], dtype=np.float64)
        if start[0] + end[0] < null_start + null_end:
            null_start, null_end = float(start[0]), float(end[0])
        part = slice(window.offset, window.offset + window.stop - window.first)
        start, end = start[part], end[part]
        here = slice(window.first, window.stop)
        ends[here] = np.maximum(ends[here], end)
        own = np.flatnonzero(owner[here] == number)
        starts[here][own] = start[own]
        # Row i: the end logits of i, i + 1, …; beyond the window there is no answer.
        reach = sliding_window_view(np.append(end, np.full(width - 1, -np.inf)), width)
        scores[here][own] = start[own, None] + reach[own]

    sums = np.logaddexp.reduce([np.append(starts, null_start), np.append(ends, null_end)], axis=1)
    total = float(sums.sum())
    null_score = null_start + null_end
    return Answers(
        context=context.text,
        spans=_best_spans(context, scores, total, top_k, align_to_words),
        null_score=null_score,
        null_probability=float(np.exp(null_score - total)),
    )


def _best_spans(
    context: Context, scores: Floats, total: float, top_k: int, align_to_words: bool
) -> tuple[Span, ...]:
    """The spans with the highest of the (N, L) scores, different in their characters."""
    starts = context.word_starts if align_to_words else context.starts
    ends = context.word_ends if align_to_words else context.ends
    flat = scores.ravel()
    # Spans with equal scores stay in the order of the text.
    order = [int(flat.argmax())] if top_k == 1 else np.argsort(-flat, kind="stable").tolist()
    spans: dict[tuple[int, int], Span] = {}
    for place in order:
        score = float(flat[place])
        if len(spans) == top_k or score == -np.inf:
            break
        first, length = divmod(place, scores.shape[1])
        start, end = int(starts[first]), int(ends[first + length])
        spans.setdefault((start, end), Span(start, end, score, float(np.exp(score - total))))
    return tuple(spans.values())
