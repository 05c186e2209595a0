"""The same rows from every form of file, and the errors of bad files for every command."""

import csv
import io

import pandas
import pyarrow
import pytest
from pyarrow import parquet

from hf_bert_impl.data.documents import read_texts
from hf_bert_impl.data.task_files import read_rows
from hf_bert_impl.data.text_input import check_record_text, read_records, sound
from hf_bert_impl.errors import InputError, InputNote
from hf_bert_impl.tasks.masked_lm import MaskedLanguageModeling

TEXTS = ["a, b", 'say "hi"', "two\r\nlines", "café 👍", "", "NA", "7"]
#: Names of files by the place of their third row; lines with fields may have any ending.
PLACES = {
    "line 4": (
        *("a.csv", "A.CSV", "A.CSV.GZ", "a.csv.xz", "a.tsv", "a.tab", "a.tsv.gz"),
        *("tabs.txt", "tabs.txt.gz", "tabs.TSV.bz2"),
    ),
    "line 3": ("a.jsonl", "a.ndjson", "a.json", "a.jsonl.bz2", "objects.dat"),
    "record 2": ("list.json", "LIST.JSON", "list.json.gz"),
    "row 3": ("a.parquet", "A.PARQUET"),
}


def read(file, column=None, id_column=None):
    """The texts of a file; each is one."""
    return [row.values[0] for row in sound(read_records(file, column, id_column), file)]


def is_tsv(name):
    return name.lower().startswith(("a.tsv", "a.tab", "tabs"))


def save(folder, name, texts):
    """A file with the columns `no`, the number of each text, and `text`; a.txt has texts alone."""
    file, low = folder / name, name.lower()
    frame = pandas.DataFrame({"no": range(len(texts)), "text": texts})
    if ".parquet" in low:
        frame.to_parquet(file)
    elif ".csv" in low:
        frame.to_csv(file, index=False, encoding="utf-8-sig")
    elif is_tsv(name):
        frame.to_csv(file, index=False, sep="\t", quoting=csv.QUOTE_NONE)
    elif low.endswith("a.txt"):
        file.write_text("".join(f"{text}\n" for text in texts))
    elif low.startswith("list"):
        frame.to_json(file, orient="records", indent=1)
    else:
        frame.to_json(file, orient="records", lines=True)
    return file


@pytest.mark.parametrize(
    ("name", "place"), [(it, place) for place in PLACES for it in PLACES[place]]
)
def test_every_form(tmp_path, name, place):
    texts = [text for text in TEXTS if not is_tsv(name) or "\n" not in text]
    file = save(tmp_path, name, texts)
    records = list(read_records(file, "text", "no"))
    assert [row.values for row in records] == [[text] for text in texts]
    assert [str(row.id) for row in records] == [str(n) for n in range(len(records))]
    assert records[2][0] == f"{place} of {file}"
    if not name.startswith(("tabs", "objects")):
        assert read(file, id_column="no") == texts  # one column is left


def test_lines_without_a_column_are_texts(write):
    for name in ("a.txt", "a.tokens", "a"):
        file = write(name, "one\ttwo\n \nthree\n")
        assert read(file) == ["one\ttwo", " ", "three"]
        texts = [it.text for it in MaskedLanguageModeling().read(str(file))]
        assert texts == ["one\ttwo", "three"]


@pytest.mark.parametrize(
    ("content", "column", "id_column", "texts", "ids", "note"),
    [
        ("x,7\n\ny,8\n", "0", "1", ["x", "y"], ["7", "8"], ""),
        ("id,2024\n7,x\n8,y\n", "2024", "id", ["x", "y"], ["7", "8"], ""),
        ("text,id\nx,7\n", "0", "1", ["text", "x"], ["id", "7"], "'text'), since column 0 is a"),
        ("1,0\n7,x\n", "0", "1", ["x"], ["7"], "read as a header, since it has the name '0'"),
        ("nice\nriver\n", None, None, ["river"], [None], "name of its column ('nice'). "),
        ("nice\nriver\n", "0", None, ["nice", "river"], [None] * 2, ""),
        ("good,1\nbad,0\n", "0", "1", ["good", "bad"], ["1", "0"], ""),  # only one is a name
    ],
)
@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_a_name_in_the_first_line_wins_over_a_number(
    write, recwarn, ending, content, column, id_column, texts, ids, note
):
    """And it is said what the first line is taken for, where it could be another thing."""
    file = write(f"a.{ending}", content.replace(",", "," if ending == "csv" else "\t"))
    rows = list(sound(read_records(file, column, id_column), file))
    assert [(row.values[0], row.id) for row in rows] == list(zip(texts, ids, strict=True))
    notes = " ".join(str(it.message) for it in recwarn if it.category is InputNote)
    assert note in notes


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl", "list.json", "a.parquet"])
@pytest.mark.parametrize("place", [2, 397])
def test_bytes_that_are_not_utf8(tmp_path, name, place):
    """One rule for all forms, wherever they are: a job rejects the row, others replace the byte."""
    texts = [f"caf{n}" for n in range(400)]
    texts[place] = "caf-E9-"
    if name == "a.parquet":
        file = tmp_path / name
        content = pyarrow.array([text.encode().replace(b"-E9-", b"\xc9---") for text in texts])
        table = pyarrow.table({"text": content.view(pyarrow.string())})
        parquet.write_table(table, file, row_group_size=70)
    else:
        file = save(tmp_path, name, texts)
        file.write_bytes(file.read_bytes().replace(b"-E9-", b"\xc9---"))
    column = None if name == "a.txt" else "text"
    (bad,) = (row for row in read_records(file, column) if not row.values[0].isascii())
    with pytest.raises(InputError, match=r"is not UTF-8 text .a byte is 0xc9"):
        check_record_text(bad.place, bad.values[0])
    texts[place] = "caf\ufffd---"
    with pytest.warns(InputNote, match=r"1 row\(s\) of .* have bytes that are not UTF-8"):
        assert list(read_texts(file, column)) == texts
    if column:
        with pytest.warns(InputNote, match="are not UTF-8"):
            assert [row.values[0] for row in read_rows(file, ["text"])] == texts


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl"])
def test_utf_16_is_named(write, name):
    """As Windows saves it. Its zero bytes would be read as texts."""
    for content in ("nice\nto meet\n".encode("utf-16"), b"\xfe\xff" + "nice\n".encode("utf-16-be")):
        with pytest.raises(InputError, match=r"is UTF-16\. Save it as UTF-8"):
            read(write(name, content))


#: Files that use quotes as pandas does, and files that do not.
QUOTED = [
    [("a", 'say "hi"'), ("b", "two\nlines"), ("c", "x\ty"), ("d", "NA"), ("e", '"')],
    [("a", "plain"), ("b", "two\r\n\r\nlines"), ("c", 'and "more"')],
    [("a", "plain"), ("b", "x\ty"), ('"c"', '"whole"')],
]
FIELDS = [
    # Old line ends, a text after a quote, quotes over several lines.
    ("a.csv", 'no,text\r1,a\r2,"b\rc"\r'),
    ("a.csv", 'no,text\n3,"b" tail\n\n"4","x ""y""\r\nz"\r\n'),
    ("a.tsv", 'n\ttext\n1\t"He left.\n2\t"whole"\n3\tHe said "no".\n4\tHe said yes."\n'),
    ("a.tsv", 'n\ttext\n1\t"d" e\n2\t"x ""y"""\n3\t"\n'),
    ("a.tsv", 'n\ttext\n1\t"""\n2\t5" disk\n'),
]


@pytest.mark.parametrize("plain", [0, 3000])
@pytest.mark.parametrize("rows", QUOTED)
def test_tsv_as_pandas_writes_it(tmp_path, rows, plain):
    file, rows = tmp_path / "a.tsv", [("p", "plain")] * plain + rows
    table = pandas.DataFrame(rows, columns=["n", "text"])
    table.to_csv(file, sep="\t", index=False)
    assert [tuple(row.values) for row in read_records(file, ["n", "text"])] == rows
    table[["text"]].to_csv(file, sep="\t", index=False)
    assert read(file, "text") == [text for _, text in rows]


@pytest.mark.parametrize(("name", "content"), FIELDS)
def test_fields_as_they_stand(write, name, content):
    """Of a .csv as Python reads it, and of a .tsv without quotes as they are."""
    lines = [line.split("\t") for line in content.splitlines()]
    if name == "a.csv":
        lines = [*csv.reader(io.StringIO(content, newline=""))]
    records = read_records(write(name, content), lines[0])
    assert [row.values for row in records] == [line for line in lines[1:] if line]


def test_nulls_in_parquet(tmp_path):
    file = str(tmp_path / "a.parquet")
    words = pyarrow.array(["a", "b", "a", None]).dictionary_encode()
    parquet.write_table(pyarrow.table({"text": words}), file)
    texts = read_texts(file, "text")
    assert [next(texts) for _ in range(3)] == ["a", "b", "a"]
    with pytest.raises(ValueError, match=r"row 4 of .* has null for a text"):
        next(texts)
    words = pyarrow.array([b"caf\xc9", b"a", None]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": words}), file)
    assert [row.values[0] for row in read_records(file, "text")] == ["caf\udcc9", "a", None]
