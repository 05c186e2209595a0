"""Rows of labelled data. test_text_input.py reads every form of file."""

import datasets
import pytest

from hf_bert_impl.data.task_files import read_dataset, read_rows
from hf_bert_impl.errors import InputNote


def values(rows):
    return [row.values for row in rows]


def test_conll(write):
    first = "-DOCSTART-\tX\n\nAnn\tNNP\tB-per\n's\tPOS\tO\n\n"
    file = write("a.conll", f"{first}\u3000\tSP\tO\r\n\t\t\nBob\tNNP\tB-per\n\n\n")
    rows = read_rows(file, ["0", "-1"])
    assert values(rows) == [
        (["Ann", "'s"], ["B-per", "O"]),
        (["\u3000"], ["O"]),
        (["Bob"], ["B-per"]),
    ]
    assert rows[1].place == f"line 6 of {file}"
    spaces = write("b.conll", "Ann  NNP B-per\n's POS O\n")
    assert values(read_rows(spaces, ["0", "2"])) == [(["Ann", "'s"], ["B-per", "O"])]


def test_folder_of_classes(tmp_path):
    """As aclImdb: a folder a class, and one without labels."""
    for name in ("pos/10_9.txt", "neg/2_1.txt", "unsup/0_0.txt", ".git/a.txt", "urls_neg.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}<br />")
    rows = read_rows(tmp_path, ["text", "label"])
    assert values(rows) == [("neg/2_1.txt<br />", "neg"), ("pos/10_9.txt<br />", "pos")]
    assert rows[1].place == str(tmp_path / "pos" / "10_9.txt")
    assert len(read_rows(tmp_path, ["text"])) == 3
    (tmp_path / "notes.txt").write_text("no class")
    with pytest.warns(InputNote, match=r"not read \(in no subfolder .*: notes\.txt$"):
        assert len(read_rows(tmp_path, ["text", "label"])) == 2


def test_data_set_gives_the_names_of_classes(tmp_path, capfd):
    features = datasets.Features(
        text=datasets.Value("string"),
        label=datasets.ClassLabel(names=["bad", "good"]),
        tags=datasets.List(datasets.ClassLabel(names=["O", "B-x"])),
    )
    columns = {"text": ["a", "b"], "label": [1, -1], "tags": [[0, 1], []]}
    folder = tmp_path / "set"
    folder.mkdir()
    datasets.Dataset.from_dict(columns, features=features).to_parquet(folder / "train.parquet")
    capfd.readouterr()
    rows = read_dataset(str(folder), "train", ["label", "tags"])
    assert values(rows) == [("good", ["O", "B-x"]), (None, [])]
    assert capfd.readouterr().err == ""  # no bar without a terminal
    with pytest.raises(ValueError, match=r"no column 'x'\. Use one of 'text', 'label', 'tags'"):
        read_dataset(str(folder), "train", ["x"])
    with pytest.raises(ValueError, match="split 'test' of the data set"):
        read_dataset(str(folder), "test", ["label"])
    table = datasets.Dataset.from_dict(columns, features=features)
    table.select([1, 0]).save_to_disk(tmp_path / "saved")
    assert values(read_rows(tmp_path / "saved", ["label", "tags"])) == values(rows)[::-1]
    datasets.DatasetDict(train=table, test=table).save_to_disk(tmp_path / "two")
    assert values(read_rows(tmp_path / "two" / "test", ["text"])) == [("a",), ("b",)]
    with pytest.raises(ValueError, match=r"holds the splits train, test.*two/train"):
        read_rows(tmp_path / "two", ["text"])
