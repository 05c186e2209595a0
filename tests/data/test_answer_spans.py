"""The best spans: against the definition, written out as loops over single windows."""

import numpy as np
import pytest

from hf_bert_impl.data.answer_spans import best_answers
from hf_bert_impl.data.windows import cut_windows
from tests.support.checkpoints import tokenizer_of

TOKENIZER = tokenizer_of(["who", "what", "?", ".", "the", "a", "cat", "dog", "##s", "##ed", "sat"])


def by_definition(windows, starts, ends, max_answer_len):
    """All spans, (score, first token, last token), the null score, and the softmaxes' sum."""
    scored, tokens = [], range(len(windows[0].context.ids))
    null, number = min((start[0] + ends[n][0], n) for n, start in enumerate(starts))
    own_starts, best_ends = [starts[number][0]], [ends[number][0]]
    for first in tokens:
        around = {
            n: min(first - w.first, w.stop - 1 - first) + 0.01 * (w.stop - w.first)
            for n, w in enumerate(windows)
            if w.first <= first < w.stop
        }
        best_ends.append(max(ends[n][first - windows[n].first + windows[n].offset] for n in around))
        number = max(around, key=around.get)
        window = windows[number]
        own_starts.append(starts[number][first - window.first + window.offset])
        for last in range(first, min(first + max_answer_len, window.stop)):
            end = ends[number][last - window.first + window.offset]
            scored.append((own_starts[-1] + end, first, last))
    total = np.logaddexp.reduce(own_starts) + np.logaddexp.reduce(best_ends)
    return sorted(scored, key=lambda item: -item[0]), null, total


@pytest.mark.parametrize("seed", range(100))
def test_best_spans_are_those_of_the_definition(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers([1, 8, 0, 1, 1], [31, 21, 6, 10, 13]).tolist()
    total, length, stride, max_answer_len, top_k = sizes
    stride, pairs = min(stride, length - 7), [("who sat ?", "the cat sat . " * total)]
    [windows] = cut_windows(TOKENIZER, pairs, max_seq_len=length, doc_stride=stride)
    logits = [[rng.normal(size=len(window)) * 3 for window in windows] for _ in range(2)]
    expected, null, total_score = by_definition(windows, *logits, max_answer_len)
    found = best_answers(
        windows, *logits, top_k=top_k, max_answer_len=max_answer_len, align_to_words=False
    )
    context = windows[0].context
    assert [(span.start, span.end) for span in found.spans] == [
        (context.starts[first], context.ends[last]) for _, first, last in expected[:top_k]
    ]
    scores = np.array([score for score, _, _ in expected[:top_k]])
    assert [span.score for span in found.spans] == pytest.approx(scores)
    probabilities = np.exp(scores - total_score)
    assert [span.probability for span in found.spans] == pytest.approx(probabilities)
    assert found.null_probability == pytest.approx(np.exp(null - total_score))
    assert found.null_score == pytest.approx(null)
    assert found.null_score_diff == pytest.approx(null - expected[0][0])
