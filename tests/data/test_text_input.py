"""TextInput: the same texts out of every form of file, and what is wrong with the others."""

import bz2
import csv
import gzip
import itertools
import json
import lzma
import sys

import pytest

from hf_bert_impl.data.text_input import RecordInput, TextInput
from hf_bert_impl.errors import InputNote

TEXTS = ["a, b", 'say "hi"', "two\r\nlines", "café 👍", "", "NA", "7"]
FORMS = ("csv", "tsv", "jsonl", "ndjson", "parquet")
PACKINGS = ("", ".gz", ".bz2", ".xz", ".zst")
LINES = ["nice to meet you", "", "the river rose over night, and you.", "a\u2028b\x0bc\rd", "ż 🙂"]


def read(file, column=None, **options):
    with TextInput(str(file), column, **options) as texts:
        return list(texts)


def texts_of(form):
    """Those that the form can hold."""
    return [text for text in TEXTS if form != "tsv" or "\n" not in text]


def write(folder, form, packing=""):
    file = folder / f"a.{form}"
    rows = list(enumerate(texts_of(form)))
    if form == "parquet":
        arrow = pytest.importorskip("pyarrow", reason="pip install -e '.[train]'")
        from pyarrow import parquet

        numbers, texts = zip(*rows, strict=True)
        parquet.write_table(arrow.table({"no": numbers, "text": texts}), file)
    elif form == "csv":
        with file.open("w", encoding="utf-8-sig", newline="") as stream:
            csv.writer(stream).writerows([("no", "text"), *rows])
    else:
        lines = [json.dumps({"no": number, "text": text}) for number, text in rows]
        if form == "tsv":
            lines = ["no\ttext", *(f"{number}\t{text}" for number, text in rows)]
        file.write_text("\n".join(lines), encoding="utf-8")
    packed = folder / (file.name + packing)
    if packing == ".zst":
        arrow = pytest.importorskip("pyarrow", reason="pip install -e '.[train]'")
        with arrow.CompressedOutputStream(str(packed), "zstd") as stream:
            stream.write(file.read_bytes())
    elif packing:
        library = {".gz": gzip, ".bz2": bz2, ".xz": lzma}[packing]
        packed.write_bytes(library.compress(file.read_bytes()))
    return packed


@pytest.mark.parametrize(("form", "packing"), [*itertools.product(FORMS, PACKINGS)])
def test_every_form(tmp_path, form, packing):
    file, ids = write(tmp_path, form, packing), []
    with TextInput(str(file), "text", "no", lambda place, found: ids.append((place, found))) as it:
        assert list(it) == texts_of(form)
        assert it.size in ((None, it.done) if packing else (it.done,))
    assert [str(found) for _, found in ids] == [str(n) for n in range(len(ids))]
    if form in ("csv", "tsv"):
        assert ids[2][0] == f"line 4 of {file}"
    if form == "parquet":
        assert ids[2][0] == f"row 3 of {file}"


@pytest.mark.parametrize("end", ["\n", ""])
def test_lines(tmp_path, end):
    """A line ends at a line feed and nowhere else; row n is that of line n."""
    file = tmp_path / "a.txt"
    file.write_bytes(("\n".join(LINES) + end).encode())
    assert read(file) == LINES
    file.write_bytes(b"\xef\xbb\xbfnice\r\nto\n")
    assert read(file) == ["nice", "to"]


def test_fields_of_json_lines(tmp_path):
    """A field that is named makes JSON lines of a file, whatever its ending."""
    (tmp_path / "a.dat").write_text("\n\n".join(json.dumps({"body": text}) for text in LINES))
    assert read(tmp_path / "a.dat", "body") == LINES


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
def test_several_columns_need_a_name(tmp_path, form):
    file = str(write(tmp_path, form))
    with pytest.raises(ValueError, match=r"has 2 columns \('no', 'text'\).*with `column`"):
        TextInput(file)
    for names in (("body",), ("text", "body")):
        with pytest.raises(ValueError, match=r"no column 'body'.*'no', 'text'"):
            TextInput(file, *names)
    assert read(file, id_column="no") == texts_of(form)  # one is left


@pytest.mark.parametrize(
    ("content", "column", "id_column", "texts", "ids", "note"),
    [
        ("x,7\n\ny,8\n", "0", "1", ["x", "y"], ["7", "8"], ""),
        ("id,2024\n7,x\n8,y\n", "2024", "id", ["x", "y"], ["7", "8"], ""),
        ("text,id\nx,7\n", "0", "1", ["text", "x"], ["id", "7"], "'text'), since column 0 is a"),
        ("1,0\n7,x\n", "0", "1", ["x"], ["7"], "taken as a header, since it has the name '0'"),
        ("good,1\nbad,0\n", "0", "1", ["good", "bad"], ["1", "0"], ""),  # only one is a name
    ],
)
@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz"])
def test_a_name_in_the_first_line_wins_over_a_number(
    tmp_path, recwarn, ending, content, column, id_column, texts, ids, note
):
    """And it is said what the first line is taken for, where it could be another thing."""
    content = content.replace(",", "," if ending.startswith("c") else "\t").encode()
    file, found = tmp_path / f"a.{ending}", []
    file.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    with TextInput(str(file), column, id_column, lambda _, key: found.append(key)) as read_texts:
        assert list(read_texts) == texts
    assert found == ids
    notes = " ".join(str(it.message) for it in recwarn if it.category is InputNote)
    assert note in notes


def test_the_limit_of_other_readers_stays(tmp_path):
    """Fields may be longer than Python's own limit."""
    before = csv.field_size_limit()
    (tmp_path / "a.csv").write_text(f"text\nshort\n{'x' * (before + 1)}\n")
    with TextInput(str(tmp_path / "a.csv")) as texts:
        assert next(texts) == "short" and csv.field_size_limit() == before
        assert len(next(texts)) == before + 1
    assert csv.field_size_limit() == before


GZIP = gzip.compress(b"text\na\n", mtime=0)


@pytest.mark.parametrize(
    ("name", "column", "content", "words"),
    [
        ("a.csv", "text", b"text,id\na,1\nb\n", "line 3 of .* has 1 fields; expected 2"),
        ("a.csv", "text", b'text,id\n"a,1\n', "line 2 of .* is no CSV"),
        ("a.csv", "text", b"text,id\na,1\n\xe9,2\n", "line 3 of .* is not UTF-8"),
        ("a.csv", None, b"id;text\n1;a\n", "first line of .* is one field, 'id;text'; .* commas"),
        ("a.tsv", None, b"id;text\n1;a\n", "first line of .* is one field, .*; expected .* tabs"),
        ("a.csv", "2", b"x,7\ny,8\n", "no column '2'; expected one of '0', '1'"),
        ("a.csv.gz", "text", GZIP[:-9], "cannot be unpacked .Compressed file ended"),
        ("none.txt", None, None, "there is no file .*; check the path"),
        ("a.jsonl", None, b'{"text": "a"}\n{"text": \n', r"line 2 of .*a\.jsonl is not JSON"),
        ("a.jsonl", None, b'{"text": "a"}\n\n{"body": "b"}', "line 3 .* 'body'; .*`column`"),
        ("a.jsonl", None, b'{"text": "a"}\n{"text": null}\n', "line 2 of .* has nothing .null."),
        ("a.jsonl", None, b'{"text": "\\ud800"}', "line 1 of .* surrogate"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, name, column, content, words):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    if ".parquet" in name:
        pytest.importorskip("pyarrow", reason="pip install -e '.[train]'")
    with pytest.raises(ValueError, match=words):
        read(file, column)


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
    texts = TextInput(file, "text")
    assert [next(texts) for _ in range(3)] == ["a", "b", "a"]
    with pytest.raises(ValueError, match=r"row 4 of .* has nothing \(null\)"):
        next(texts)
    with pytest.raises(ValueError, match=r"column 'no' of .* holds int64"):
        TextInput(file, "no")


def test_a_folder_of_datasets(tmp_path):
    datasets = pytest.importorskip("datasets", reason="pip install -e '.[train]'")
    table = datasets.Dataset.from_dict({"no": [*range(len(TEXTS))], "text": TEXTS})
    table.select([3, 1]).save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=table, test=table).save_to_disk(tmp_path / "two")
    assert read(tmp_path / "one", "text") == [TEXTS[3], TEXTS[1]]
    assert read(tmp_path / "two" / "test", "text") == TEXTS
    with pytest.raises(ValueError, match=r"holds the splits train, test.*two/train"):
        TextInput(str(tmp_path / "two"), "text")
    with pytest.raises(ValueError, match="is a folder, and not one that datasets wrote"):
        TextInput(str(tmp_path), "text")


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    file = write(tmp_path, "parquet")
    for library in ("pyarrow", "datasets"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=r"reading Parquet needs pyarrow.*\[train\]"):
        TextInput(str(file), "text")
    for form in ("csv", "jsonl"):
        assert read(write(tmp_path, form), "text") == texts_of(form)
