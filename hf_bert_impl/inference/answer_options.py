"""Options of question answering."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class AnswerOptions:
    """Options of `QuestionAnsweringPipeline`, for all calls or for one."""

    top_k: int = 1
    """Maximum number of answers per question; for equal spans only the best."""
    max_answer_len: int = 15
    """Maximum number of tokens of an answer."""
    max_question_len: int = 64
    """Tokens at which a question is cut, with a note."""
    max_seq_len: int | None = None
    """Maximum number of tokens of a window; None for 384, or the model's limit if lower."""
    doc_stride: int | None = None
    """Tokens that two windows share; None for 128, or half of a short window."""
    align_to_words: bool = True
    """Widen answers to whole words; every Chinese character is one."""
    handle_impossible_answer: bool | None = None
    """Allow the answer that the text has none; None if the model was tuned for it."""
    null_score_diff_threshold: float | None = None
    """Minimum lead of the score of 'no answer'; None for the model's setting, or 0."""
