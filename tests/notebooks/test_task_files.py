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


@pytest.mark.parametrize("is_real", [True, False])
@pytest.mark.parametrize("make", TASKS, ids=lambda make: make.__name__)
def test_parts_of_real_data_or_samples(make, is_real, with_data, monkeypatch, tmp_path, capsys):
    """The same ones each time, of which samples say that they are."""
    if not is_real:
        monkeypatch.delenv(data.VARIABLE)
    name, columns = TASKS[make]
    texts = []
    for _ in range(2):
        files = make(tmp_path, 17, 9)
        train, dev = (make_task(name, columns).read(file) for file in (files.train, files.dev))
        assert 0 < len(train) <= 17 and 0 < len(dev) <= 9
        texts.append(list(map(str, train)))
    assert texts[0] == texts[1]
    assert ("NOTE: HF_BERT_DATA is not set" in capsys.readouterr().out) != is_real


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
