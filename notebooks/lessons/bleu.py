"""BLEU (Papineni et al., 2002, section 2.3) as sacrebleu computes it, on this lesson's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def corpus_bleu(
    written: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> float:
    """BLEU of a corpus, 0 to 100.

    Args:
        written: N tokenised sentences.
        references: N lists of one or more correct translations, tokenised.

    Returns:
        The score. Tokens are characters of Chinese and words of English.
    """
    import sacrebleu

    most = max(map(len, references))
    # sacrebleu takes the first references of all sentences, then all second ones, and so on. It
    # takes None for a missing reference.
    columns: Any = [
        [" ".join(known[number]) if number < len(known) else None for known in references]
        for number in range(most)
    ]
    score = sacrebleu.corpus_bleu(
        [" ".join(tokens) for tokens in written], columns, tokenize="none", force=True
    )
    return float(score.score)
