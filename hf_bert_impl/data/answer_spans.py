"""The best answers of a question, from the scores of its windows.

The span from token i to token j ≥ i of the context has the score S·Tᵢ + E·Tⱼ, the sum of its start
and end logits (Devlin et al. 2018, section 4.2). A span belongs to the window in which its first
token has the most context, so that each counts once. The null answer (the context has no answer)
has the score S·C + E·C of [CLS], its minimum over the windows (ibid., section 4.3, and Google's
run_squad.py).

Notation: N tokens of a context, L maximum tokens of an answer.
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
    """A piece of a context as an answer, from character `start` up to `end`.

    `score` is S·Tᵢ + E·Tⱼ. `probability` is P(start) · P(end), each from a softmax over all tokens
    of the context and the null answer.
    """

    start: int
    end: int
    score: float
    probability: float


@dataclasses.dataclass(frozen=True)
class Answers:
    """A model's answers to one question: one span or more, best first, and the null answer."""

    context: str
    spans: tuple[Span, ...]
    null_score: float
    null_probability: float

    @property
    def null_score_diff(self) -> float:
        """The null answer's score minus the best span's score."""
        return self.null_score - self.spans[0].score

    def text(self, span: Span) -> str:
        return self.context[span.start : span.end]


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
        windows: All windows of the question, from `cut_windows`.
        start_logits: For each window, the score of each token as the first of the answer; entries
            after the window's length (padding) are ignored.
        end_logits: The same for the last token of the answer.
        top_k: Maximum number of spans, all with different characters.
        max_answer_len: Maximum tokens of an answer (L).
        align_to_words: Widen spans to whole words, where the tokenizer cuts words.
    """
    context = windows[0].context
    owner = max_context_windows(windows)  # (N,)
    width = min(max_answer_len, len(owner))  # L
    starts = np.full(len(owner), -np.inf)  # S·Tᵢ in the window that i belongs to
    ends = np.full(len(owner), -np.inf)  # the maximum of E·Tⱼ over windows
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
        # Row i: the end logits of i, i + 1, …, and -inf beyond the window.
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
    """The spans with the highest of the (N, L) scores, all with different characters."""
    starts = context.word_starts if align_to_words else context.starts
    ends = context.word_ends if align_to_words else context.ends
    flat = scores.ravel()
    # A stable sort keeps spans with equal scores in the order of the text.
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
