"""A question and its context as the model reads them: windows that overlap where a context is long.

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
    """A question was longer than its share of a window."""


@dataclasses.dataclass(frozen=True, eq=False)
class Context:
    """A text in tokens. Places are counted in characters (code points) of the original text."""

    text: str
    ids: Integers
    """(N,) token ids."""
    starts: Integers
    """(N,) the first character of each token."""
    ends: Integers
    """(N,) the character after its last one."""
    word_starts: Integers
    """(N,) the first character of the word that a token belongs to."""
    word_ends: Integers
    """(N,) the character after that word."""


@dataclasses.dataclass(frozen=True)
class Frame:
    """What stands around a part of the context: ``[CLS] question [SEP]`` and ``[SEP]`` in BERT."""

    before: list[int]
    before_types: list[int]
    after: list[int]
    after_types: list[int]
    context_type: int
    """The token type of the context."""

    def room(self, max_seq_len: int) -> int:
        """How many tokens of a context fit in."""
        return max_seq_len - len(self.before) - len(self.after)


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """One input of the model: a question and the tokens first, first + 1, …, stop - 1 of a context.

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
        """Where in the window the context's tokens begin."""
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
        """The first and the last token of the window that hold a piece of the context.

        Args:
            start: The first character of the piece.
            end: The character after it.

        Returns:
            Both positions in the window, or None where it does not hold the whole piece.
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

    A context that several questions have in common is tokenized once.

    Args:
        tokenizer: A tokenizer of transformers that runs on the `tokenizers` library.
        pairs: Each a question and its context.
        max_seq_len: Most tokens of a window, the question's and [CLS] and [SEP] among them.
        doc_stride: Tokens of the context that two neighbouring windows share, as transformers has
            it (run_squad.py calls the distance between their beginnings so). None takes
            `DOC_STRIDE`, or half of the window's length or of its room where that is less.
        max_question_len: Tokens at which a question is cut, with a `QuestionCut` warning.

    Returns:
        For each pair its windows, one or more, from the beginning of the context to its end.

    Raises:
        ValueError: A context is empty, a question leaves no room for it, or `doc_stride` is not
            smaller than that room.
        InputError: The tokenizer is not a fast one.
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
                f"the context of the question {question[:60]!r} is empty",
                "a text in which to look for the answer",
                "give one",
            )
        room, total = frame.room(max_seq_len), len(context.ids)
        if room < 1:
            raise InputError(
                f"the question {question[:60]!r} leaves no room for the context: with the special "
                f"tokens it has {max_seq_len - room} tokens",
                f"fewer than max_seq_len={max_seq_len}",
                "raise that, or lower `max_question_len`",
            )
        stride = min(DOC_STRIDE, max_seq_len // 2, room // 2) if doc_stride is None else doc_stride
        if total > room and stride >= room:
            raise InputError(
                f"doc_stride={stride} is not smaller than the room for the context, {room} of "
                f"{max_seq_len} tokens beside the question {question[:60]!r}",
                "a smaller one",
                "lower `doc_stride`, or raise `max_seq_len`",
            )
        ends = range(room, total + room - stride, room - stride) if total > room else [total]
        cut.append([Window(context, frame, max(end - room, 0), min(end, total)) for end in ends])
    return cut


def check_lengths(max_seq_len: int, doc_stride: int | None, max_question_len: int) -> None:
    """Checks what can be checked without a text.

    Raises:
        ValueError: Names the value and what is allowed.
    """
    COUNT.check("max_seq_len", max_seq_len)
    Range(0, MILLION, whole=True).check("doc_stride", doc_stride or 0)
    COUNT.check("max_question_len", max_question_len)
    if doc_stride is not None and doc_stride >= max_seq_len:
        raise InputError(
            f"doc_stride={doc_stride} is not smaller than the window, max_seq_len={max_seq_len}",
            "a smaller one",
            "lower `doc_stride`, or raise `max_seq_len`",
        )


def max_context_windows(windows: Sequence[Window]) -> Integers:
    """For each token of a context, the window in which it has the most context around it.

    That is the rule of run_squad.py (Devlin et al. 2018): the smaller of the numbers of tokens on
    either side within the window, plus a hundredth of the window's part of the context; the first
    of equal ones.

    Args:
        windows: Those of one question.

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
        # Words have ascending numbers; a token without one is a word of its own.
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

    The normaliser drops the accent of an e written as e and U+0301; on paper it is one letter.
    """
    if text.isascii():
        return ends
    marks = np.array([unicodedata.category(letter)[0] == "M" for letter in text] + [False])
    places = np.arange(len(marks))
    # For each place, the next one (or itself) that holds no mark.
    behind = np.minimum.accumulate(np.where(marks, len(text), places)[::-1])[::-1]
    limits = np.append(starts[1:], len(text))
    return np.maximum(ends, np.minimum(behind[ends], limits))


def _frames(tokenizer: Any, questions: list[str], max_question_len: int) -> list[Frame]:
    # Where the special tokens stand is read off a short pair.
    pair = tokenizer(["a"], ["a"], padding=False, truncation=False)[0]
    part = pair.sequence_ids  # None for special tokens, 0 for the question, 1 for the context
    question_start, context_start = part.index(0), part.index(1)
    question_stop = len(part) - part[::-1].index(0)
    context_stop = len(part) - part[::-1].index(1)
    frames, cut = [], 0
    for encoding in _encode(tokenizer, questions):
        ids = encoding.ids[:max_question_len]
        cut += len(ids) < len(encoding.ids)
        types = [pair.type_ids[question_start]] * len(ids)
        between = slice(question_stop, context_start)
        frames.append(
            Frame(
                before=[*pair.ids[:question_start], *ids, *pair.ids[between]],
                before_types=[
                    *pair.type_ids[:question_start],
                    *types,
                    *pair.type_ids[between],
                ],
                after=pair.ids[context_stop:],
                after_types=pair.type_ids[context_stop:],
                context_type=pair.type_ids[context_start],
            )
        )
    if cut:
        warnings.warn(
            f"questions cut after max_question_len={max_question_len} tokens: {cut} of "
            f"{len(questions)}; raise it to read them whole",
            QuestionCut,
            stacklevel=3,
        )
    return frames


def _encode(tokenizer: Any, texts: list[str]) -> list[Any]:
    if not texts:
        return []
    options = {"add_special_tokens": False, "padding": False, "truncation": False}
    encodings: list[Any] = tokenizer(texts, verbose=False, **options).encodings
    return encodings
