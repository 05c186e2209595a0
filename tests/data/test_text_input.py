"""TextInput: the same texts out of every form of file, and what is wrong with the others."""

import bz2
import csv
import gzip
import itertools
import json
import lzma
import sys

import pytest

from hf_bert_impl.data import table_records
from hf_bert_impl.data.text_input import TextInput

TEXTS = ["a, b", 'say "hi"', "two\r\nlines", "café 👍", "", "NA", "7"]
FORMS = ("csv", "tsv", "jsonl", "ndjson", "parquet")
PACKINGS = ("", ".gz", ".bz2", ".xz", ".zst")


def texts_of(form):
    """Those that the form can hold."""
    return [text for text in TEXTS if form != "tsv" or "\n" not in text]


def write(folder, form, packing=""):
    file = folder / f"a.{form}"
    rows = list(enumerate(texts_of(form)))
    if form == "parquet":
        arrow = pytest.importorskip("pyarrow", reason="pip install 'hf_bert_impl[train]'")
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
        arrow = pytest.importorskip("pyarrow", reason="pip install 'hf_bert_impl[train]'")
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
    with TextInput(str(file)) as texts:
        assert list(texts) == ["a\tb", "", "c"]


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
def test_several_columns_need_a_name(tmp_path, form):
    file = str(write(tmp_path, form))
    with pytest.raises(ValueError, match=r"has 2 columns \('no', 'text'\).*with `column`"):
        TextInput(file)
    with pytest.raises(ValueError, match=r"no column 'body'.*'no', 'text'"):
        TextInput(file, "body")
    with pytest.raises(ValueError, match=r"no column 'key'.*'no', 'text'"):
        TextInput(file, "text", "key")
    with TextInput(file, id_column="no") as texts:  # one is left
        assert list(texts) == texts_of(form)


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


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"text,id\na,1\nb\n", "line 3 of .* has 1 fields; expected 2"),
        ("a.csv", b'text,id\n"a,1\n', "line 2 of .* is no CSV"),
        ("a.csv", b"text,text\na,1\n", "several columns 'text'"),
        ("a.csv", b"text,id\na,1\n\xe9,2\n", "line 3 of .* is not UTF-8"),
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
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, name, content, words):
    file = tmp_path / name
    file.write_bytes(content)
    if ".parquet" in name:
        pytest.importorskip("pyarrow", reason="pip install 'hf_bert_impl[train]'")
    with pytest.raises(ValueError, match=words):  # noqa: SIM117
        with TextInput(str(file), "text") as texts:
            list(texts)


def test_nulls_and_numbers_in_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="pip install 'hf_bert_impl[train]'")
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
    datasets = pytest.importorskip("datasets", reason="pip install 'hf_bert_impl[train]'")
    table = datasets.Dataset.from_dict({"no": [*range(len(TEXTS))], "text": TEXTS})
    table.select([3, 1]).save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=table, test=table).save_to_disk(tmp_path / "two")
    ids = []
    with TextInput(str(tmp_path / "one"), "text", "no", lambda _, it: ids.append(it)) as texts:
        assert list(texts) == [TEXTS[3], TEXTS[1]]
    assert ids == [3, 1]
    with TextInput(str(tmp_path / "two" / "test"), "text") as texts:
        assert list(texts) == TEXTS
    with pytest.raises(ValueError, match=r"holds the splits train, test.*two/train"):
        TextInput(str(tmp_path / "two"), "text")
    with pytest.raises(ValueError, match="is a folder, and not one that datasets wrote"):
        TextInput(str(tmp_path), "text")


def test_libraries_are_asked_for_only_where_they_are_needed(tmp_path, monkeypatch):
    files = {form: str(write(tmp_path, form)) for form in FORMS}
    for library in ("pyarrow", "datasets"):
        monkeypatch.setitem(sys.modules, library, None)
    for form in ("csv", "tsv", "jsonl"):
        with TextInput(files[form], "text") as texts:
            assert list(texts) == texts_of(form)
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
