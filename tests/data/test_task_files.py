"""Rows of labelled data: every form of file, and what is wrong with the others."""

import json

import pytest

from hf_bert_impl.data.task_files import read_dataset, read_lines, read_rows
from hf_bert_impl.errors import InputNote


def values(rows):
    return [row.values for row in rows]


def test_tab_separated_without_header_knows_no_quotes(write):
    file = write("a.tsv", 'a "quoted\tno\t1\r\nb\u2028c\tno\t0\n\n"d" e\tno\t1')
    assert values(read_rows(file, ["2", "0"])) == [
        ("1", 'a "quoted'),
        ("0", "b\u2028c"),
        ("1", '"d" e'),
    ]
    assert read_rows(file, ["0"])[2].place == f"line 4 of {file}"


def test_header(write):
    file = write("a.txt", "\ufeffid\tleft\tright\n7\tx y\tz\n")
    assert values(read_rows(file, ["right", "id"])) == [("z", "7")]


def test_csv_has_quotes_commas_and_line_breaks(write):
    file = write("a.csv", 'text,label\n"one, ""two""\nthree",yes\nfour,no\n')
    rows = read_rows(file, ["label", "text"])
    assert values(rows) == [("yes", 'one, "two"\nthree'), ("no", "four")]
    assert rows[1].place == f"line 4 of {file}"


@pytest.mark.parametrize("whole", [False, True])
def test_json(write, whole):
    records = [{"text": "a", "label": 1, "more": None}, {"text": "b\nc", "label": [2, "x"]}]
    text = json.dumps(records, indent=1) if whole else "\n\n".join(map(json.dumps, records))
    file = write("a.json", text)
    assert values(read_rows(file, ["text", "label"])) == [("a", 1), ("b\nc", [2, "x"])]


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


def test_plain_lines(write):
    rows = read_lines(write("a.txt", "one\ttwo\n \nthree\n"))
    assert values(rows) == [("one\ttwo",), ("three",)]


@pytest.mark.parametrize(
    ("name", "text", "columns", "words"),
    [
        ("a.tsv", "", ["0"], "is empty"),
        ("a.tsv", "text\tlabel\na\tb\n", ["txt"], "no column 'txt'; .* 'text', 'label'"),
        ("a.tsv", "a\tb\n", ["0", "2"], "no column '2'; expected one of '0', '1'"),
        ("a.tsv", "a\tb\nc\n", ["0"], "line 2 .* has 1 fields; expected 2"),
        ("a.csv", b"a,b\nc,\xff\n", ["0"], "line 2 of .* is not UTF-8"),
        ("a.csv", 'a,"b\nc,d\n', ["0"], "no CSV"),
        ("a.jsonl", '{"text": 1}\n{"tex', ["text"], "line 2 .* is not JSON"),
        ("a.jsonl", '{"text": 1}', ["label"], "line 1 .* no column 'label'; .* 'text'"),
        ("a.conll", "a b\nc\n", ["0", "-1"], "line 2 .* has 1 fields"),
        ("a.conll", "a b\n", ["word"], "numbers from 0"),
        ("a.xlsx", "a", ["0"], r"ends in .xlsx; expected one of .tsv"),
    ],
)
def test_bad_files(write, name, text, columns, words):
    with pytest.raises(ValueError, match=words):
        read_rows(write(name, text), columns)


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
    with pytest.raises(ValueError, match="has no column 'words'; expected one of 'text', 'label'"):
        read_rows(tmp_path, ["words"])
    with pytest.raises(ValueError, match="without subfolders with texts in them"):
        read_rows(tmp_path / "pos", ["text", "label"])


def test_no_file(tmp_path):
    for read in (lambda file: read_rows(file, ["0"]), read_lines):
        with pytest.raises(ValueError, match="there is no file"):
            read(tmp_path / "none.tsv")


def test_data_set_gives_the_names_of_classes(tmp_path):
    datasets = pytest.importorskip("datasets", reason="pip install -e '.[train]'")
    features = datasets.Features(
        text=datasets.Value("string"),
        label=datasets.ClassLabel(names=["bad", "good"]),
        tags=datasets.List(datasets.ClassLabel(names=["O", "B-x"])),
    )
    columns = {"text": ["a", "b"], "label": [1, -1], "tags": [[0, 1], []]}
    folder = tmp_path / "set"
    folder.mkdir()
    datasets.Dataset.from_dict(columns, features=features).to_parquet(folder / "train.parquet")
    rows = read_dataset(str(folder), "train", ["label", "tags"])
    assert values(rows) == [("good", ["O", "B-x"]), (None, [])]
    with pytest.raises(ValueError, match="no column 'x'; expected one of 'text', 'label', 'tags'"):
        read_dataset(str(folder), "train", ["x"])
    with pytest.raises(ValueError, match="split 'test' of the data set"):
        read_dataset(str(folder), "test", ["label"])
