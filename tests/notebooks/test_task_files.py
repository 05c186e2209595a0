"""The labelled data of the notebooks: parts of real files, or samples, that the readers read."""

import pytest

from hf_bert_impl.data.squad import read_squad
from hf_bert_impl.tasks.base import Columns
from hf_bert_impl.tasks.registry import make_task
from lessons import data, samples, task_files

TASKS = {
    task_files.sentiment: ("classification", Columns("0", None, "1")),
    task_files.entailment: (
        "classification",
        Columns("sentence_A", "sentence_B", "entailment_judgment"),
    ),
    task_files.tagging: ("token-classification", Columns()),
    task_files.sentence_questions: ("question-answering", None),
}


@pytest.fixture
def without_data(monkeypatch):
    monkeypatch.delenv(data.VARIABLE, raising=False)


@pytest.fixture
def with_data(monkeypatch, tmp_path):
    """A folder in the form of the real data."""
    folder = tmp_path / "data"
    for name, ending, generate in (
        ("sst2", "tsv", samples.sentiment),
        ("sick", "txt", samples.entailment),
        ("wnut17", "conll", samples.tagging),
        ("squad_v2", "json", samples.questions),
    ):
        (folder / name).mkdir(parents=True)
        for seed, part in enumerate(("train", "dev")):
            generate(folder / name / f"{part}.{ending}", 40, seed)
    monkeypatch.setenv(data.VARIABLE, str(folder))
    return folder


def examples(make, folder, train, dev):
    files = make(folder, train, dev)
    name, columns = TASKS[make]
    task = make_task(name, columns)
    return task.read(files.train), task.read(files.dev)


@pytest.mark.parametrize("make", TASKS, ids=lambda make: make.__name__)
def test_samples_stand_in_for_missing_data(make, without_data, tmp_path, capsys):
    train, dev = examples(make, tmp_path, 17, 9)
    assert (len(train), len(dev)) == (17, 9)
    assert "NOTE: HF_BERT_DATA is not set" in capsys.readouterr().out


@pytest.mark.parametrize("make", TASKS, ids=lambda make: make.__name__)
def test_some_of_the_real_data_are_drawn(make, with_data, tmp_path, capsys):
    train, dev = examples(make, tmp_path, 17, 9)
    assert 0 < len(train) <= 17 and 0 < len(dev) <= 9
    assert not capsys.readouterr().out
    again, _ = examples(make, tmp_path, 17, 9)
    assert [str(example) for example in train] == [str(example) for example in again]


def test_a_sentence_holds_the_answer_or_none(with_data, tmp_path):
    files = task_files.sentence_questions(tmp_path, 30, 30)
    questions = read_squad(files.train).questions
    assert {bool(question.answers) for question in questions} == {True, False}
    for question in questions:
        assert question.context.count(".") == 1
        for answer in question.answers:
            assert question.context[answer.start :].startswith(answer.text)
    files = task_files.sentence_questions(tmp_path / "new", 12, 9, without_answer=0)
    assert all(question.answers for question in read_squad(files.dev).questions)
