"""TextInput: the same texts out of every form of file, and what is wrong with the others."""

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import sys

import pytest

from hf_bert_impl.data import table_records
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
    elif form == "tsv":
        lines = ["no\ttext", *(f"{number}\t{text}" for number, text in rows)]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        lines = [json.dumps({"no": number, "text": text}) for number, text in rows]
        file.write_text("\n".join(lines), encoding="utf-8")
    if not packing:
        return file
    packed = folder / (file.name + packing)
    if packing == ".zst":
        arrow = pytest.importorskip("pyarrow", reason="pip install -e '.[train]'")
        with arrow.CompressedOutputStream(str(packed), "zstd") as stream:
            stream.write(file.read_bytes())
    else:
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


def test_plain_text_packed(tmp_path):
    file = tmp_path / "a.txt.gz"
    file.write_bytes(gzip.compress(b"a\tb\n\nc"))
    assert read(file) == ["a\tb", "", "c"]


@pytest.mark.parametrize("end", ["\n", ""])
def test_lines(tmp_path, end):
    """A line ends at a line feed and nowhere else; row n is that of line n."""
    file = tmp_path / "a.txt"
    file.write_bytes(("\n".join(LINES) + end).encode())
    assert read(file) == LINES
    file.write_bytes(b"\xef\xbb\xbfnice\r\nto\n")
    assert read(file) == ["nice", "to"]


@pytest.mark.parametrize(
    ("name", "column", "given"),
    [("a.jsonl", "text", None), ("a.ndjson", "text", None), ("a.dat", "body", "body")],
)
def test_fields_of_json_lines(tmp_path, name, column, given):
    file = tmp_path / name
    lines = [json.dumps({"id": n, column: text}) for n, text in enumerate(LINES)]
    file.write_text("\n\n".join(lines) + "\n\n")
    assert read(file, given) == LINES


def test_standard_input_and_what_was_read_of_it(monkeypatch, tmp_path):
    content = "\n".join(LINES).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    texts = TextInput("-")
    assert (texts.name, texts.size) == ("standard input", None)
    assert list(texts) == LINES
    assert texts.done == len(content)
    (tmp_path / "a.txt").write_bytes(content)
    with TextInput(str(tmp_path / "a.txt")) as texts:
        assert texts.size == len(content)
        assert next(texts) == LINES[0]
        assert texts.done == len(LINES[0]) + 1


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
def test_several_columns_need_a_name(tmp_path, form):
    file = str(write(tmp_path, form))
    with pytest.raises(ValueError, match=r"has 2 columns \('no', 'text'\).*with `column`"):
        TextInput(file)
    with pytest.raises(ValueError, match=r"no column 'body'.*'no', 'text'"):
        TextInput(file, "body")
    with pytest.raises(ValueError, match=r"no column 'key'.*'no', 'text'"):
        TextInput(file, "text", "key")
    assert read(file, id_column="no") == texts_of(form)  # one is left


def test_numbers_are_columns_without_a_header(tmp_path):
    for ending, between in (("csv", ","), ("tsv", "\t")):
        file = tmp_path / f"a.{ending}"
        file.write_text(f"x{between}7\n\ny{between}8\n")
        ids = []
        with TextInput(str(file), "0", "1", lambda _, found: ids.append(found)) as texts:  # noqa: B023
            assert list(texts) == ["x", "y"]
        assert ids == ["7", "8"]
    with pytest.raises(ValueError, match="no column '2'; expected one of '0', '1'"):
        TextInput(str(file), "2")


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz", "tsv.bz2"])
def test_a_name_in_the_first_line_wins_over_a_number(tmp_path, recwarn, ending):
    """And it is said what the first line is taken for, where it could be another thing."""
    between = "," if ending.startswith("c") else "\t"
    packed = {"gz": gzip.compress, "z2": bz2.compress}.get(ending[-2:], bytes)
    file = tmp_path / f"a.{ending}"

    def read_ids(content, column, id_column):
        recwarn.clear()
        file.write_bytes(packed(content.replace(",", between).encode()))
        ids = []
        with TextInput(str(file), column, id_column, lambda _, found: ids.append(found)) as texts:
            found = list(texts)
        notes = [str(it.message) for it in recwarn if it.category is InputNote]
        return found, ids, " ".join(notes)

    assert read_ids("id,2024\n7,x\n8,y\n", "2024", "id") == (["x", "y"], ["7", "8"], "")
    assert read_ids("id,2024\n7,x\n", "2024", None) == (["x"], [], "")
    found, ids, note = read_ids("text,id\nx,7\n", "0", "1")
    assert (found, ids) == (["text", "x"], ["id", "7"])
    assert "is taken as a text ('text'), since column 0 is a number" in note
    found, ids, note = read_ids("1,0\n7,x\n", "0", "1")
    assert (found, ids) == (["x"], ["7"])
    assert "is taken as a header, since it has the name '0', which is column number 1" in note
    assert read_ids("good,1\nbad,0\n", "0", "1")[0] == ["good", "bad"]  # only one is a name
    assert read(file, "1") == ["0"]
    with pytest.raises(ValueError, match=r"no column '3'.*names for a file with a header, or"):
        read_ids("text,id\nx,7\n", "text", "3")


def test_the_limit_of_other_readers_stays(tmp_path):
    """Fields longer than Python's own limit, in two files at once."""
    before = csv.field_size_limit()
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(f"text\nshort\n{'x' * (before + 1)}\n")
    with TextInput(str(tmp_path / "a.csv")) as one, TextInput(str(tmp_path / "b.csv")) as other:
        next(other)
        assert csv.field_size_limit() == before
        assert len(list(one)) == 2
        assert len(next(other)) == before + 1
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"text,id\na,1\nb\n", "line 3 of .* has 1 fields; expected 2"),
        ("a.csv", b'text,id\n"a,1\n', "line 2 of .* is no CSV"),
        ("a.csv", b"text,text\na,1\n", "several columns 'text'"),
        ("a.csv", b"text,id\na,1\n\xe9,2\n", "line 3 of .* is not UTF-8"),
        ("a.csv", b"id;text\n1;a\n", "first line of .* is one field, 'id;text'; .* commas"),
        ("a.csv", b"id\ttext\n1\ta\n", "first line of .* is one field, .*name this column"),
        ("a.tsv", b"id;text\n1;a\n", "first line of .* is one field, .*; expected .* tabs"),
        ("a.csv.gz", gzip.compress(b"id;text\n1;a\n", mtime=0), "first line of .* is one field"),
        ("a.csv", b"text\n", "is empty"),
        ("a.tsv", b"text\tid\na\tb\tc\n", "line 2 of .* has 3 fields; expected 2"),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"text": null}\n',
            "line 2 of .* has nothing .null.",
        ),
        ("a.json", b'[{"text": "a"}]', "holds a list"),
        ("a.parquet", b"no parquet", "cannot be read as Parquet"),
        ("a.csv.gz", b"text\na\n", "cannot be unpacked"),
        (
            "a.csv.gz",
            gzip.compress(b"text\na\n", mtime=0)[:-9],
            "cannot be unpacked .Compressed file ended",
        ),
        ("a.csv.bz2", b"text\na\n", "cannot be unpacked"),
        ("a.csv.xz", b"text\na\n", "cannot be unpacked"),
        ("none.txt", None, "there is no file .*; check the path"),
        ("empty.txt", b"", "is empty; expected one text a line"),
        ("empty.jsonl", b"\n\n", "is empty"),
        ("latin.txt", "caf\xe9".encode("latin-1"), r"line 1 of .*latin\.txt is not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"line 2 of .*a\.jsonl is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n\n{"id": 1, "body": "b"}', "line 3 .* 'body'; .*`column`"),
        ("a.jsonl", b"{}", "has no 'text', only no fields"),
        ("a.jsonl", b'{"text": 3}', "line 1 of .* has a int for a text"),
        ("a.jsonl", b'["a"]', "line 1 of .* holds a list"),
        ("a.jsonl", b'{"text": "\\ud800"}', "line 1 of .* surrogate"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, name, content, words):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    if ".parquet" in name:
        pytest.importorskip("pyarrow", reason="pip install -e '.[train]'")
    with pytest.raises(ValueError, match=words):
        plain = name.endswith((".txt", ".jsonl")) or "one field" in words
        read(file, None if plain else "text")


def test_bytes_that_are_not_utf8_spoil_their_row_alone(tmp_path):
    """Also within quotes, over several lines, and in a file that has no header."""
    file = tmp_path / "a.csv"
    file.write_bytes(b'x,1\n"caf\xc9,\n""more""",2\n\n"y\nz",3\nw,\xc9\nv,5\n')
    with RecordInput(str(file), "0", "1") as source:
        records = list(source.records)
    assert [it[0].split(" of ")[0] for it in records] == [
        *("line 1", "line 2", "line 5"),
        *("line 7", "line 8"),
    ]
    assert [it[1:] for it in records if isinstance(it[1], str)] == [
        ("x", "1"),
        ("y\nz", "3"),
        ("v", "5"),
    ]
    assert all("is not UTF-8" in str(records[n][1]) for n in (1, 3))
    file.write_bytes(b"caf\xc9,text\nx,y\n")
    with pytest.raises(ValueError, match=r"line 1 of .* is not UTF-8"):
        RecordInput(str(file), "text").records.__next__()


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
    ids = []
    with TextInput(str(tmp_path / "one"), "text", "no", lambda _, it: ids.append(it)) as texts:
        assert list(texts) == [TEXTS[3], TEXTS[1]]
    assert ids == [3, 1]
    assert read(tmp_path / "two" / "test", "text") == TEXTS
    with pytest.raises(ValueError, match=r"holds the splits train, test.*two/train"):
        TextInput(str(tmp_path / "two"), "text")
    with pytest.raises(ValueError, match="is a folder, and not one that datasets wrote"):
        TextInput(str(tmp_path), "text")


def test_libraries_are_asked_for_only_where_they_are_needed(tmp_path, monkeypatch):
    files = {form: str(write(tmp_path, form)) for form in FORMS}
    for library in ("pyarrow", "datasets"):
        monkeypatch.setitem(sys.modules, library, None)
    for form in ("csv", "tsv", "jsonl"):
        assert read(files[form], "text") == texts_of(form)
    with pytest.raises(ValueError, match=r"reading Parquet needs pyarrow.*\[train\]"):
        TextInput(files["parquet"], "text")


def test_nothing_is_read_whole(tmp_path, monkeypatch):
    """A table is read as it is asked for."""
    file = write(tmp_path, "parquet")
    monkeypatch.setattr(table_records, "ROWS", 2)
    with TextInput(str(file), "text") as texts:
        next(texts)
        next(texts)
        assert texts.done == 2
