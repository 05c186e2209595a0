"""The data of the lessons: tokens and numbers, sentence pairs, labels, real or generated."""

import random

import pytest

from hf_bert_impl.data.squad import read_squad
from hf_bert_impl.tasks.base import Columns
from hf_bert_impl.tasks.registry import make_task
from lessons import data, samples, task_files, vocabulary
from lessons.translation_data import Pair, batches, load_chinese_to_english
from lessons.vocabulary import BEGIN, END, PAD, UNKNOWN, Vocabulary, pad, shift_right


def test_tokens_and_numbers():
    english = ["it's", "5", "o'clock", ",", "tom", "!"]
    assert vocabulary.split_english("It’s 5 o'clock, Tom!") == english
    assert vocabulary.split_chinese("Tom有35本书。\u200b") == ["Tom", "有", "35", "本", "书", "。"]
    numbered = Vocabulary([["b", "a", "b"], ["c", "a", "b"]], at_least=2)
    assert numbered.tokens[4:] == ["b", "a"]
    assert numbered.encode(["a", "c"]) == [5, UNKNOWN, END]
    assert numbered.decode([BEGIN, 4, 5, END, 4]) == ["b", "a"]
    targets = pad([[7, 8, END], [9, END]])
    assert targets.tolist() == [[7, 8, END], [9, END, PAD]]
    assert shift_right(targets).tolist() == [[BEGIN, 7, 8], [BEGIN, 9, END]]


def test_missing_data_are_said(monkeypatch, tmp_path):
    """Where no folder is named, samples are taken instead."""
    monkeypatch.setenv("HF_BERT_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"which has no sst2/train\.tsv"):
        data.find("sst2/train.tsv")


REAL = {"longest": 8, "at_least": 5}


@pytest.mark.parametrize("is_real", [pytest.param(True, marks=pytest.mark.slow), False])
def test_pairs_and_their_batches(monkeypatch, is_real, request):
    """No test sentence is trained on, and batches hold every pair once, with little padding."""
    folder = str(request.getfixturevalue("data_dir")) if is_real else ""
    monkeypatch.setenv(data.VARIABLE, folder)
    pairs = load_chinese_to_english(test_size=100, **(REAL if is_real else {}))
    assert pairs.generated != is_real
    assert len(pairs.test) == 100 and (not is_real or len(pairs.train) > 5000)
    sources = {pair.source for pair in pairs.train}
    targets = {pair.target for pair in pairs.train}
    assert all(pair.source not in sources and pair.target not in targets for pair in pairs.test)
    assert pairs.reversed().train[0] == Pair(pairs.train[0].target, pairs.train[0].source)
    made = []
    drawn = batches(pairs.train, pairs.source, pairs.target, 32, rng=random.Random(0))
    for source, target in drawn:
        assert len(source) == len(target) <= 32
        # The sentences of a batch have about one length, so hardly any of it is padding.
        assert (target == PAD).float().mean() < 0.5
        rows = zip(source.tolist(), target.tolist(), strict=True)
        made += [(tuple(pairs.source.decode(s)), tuple(pairs.target.decode(t))) for s, t in rows]
    assert sorted(made) == sorted((pair.source, pair.target) for pair in pairs.train)


QUESTIONS = make_task("question-answering")
LABELS = Columns("0", None, "1")
PAIRS = Columns("sentence_A", "sentence_B", "entailment_judgment")
#: By function: real files, what generates such files here, and the task that reads them.
TASKS = {
    task_files.sentiment: ("sst2/{}.tsv", samples.sentiment, make_task("classification", LABELS)),
    task_files.entailment: ("sick/{}.txt", samples.entailment, make_task("classification", PAIRS)),
    task_files.tagging: ("wnut17/{}.conll", samples.tagging, make_task("token-classification")),
    task_files.sentence_questions: ("squad_v2/{}.json", samples.questions, QUESTIONS),
}


@pytest.mark.parametrize("is_real", [True, False])
@pytest.mark.parametrize("make", TASKS, ids=lambda make: make.__name__)
def test_parts_of_real_data_or_samples(make, is_real, write, monkeypatch, tmp_path, capsys):
    """The same ones each time, of which samples say that they are."""
    file, generate, task = TASKS[make]
    monkeypatch.setenv(data.VARIABLE, str(tmp_path) * is_real)
    for seed, part in enumerate(("train", "dev")):
        generate(write(file.format(part), ""), 40, seed)
    texts = []
    for _ in range(2):
        files = make(tmp_path, 17, 9)
        train, dev = (task.read(file) for file in (files.train, files.dev))
        assert 0 < len(train) <= 17 and 0 < len(dev) <= 9
        texts.append(list(map(str, train)))
    assert texts[0] == texts[1]
    assert ("NOTE: HF_BERT_DATA is not set" in capsys.readouterr().out) != is_real


def test_a_sentence_holds_the_answer_or_none(monkeypatch, tmp_path):
    monkeypatch.setenv(data.VARIABLE, "")
    files = task_files.sentence_questions(tmp_path, 30, 30)
    questions = read_squad(files.train).questions
    assert {bool(question.answers) for question in questions} == {True, False}
    for question in questions:
        assert question.context.count(".") == 1
        for answer in question.answers:
            assert question.context[answer.start :].startswith(answer.text)
    files = task_files.sentence_questions(tmp_path / "new", 12, 9, without_answer=0)
    assert all(question.answers for question in read_squad(files.dev).questions)
