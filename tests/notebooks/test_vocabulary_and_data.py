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


def check_pairs(pairs):
    sources = {pair.source for pair in pairs.train}
    targets = {pair.target for pair in pairs.train}
    assert all(pair.source not in sources and pair.target not in targets for pair in pairs.test)
    for pair in pairs.train[:50]:
        assert pairs.source.decode(pairs.source.encode(pair.source)) == list(pair.source)
        assert UNKNOWN not in pairs.target.encode(pair.target)
    backwards = pairs.reversed()
    assert backwards.train[0] == Pair(pairs.train[0].target, pairs.train[0].source)
    assert backwards.source is pairs.target


@pytest.mark.slow
def test_real_pairs(monkeypatch, data_dir):
    monkeypatch.setenv("HF_BERT_DATA", str(data_dir))
    pairs = load_chinese_to_english(longest=8, at_least=5, test_size=200)
    assert not pairs.generated and len(pairs.test) == 200 and len(pairs.train) > 5000
    assert max(len(pair.target) for pair in pairs.train) == 8
    check_pairs(pairs)


def test_batches_hold_every_generated_pair_once(monkeypatch):
    monkeypatch.delenv("HF_BERT_DATA", raising=False)
    pairs = load_chinese_to_english(test_size=100)
    assert pairs.generated and len(pairs.test) == 100
    check_pairs(pairs)
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
