"""Vocabularies of words: which ids they have, and how text is cut."""

import pytest

from hf_bert_impl.data.word_vocabulary import SPECIAL_TOKENS, train_words
from hf_bert_impl.inference.loading import load_tokenizer

TEXT = "to be or\tnot to be <mask>\n\nthat is the question to\n"


def tokens(tokenizer):
    ids = tokenizer.get_vocab()
    assert sorted(ids.values()) == [*range(len(ids))]
    return sorted(ids, key=ids.get)


def test_ids_go_down_with_the_counts(write):
    made, report = train_words([write("a.txt", TEXT)])
    words = ["to", "be", "is", "not", "or", "question", "that", "the"]
    assert tokens(made) == [*SPECIAL_TOKENS, *words]
    assert (report.vocab_size, report.words, report.unknown_rate) == (13, 8, 0)


@pytest.mark.parametrize(
    ("options", "words", "unknown"),
    [
        ({"vocab_size": 8}, ["to", "be", "is"], 5 / 11),
        ({"min_frequency": 2}, ["to", "be"], 6 / 11),
        ({"min_frequency": 3}, ["to"], 8 / 11),
        ({"min_frequency": 2, "vocab_size": 6}, ["to"], 8 / 11),
    ],
)
def test_rare_words_become_unknown(write, options, words, unknown):
    made, report = train_words([write("a.txt", TEXT)], **options)
    assert tokens(made) == [*SPECIAL_TOKENS, *words]
    assert report.unknown_rate == pytest.approx(unknown)
    assert report.words == 8


def test_a_vocabulary_without_config_is_loaded(write, tmp_path):
    """As pre-training takes it, before there is a model."""
    train_words([write("a.txt", TEXT)])[0].save_pretrained(tmp_path / "words")
    batch = load_tokenizer(str(tmp_path / "words"), {})([("to be", "or nothing"), ("not", "is")])
    assert batch["input_ids"] == [[3, 5, 6, 2, 9, 1, 2], [3, 8, 2, 7, 2]]
    assert batch["token_type_ids"] == [[1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 2, 2]]


def test_a_column(write):
    made, _ = train_words([write("a.csv", "id,text\nx1,one two\nx2,two<br />\n")], column="text")
    assert tokens(made)[5:] == ["two", "one"]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (" \n\t\n", {}, "holds nothing but white space; expected text"),
        ("a b", {"vocab_size": 5}, "vocab_size=5 and min_frequency=1 leave no word"),
        ("a b", {"min_frequency": 2}, "min_frequency=2 leave no word"),
        ("<pad> <mask>", {}, "leave no word|nothing but white space"),
        ("a", {"vocab_size": 0}, "vocab_size is 0"),
        ("a", {"min_frequency": 0}, "min_frequency is 0"),
        (b"\xff\xfe\xff\xff", {}, "UTF-8"),
    ],
)
def test_wrong_input(write, text, options, message):
    with pytest.raises(ValueError, match=message):
        train_words([write("a.txt", text)], **options)
