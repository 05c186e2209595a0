"""Examples of pre-training: next-sentence pairs, and spans."""

import random

import pytest

from hf_bert_impl.data.next_sentence import make_pairs
from hf_bert_impl.data.text_spans import make_spans
from hf_bert_impl.data.tokenized_documents import TokenizedDocument

DOCUMENTS = 400


def corpus(sentences=(1, 19), length=(2, 23), documents=DOCUMENTS):
    """Documents whose tokens are their places: 10,000 times the document, plus a number."""
    rng = random.Random(3)
    made = []
    for number in range(documents):
        place = iter(range(10_000 * number, 10_000 * (number + 1)))
        lengths = [rng.randint(*length) for _ in range(rng.randint(*sentences))]
        made.append(
            TokenizedDocument.from_sentences([next(place) for _ in range(n)] for n in lengths)
        )
    return made


def pairs_of(documents, max_length=64, seed=5, **options):
    rng, indices = random.Random(seed), range(len(documents))
    return list(make_pairs(documents, indices, rng, max_length=max_length, **options))


def is_run(tokens):
    return tokens == list(range(tokens[0], tokens[0] + len(tokens)))


def home(tokens):
    return {token // 10_000 for token in tokens}


@pytest.mark.parametrize(
    ("max_length", "sentences", "length"),
    [
        (5, (1, 19), (1, 90)),
        (17, (1, 19), (1, 90)),
        (64, (2, 19), (2, 23)),
        (200, (2, 19), (1, 23)),
        # Many documents are one sentence, which can only have a random partner.
        (64, (1, 5), (2, 23)),
    ],
)
def test_true_pairs_follow_and_random_ones_are_of_another_document(max_length, sentences, length):
    """The longest fill the length; half are random where sentences are shorter than it."""
    pairs = pairs_of(corpus(sentences, length, documents=1000), max_length)
    for first, second, is_random in pairs:
        # Each side is neighbouring text of one document.
        assert is_run(first) and is_run(second)
        assert (home(first) != home(second)) == is_random
        # B follows A; between them lies only what was cut from their ends.
        assert is_random or second[0] > first[-1]
    assert max(len(first) + len(second) for first, second, _ in pairs) == max_length - 3
    count, share = len(pairs), sum(pair.is_random for pair in pairs) / len(pairs)
    assert count > 1200
    # Five standard deviations of a fair coin.
    assert max_length < 64 or abs(share - 0.5) < 5 * 0.5 / count**0.5


def test_most_pairs_are_full_and_some_are_short():
    long = corpus((40, 60), (5, 11))

    def share(probability):
        lengths = [len(a) + len(b) for a, b, _ in pairs_of(long, 128, short_seq_prob=probability)]
        return sum(length < 100 for length in lengths) / len(lengths)

    # The last pair of a document may be short too.
    assert share(0.0) < DOCUMENTS / 2000
    assert share(0.1) - share(0.0) == pytest.approx(0.16, abs=0.03)


def test_all_text_is_met():
    """Sentences that a random partner displaced begin the next chunk."""
    documents = corpus((1, 9), (1, 9))
    pairs = pairs_of(documents, max_length=900, short_seq_prob=0.3)
    met = {
        token for first, second, is_random in pairs for token in first + second * (not is_random)
    }
    assert met == {token for document in documents for token in document.ids.tolist()}


# --- pairs that the text has -----------------------------------------------------------------


def test_given_pairs_stay_or_get_another_ones_second():
    documents = corpus(sentences=(2, 2), length=(1, 9))
    pairs = pairs_of(documents, given=True)
    assert len(pairs) == len(documents)
    seconds = {tuple(document.tokens(1, 2)) for document in documents}
    for number, (first, second, is_random) in enumerate(pairs):
        assert first == documents[number].tokens(0, 1)
        assert tuple(second) in seconds
        assert (second != documents[number].tokens(1, 2)) == is_random
    assert 0.42 < sum(pair.is_random for pair in pairs) / len(pairs) < 0.58
    assert pairs_of(documents, given=True) == pairs != pairs_of(documents, seed=6, given=True)
    for first, second, _ in pairs_of(corpus((2, 2), (1, 60)), 23, given=True):
        assert first and second and len(first) + len(second) <= 20


# --- spans ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "spans"),
    [
        ([3], [3]),
        ([7, 7, 7], [14, 7]),
        ([15], [15]),
        ([16, 2], [15, 3]),
        ([8, 8, 40], [8, 8, 15, 15, 10]),
    ],
)
def test_whole_sentences_where_they_fit(lengths, spans):
    place = iter(range(100))
    document = TokenizedDocument.from_sentences([[next(place) for _ in range(n)] for n in lengths])
    found = [*make_spans(document, random.Random(0), max_length=17)]
    assert [len(span) for span in found] == spans
    assert [token for span in found for token in span] == document.ids.tolist()
