"""notebooks/lessons: tokens and numbers, sentence pairs, and what stands in for missing data."""

import random

import pytest

from lessons import data
from lessons.translation_data import Pair, batches, load_chinese_to_english
from lessons.vocabulary import (
    BEGIN,
    END,
    PAD,
    UNKNOWN,
    Vocabulary,
    pad,
    shift_right,
    split_chinese,
    split_english,
)


def test_splitting():
    assert split_english("It’s 5 o'clock, Tom!") == ["it's", "5", "o'clock", ",", "tom", "!"]
    assert split_chinese("Tom有35本书。\u200b") == ["Tom", "有", "35", "本", "书", "。"]


def test_vocabulary():
    vocabulary = Vocabulary([["b", "a", "b"], ["c", "a", "b"]], at_least=2)
    assert vocabulary.tokens[4:] == ["b", "a"]
    assert vocabulary.encode(["a", "c"]) == [5, UNKNOWN, END]
    assert vocabulary.decode([BEGIN, 4, 5, END, 4]) == ["b", "a"]


def test_teacher_forcing_reads_one_place_behind():
    targets = pad([[7, 8, END], [9, END]])
    assert targets.tolist() == [[7, 8, END], [9, END, PAD]]
    assert shift_right(targets).tolist() == [[BEGIN, 7, 8], [BEGIN, 9, END]]


def test_missing_data_are_said(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("HF_BERT_DATA", raising=False)
    assert data.find("sst2/train.tsv") is None
    assert "HF_BERT_DATA is not set, so sst2/train.tsv is missing" in capsys.readouterr().out
    monkeypatch.setenv("HF_BERT_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"which has no sst2/train\.tsv"):
        data.find("sst2/train.tsv")


REAL = {"longest": 8, "at_least": 5}


@pytest.mark.parametrize("is_real", [pytest.param(True, marks=pytest.mark.slow), False])
def test_pairs_and_their_batches(monkeypatch, is_real, request):
    """No test sentence is trained on, and batches hold every pair once, with little padding."""
    monkeypatch.delenv(data.VARIABLE, raising=False)
    if is_real:
        monkeypatch.setenv(data.VARIABLE, str(request.getfixturevalue("data_dir")))
    pairs = load_chinese_to_english(test_size=100, **(REAL if is_real else {}))
    assert pairs.generated != is_real
    assert len(pairs.test) == 100 and (not is_real or len(pairs.train) > 5000)
    sources = {pair.source for pair in pairs.train}
    targets = {pair.target for pair in pairs.train}
    assert all(pair.source not in sources and pair.target not in targets for pair in pairs.test)
    assert pairs.reversed().train[0] == Pair(pairs.train[0].target, pairs.train[0].source)
    made = []
    for source, target in batches(
        pairs.train, pairs.source, pairs.target, 32, rng=random.Random(0)
    ):
        assert len(source) == len(target) <= 32
        # The sentences of a batch have about one length, so hardly any of it is padding.
        assert (target == PAD).float().mean() < 0.5
        rows = zip(source.tolist(), target.tolist(), strict=True)
        made += [(tuple(pairs.source.decode(s)), tuple(pairs.target.decode(t))) for s, t in rows]
    assert sorted(made) == sorted((pair.source, pair.target) for pair in pairs.train)
