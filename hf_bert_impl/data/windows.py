"""Questions with their contexts as model inputs; a long context gives overlapping windows.

Notation: N tokens of a context, Q tokens of a question, W tokens of a window.
"""

from __future__ import annotations

import dataclasses
import unicodedata
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_bert_impl.data.option_ranges import COUNT, MILLION, Range
from hf_bert_impl.errors import InputError, InputNote, check_offsets

#: Defaults, as in Google's run_squad.py and transformers 4.
MAX_SEQ_LEN = 384
DOC_STRIDE = 128
MAX_QUESTION_LEN = 64

Integers = NDArray[np.int64]


class QuestionCut(InputNote):
    """A question exceeded `max_question_len`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Context:
    """A text in tokens: (N,) ids, and the first and last characters of each token and of its word.

    Places count characters (code points) of the original text; each `end` is the character after.
    """

    text: str
    ids: Integers
    starts: Integers
    ends: Integers
    word_starts: Integers
    word_ends: Integers


@dataclasses.dataclass(frozen=True)
class Frame:
    """The tokens around a part of the context: ``[CLS] question [SEP]`` and ``[SEP]`` in BERT."""

    before: list[int]
    before_types: list[int]
    after: list[int]
    after_types: list[int]
    context_type: int


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """One input of the model: a question and the context's tokens from `first` up to `stop`.

    ``len(window)`` is W.
    """

    context: Context
    frame: Frame
    first: int
    stop: int

    def __len__(self) -> int:
        return self.offset + self.stop - self.first + len(self.frame.after)

    @property
    def offset(self) -> int:
        """The position in the window of its first context token."""
        return len(self.frame.before)

    @property
    def input_ids(self) -> list[int]:
        """(W,) token ids."""
        part = self.context.ids[self.first : self.stop].tolist()
        return [*self.frame.before, *part, *self.frame.after]

    @property
    def token_type_ids(self) -> list[int]:
        """(W,) token types."""
        part = [self.frame.context_type] * (self.stop - self.first)
        return [*self.frame.before_types, *part, *self.frame.after_types]

    def positions(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and last positions in the window of a piece of the context.

        Args:
            start: The first character of the piece.
            end: The character after it.

        Returns:
            Both positions, or None if the window does not contain the whole piece.
        """
        context = self.context
        first = int(np.searchsorted(context.ends, start, side="right"))
        last = int(np.searchsorted(context.starts, end, side="left")) - 1
        if not self.first <= first <= last < self.stop:
            return None
        return first - self.first + self.offset, last - self.first + self.offset


def cut_windows(
    tokenizer: Any,
    pairs: Sequence[tuple[str, str]],
    *,
    max_seq_len: int = MAX_SEQ_LEN,
    doc_stride: int | None = None,
    max_question_len: int = MAX_QUESTION_LEN,
) -> list[list[Window]]:
    """Tokenizes questions with their contexts and cuts long contexts into windows.

    A context of several questions is tokenized once.

    Args:
        tokenizer: A transformers tokenizer that runs on the `tokenizers` library.
        pairs: Each a question and its context.
        max_seq_len: Maximum tokens of a window, including the question and special tokens.
        doc_stride: Context tokens that two neighbouring windows share, as in transformers (in
            run_squad.py it is the distance between their starts). None takes `DOC_STRIDE`, or half
            of `max_seq_len` or of the context's tokens per window where that is less.
        max_question_len: Tokens at which a question is cut, with a `QuestionCut` warning.

    Returns:
        The windows of each pair, one or more, in the order of the context.

    Raises:
        ValueError: A context is empty, or the lengths leave too few tokens for it.
        InputError: The tokenizer has no offsets.
    """
    check_lengths(max_seq_len, doc_stride, max_question_len)
    check_offsets(tokenizer)
    contexts = _tokenize_contexts(tokenizer, [context for _, context in pairs])
    frames = _frames(tokenizer, [question for question, _ in pairs], max_question_len)
    cut = []
    for (question, text), frame in zip(pairs, frames, strict=True):
        context = contexts[text]
        if not len(context.ids):
            raise InputError(
                f"the context of the question {question[:60]!r} is empty. Give a text to search."
            )
        room, total = max_seq_len - len(frame.before) - len(frame.after), len(context.ids)
        if room < 1:
            raise InputError(
                f"the question {question[:60]!r} leaves no tokens for the context: with special "
                f"tokens it has {max_seq_len - room}, and max_seq_len is {max_seq_len}. Raise "
                "`max_seq_len`, or lower `max_question_len`.",
                "max_seq_len max_question_len",
            )
        stride = min(DOC_STRIDE, max_seq_len // 2, room // 2) if doc_stride is None else doc_stride
        if total > room and stride >= room:
            raise InputError(
                f"doc_stride={stride} is not smaller than the {room} tokens that the question "
                f"{question[:60]!r} leaves for the context. Lower `doc_stride`, or raise "
                "`max_seq_len`.",
                "doc_stride max_seq_len",
            )
        ends = range(room, total + room - stride, room - stride) if total > room else [total]
        cut.append([Window(context, frame, max(end - room, 0), min(end, total)) for end in ends])
    return cut


def check_lengths(max_seq_len: int, doc_stride: int | None, max_question_len: int) -> None:
    """Raises InputError for lengths that fit no text."""
    COUNT.check("max_seq_len", max_seq_len)
    Range(0, MILLION, whole=True).check("doc_stride", doc_stride or 0)
    COUNT.check("max_question_len", max_question_len)
    if doc_stride is not None and doc_stride >= max_seq_len:
        raise InputError(
            f"doc_stride={doc_stride} is not smaller than the window of {max_seq_len} tokens. "
            "Lower `doc_stride`, or raise `max_seq_len`.",
            "doc_stride max_seq_len",
        )


def max_context_windows(windows: Sequence[Window]) -> Integers:
    """For each token of a context, the window in which it has the most context around it.

    The rule of run_squad.py (Devlin et al. 2018): the smaller of the numbers of tokens on either
    side within the window, plus a hundredth of the window's context tokens; the first of equal
    windows.

    Args:
        windows: All windows of one question.

    Returns:
        (N,) numbers of windows.
    """
    total = len(windows[0].context.ids)
    best, owner = np.full(total, -np.inf), np.zeros(total, dtype=np.int64)
    for number, window in enumerate(windows):
        length = window.stop - window.first
        left = np.arange(length)
        score = np.minimum(left, left[::-1]) + 0.01 * length
        part = slice(window.first, window.stop)
        better = score > best[part]
        best[part][better] = score[better]
        owner[part][better] = number
    return owner


def _tokenize_contexts(tokenizer: Any, texts: Sequence[str]) -> dict[str, Context]:
    unique = list(dict.fromkeys(texts))
    contexts = {}
    for text, encoding in zip(unique, _encode(tokenizer, unique), strict=True):
        starts, ends = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
        # Words have ascending numbers. A token without one is a word alone.
        words = np.array(
            [-1 - n if word is None else word for n, word in enumerate(encoding.word_ids)],
            dtype=np.int64,
        )
        new = np.flatnonzero(np.diff(words, prepend=words[:1] - 1))  # first token of each word
        lengths = np.diff(new, append=len(words))
        word_starts, word_ends = starts[new], ends[new + lengths - 1]
        contexts[text] = Context(
            text=text,
            ids=np.array(encoding.ids, dtype=np.int64),
            starts=starts,
            ends=_with_marks(text, starts, ends),
            word_starts=np.repeat(word_starts, lengths),
            word_ends=np.repeat(_with_marks(text, word_starts, word_ends), lengths),
        )
    return contexts


def _with_marks(text: str, starts: Integers, ends: Integers) -> Integers:
    """The ends, moved behind combining marks that belong to no token.

    The normalizer drops the accent of an e written as e and U+0301, which readers see as one
    letter.
    """
    if text.isascii():
        return ends
    marks = np.array([unicodedata.category(letter)[0] == "M" for letter in text] + [False])
    places = np.arange(len(marks))
    # For each place, the next one (or itself) without a mark.
    behind = np.minimum.accumulate(np.where(marks, len(text), places)[::-1])[::-1]
    limits = np.append(starts[1:], len(text))
    return np.maximum(ends, np.minimum(behind[ends], limits))


def _frames(tokenizer: Any, questions: list[str], max_question_len: int) -> list[Frame]:
    # A short pair shows the places of the special tokens.
    pair = tokenizer(["a"], ["a"], padding=False, truncation=False)[0]
    part = pair.sequence_ids  # None for special tokens, 0 for the question, 1 for the context
    question_start, context_start = part.index(0), part.index(1)
    context_stop = len(part) - part[::-1].index(1)
    left = slice(question_start)
    between = slice(len(part) - part[::-1].index(0), context_start)
    types = pair.type_ids
    frames, cut = [], 0
    for encoding in _encode(tokenizer, questions):
        ids = encoding.ids[:max_question_len]
        cut += len(ids) < len(encoding.ids)
        frames.append(
            Frame(
                before=[*pair.ids[left], *ids, *pair.ids[between]],
                before_types=[*types[left], *[types[question_start]] * len(ids), *types[between]],
                after=pair.ids[context_stop:],
                after_types=types[context_stop:],
                context_type=types[context_start],
            )
        )
    if cut:
        warnings.warn(
            f"questions cut after max_question_len={max_question_len} tokens: {cut} of "
            f"{len(questions)}. Raise it to read them whole.",
            QuestionCut,
            stacklevel=3,
        )
    return frames


def _encode(tokenizer: Any, texts: list[str]) -> list[Any]:
    if not texts:
        return []
    options = {"add_special_tokens": False, "padding": False, "truncation": False}
    return tokenizer(texts, verbose=False, **options).encodings
