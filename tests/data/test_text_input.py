"""The same rows from every form of file, and the errors of bad files for every command."""

import bz2
import csv
import gzip
import json
import lzma

import pytest

from hf_bert_impl.data.documents import read_texts
from hf_bert_impl.data.task_files import read_rows
from hf_bert_impl.data.text_input import RecordInput
from hf_bert_impl.errors import InputNote
from hf_bert_impl.inference.question_file import read_questions
from hf_bert_impl.tasks.base import Columns
from hf_bert_impl.tasks.masked_lm import MaskedLanguageModeling

TEXTS = ["a, b", 'say "hi"', "two\r\nlines", "café 👍", "", "NA", "7"]
PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
#: Names of files by ending; lines with fields may have any.
NAMES = (
    *("a.csv", "a.tsv", "a.tab", "a.jsonl", "a.ndjson", "a.json", "list.json", "a.parquet"),
    *("A.CSV", "LIST.JSON", "A.PARQUET", "a.tsv.gz", "A.CSV.GZ", "list.json.gz", "a.jsonl.bz2"),
    *("a.csv.xz", "a.jsonl.zst", "a.parquet.gz", "tabs.txt", "tabs.txt.gz", "objects.dat"),
)


def read(file, column=None, id_column=None):
    """The texts of a file; each is one."""
    with RecordInput(str(file), column, id_column) as source:
        return [text for _, text, _ in source.sound()]


def is_tsv(name):
    return name.lower().startswith(("a.tsv", "a.tab", "tabs"))


def texts_of(name):
    """The texts that the form can hold."""
    return [text for text in TEXTS if not is_tsv(name) or "\n" not in text]


def write(folder, name, texts=None, columns=("no", "text")):
    """A file with the number of each text in the column `no` and the text in all others."""
    texts = texts_of(name) if texts is None else texts
    rows = [{it: n if it == "no" else text for it in columns} for n, text in enumerate(texts)]
    file, low = folder / name, name.lower()
    packing = next((it for it in (*PACKED, ".zst") if low.endswith(it)), "")
    if ".parquet" in low or packing == ".zst":
        arrow = pytest.importorskip("pyarrow", reason="pip install -e '.[train]'")
        from pyarrow import parquet
    if ".parquet" in low:
        parquet.write_table(arrow.Table.from_pylist(rows), file)
    elif ".csv" in low:
        with file.open("w", encoding="utf-8-sig", newline="") as stream:
            csv.writer(stream).writerows([columns, *(row.values() for row in rows)])
    else:
        lines = [json.dumps(row) for row in rows]
        if is_tsv(name):
            lines = ["\t".join(map(str, row)) for row in (columns, *(it.values() for it in rows))]
        content = json.dumps(rows, indent=1) if low.startswith("list") else "\n".join(lines)
        file.write_text(content, encoding="utf-8")
    if packing == ".zst":
        content = file.read_bytes()
        with arrow.CompressedOutputStream(str(file), "zstd") as stream:
            stream.write(content)
    elif packing:
        file.write_bytes(PACKED[packing](file.read_bytes()))
    return file


@pytest.mark.parametrize("name", NAMES)
def test_every_form(tmp_path, name):
    file = write(tmp_path, name)
    with RecordInput(str(file), "text", "no") as source:
        records = list(source.sound())
    assert [text for _, text, _ in records] == texts_of(name)
    assert [str(found) for _, _, found in records] == [str(n) for n in range(len(records))]
    place = (
        "line 3" if "jsonl" in name or name in ("a.json", "a.ndjson", "objects.dat") else "row 3"
    )
    if "csv" in name.lower() or is_tsv(name):
        place = "line 4"
    if name.lower().startswith("list"):
        place = "record 2"
    assert records[2][0] == f"{place} of {file}"


#: How each command reads the texts of a file.
READERS = {
    "embed": lambda file: [text for _, text, _ in RecordInput(file, "text").records],
    "finetune": lambda file: [row.values[1] for row in read_rows(file, ["no", "text"])],
    "masked-lm": lambda file: [
        it.text for it in MaskedLanguageModeling(Columns("text")).read(file)
    ],
    "pretrain": lambda file: list(read_texts(file, "text")),
    "answer": lambda file: list(read_questions(file, None)),
}


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.XLSX", b"PK", r"a\.XLSX ends in \.xlsx\. Supported: .*Save it"),
        ("a.parquet", b"text\nx\n", r"a\.parquet cannot be read as Parquet"),
        ("a.json", b'[{"text": "x"}', r"a\.json is not JSON"),
        ("a.jsonl", b'{"text": \n', r"line 1 of .*a\.jsonl is not JSON"),
        ("a.jsonl", b"\n3\n", r"line 2 of .*a\.jsonl holds a int. Give an object with 'te?"),
        ("list.json", b"[3]", r"record 0 of .*list\.json holds a int. Give an object with"),
        ("a.csv.gz", b"text\nx\n", r"a\.csv\.gz cannot be unpacked"),
        ("none.csv", None, r"There is no file .*none\.csv"),
    ],
)
def test_every_command_says_the_same_of_a_bad_file(tmp_path, name, content, words, command):
    if "parquet" in name:
        pytest.importorskip("pyarrow", reason="pip install -e '.[train]'")
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    words = words.replace("'te?", "'question'" if command == "answer" else "'(no|text)'")
    with pytest.raises(ValueError, match=words) as caught:
        records = READERS[command](str(file))
        raise next(it for it in records if isinstance(it, ValueError))  # of a tolerant reader
    assert "\n" not in str(caught.value)


def test_lines_without_a_column_are_texts(tmp_path):
    for name in ("a.txt", "a.tokens", "a"):
        file = tmp_path / name
        file.write_text("one\ttwo\n \nthree\n")
        assert read(file) == ["one\ttwo", " ", "three"]
        texts = [it.text for it in MaskedLanguageModeling().read(str(file))]
        assert texts == ["one\ttwo", "three"]
    with pytest.raises(ValueError, match=r"`id_column` is given\. Name the field of the texts"):
        read(file, id_column="id")


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
def test_several_columns_need_a_name(tmp_path, form):
    file = str(write(tmp_path, f"a.{form}"))
    with pytest.raises(ValueError, match=r"has 2 columns \('no', 'text'\).*with `column`"):
        next(read_texts(file))
    for names in (("body",), ("text", "body")):
        with pytest.raises(ValueError, match=r"no column 'body'.*'no', 'text'"):
            read(file, *names)
    assert read(file, id_column="no") == texts_of(f"a.{form}")  # one is left


@pytest.mark.parametrize(
    ("content", "column", "id_column", "texts", "ids", "note"),
    [
        ("x,7\n\ny,8\n", "0", "1", ["x", "y"], ["7", "8"], ""),
        ("id,2024\n7,x\n8,y\n", "2024", "id", ["x", "y"], ["7", "8"], ""),
        ("text,id\nx,7\n", "0", "1", ["text", "x"], ["id", "7"], "'text'), since column 0 is a"),
        ("1,0\n7,x\n", "0", "1", ["x"], ["7"], "read as a header, since it has the name '0'"),
        ("good,1\nbad,0\n", "0", "1", ["good", "bad"], ["1", "0"], ""),  # only one is a name
    ],
)
@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz"])
def test_a_name_in_the_first_line_wins_over_a_number(
    tmp_path, recwarn, ending, content, column, id_column, texts, ids, note
):
    """And it is said what the first line is taken for, where it could be another thing."""
    content = content.replace(",", "," if ending.startswith("c") else "\t").encode()
    file = tmp_path / f"a.{ending}"
    file.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    with RecordInput(str(file), column, id_column) as source:
        assert [it[1:] for it in source.sound()] == list(zip(texts, ids, strict=True))
    notes = " ".join(str(it.message) for it in recwarn if it.category is InputNote)
    assert note in notes


GZIP = gzip.compress(b"text\na\n", mtime=0)


@pytest.mark.parametrize(
    ("name", "column", "content", "words"),
    [
        ("a.csv", "text", b"text,id\na,1\nb\n", "line 3 of .* has 1 fields, the first line 2"),
        ("a.csv", "text", b'text,id\n"a,1\n', "line 2 of .* is no CSV"),
        ("a.csv", "text", b"text,id\na,1\n\xe9,2\n", "Line 3 of .* is not UTF-8"),
        ("a.csv", None, b"id;text\n1;a\n", "first line of .* is one field, 'id;text'. Put commas"),
        ("a.tsv", None, b"id;text\n1;a\n", "first line of .* is one field, .*Put tabs"),
        ("a.csv", "2", b"x,7\ny,8\n", "no column '2'. Use one of '0', '1'"),
        ("a.csv.gz", "text", GZIP[:-9], "cannot be unpacked .Compressed file ended"),
        ("a.jsonl", None, b'{"text": "a"}\n\n{"body": "b"}', "line 3 .* 'text'. Use one of 'body'"),
        ("a.jsonl", None, b'{"text": "a"}\n{"text": null}\n', "line 2 of .* has nothing .null."),
        ("a.jsonl", None, b'{"text": "\\ud800"}', "line 1 of .* surrogate"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, name, column, content, words):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        list(read_texts(file, column))


def test_bytes_that_are_not_utf8_spoil_their_row_alone(tmp_path):
    """Also within quotes, over several lines, and in a file that has no header."""
    file = tmp_path / "a.csv"
    file.write_bytes(b'x,1\n"caf\xc9,\n""more""",2\n\n"y\nz",3\nw,\xc9\nv,5\n')
    with RecordInput(str(file), "0", "1") as source:
        records = list(source.records)
    assert [it[0].split(" of ")[0][5:] for it in records] == ["1", "2", "5", "7", "8"]
    good = [it[1:] for it in records if isinstance(it[1], str)]
    assert good == [("x", "1"), ("y\nz", "3"), ("v", "5")]
    assert all("is not UTF-8" in str(records[n][1]) for n in (1, 3))


def test_nulls_and_numbers_in_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="pip install -e '.[train]'")
    from pyarrow import parquet

    file = str(tmp_path / "a.parquet")
    words = arrow.array(["a", "b", "a", None]).dictionary_encode()
    parquet.write_table(arrow.table({"text": words, "no": [1, 2, 3, 4]}), file)
    texts = read_texts(file, "text")
    assert [next(texts) for _ in range(3)] == ["a", "b", "a"]
    with pytest.raises(ValueError, match=r"row 4 of .* has nothing \(null\)"):
        next(texts)
    with pytest.raises(ValueError, match=r"row 1 of .* has a int for a text"):
        next(read_texts(file, "no"))
    words = arrow.array([b"caf\xc9", b"a", None]).view(arrow.string())
    parquet.write_table(arrow.table({"text": words}), file)
    assert [it[1] for it in RecordInput(file, "text").records] == [b"caf\xc9", "a", None]


def test_a_folder_of_datasets(tmp_path):
    datasets = pytest.importorskip("datasets", reason="pip install -e '.[train]'")
    table = datasets.Dataset.from_dict({"no": [*range(len(TEXTS))], "text": TEXTS})
    table.select([3, 1]).save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=table, test=table).save_to_disk(tmp_path / "two")
    assert read(tmp_path / "one", "text") == [TEXTS[3], TEXTS[1]]
    assert read(tmp_path / "two" / "test", "text") == TEXTS
    with pytest.raises(ValueError, match=r"holds the splits train, test.*two/train"):
        next(read_texts(tmp_path / "two", "text"))
    with pytest.raises(ValueError, match="is a folder, and not one that datasets wrote"):
        next(read_texts(tmp_path, "text"))
