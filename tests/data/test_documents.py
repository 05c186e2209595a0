"""Documents out of files, by layout."""

import gzip

import pytest

from hf_bert_impl.data.documents import LAYOUTS, check_files, content_digest, read_documents
from hf_bert_impl.errors import InputNote


@pytest.mark.parametrize(
    ("layout", "text", "documents"),
    [
        ("sentences", "A one. A two.\nB\n\n \nC\n", [["A one. A two.", "B"], ["C"]]),
        ("paragraphs", "A one. A two.\nB\n\n \nC\n", [["A one.", "A two.", "B"], ["C"]]),
        ("lines", "A one. A two.\nB\n\n \nC\n", [["A one.", "A two."], ["B"], ["C"]]),
        ("files", "A one. A two.\nB\n\n \nC\n", [["A one.", "A two.", "B", "C"]]),
        (
            "pairs",
            "A one. A two.\tB\n\n \n C \t D<br />e\n",
            [["A one. A two.", "B"], ["C", "D e"]],
        ),
    ],
)
def test_layouts(write, layout, text, documents):
    file = write("a.txt", text)
    assert list(read_documents([file], layout)) == documents
    # A document ends with its file.
    assert list(read_documents([file, file], layout)) == documents * 2


def test_wikitext(write):
    text = (
        " \n = Lobster = \n \n It is blue . It grows . \n A formula \n = = Life = = \n \n It eats ."
        " \n \n = Iron = \n \n It rusts . \n = a + b = \n"
    )
    documents = list(read_documents([write("a.txt", text)], "wikitext"))
    assert documents == [
        ["It is blue .", "It grows .", "A formula", "It eats ."],
        ["It rusts ."],
    ]


def test_wikitext_articles(data_dir):
    files = [data_dir / "wikitext2" / name for name in ("valid.txt", "test.txt")]
    documents = list(read_documents(files, "wikitext"))
    assert len(documents) == 120  # the 60 articles of each that the corpus is published with
    assert min(map(len, documents)) > 5


def test_json_lines(write):
    file = write("a.jsonl", '{"text": "One. Two."}\n\n{"text": "", "id": 2}\n{"text": "Three"}\n')
    assert list(read_documents([file], "sentences")) == [["One.", "Two."], ["Three"]]


REVIEW = 'It is "good", they say.<br /><br />I slept. Twice'
SENTENCES = ['It is "good", they say.', "I slept.", "Twice"]


def table(form, texts):
    if form == "csv":
        rows = ['"' + text.replace('"', '""') + '",positive' for text in texts]
        return "\n".join(["review,sentiment", *rows]) + "\n"
    return "\n".join(["review\tsentiment", *(f"{text}\tpositive" for text in texts)]) + "\n"


@pytest.mark.parametrize("form", ["csv", "tsv"])
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "pairs"])
def test_rows_of_a_table_are_documents(write, form, layout):
    """Whatever the layout: no header, no quotes around a text, and no label is in them."""
    file = write(f"a.{form}", table(form, [REVIEW, "Bad."]))
    check_files([file], "review")
    assert list(read_documents([file], layout, "review")) == [SENTENCES, ["Bad."]]
    with pytest.raises(ValueError, match=r"2 columns .*'review', 'sentiment'.*with `column`"):
        list(read_documents([file], layout))
    with pytest.raises(ValueError, match="no column 'text'"):
        list(read_documents([file], layout, "text"))


def test_a_few_bytes_that_are_not_utf8(write):
    """Are passed over in a table, with a warning; where they are many, the encoding is another."""
    rows = [b"text", *[b"caf\xc3\xa9"] * 120]
    rows[110] = b"caf\xc3"
    file = write("a.csv", b"\n".join(rows))
    with pytest.warns(UserWarning, match=r"1 line\(s\) of .*a\.csv have bytes that are not UTF-8"):
        documents = list(read_documents([file]))
    assert documents[108:111] == [["café"], ["caf\ufffd"], ["café"]]
    with pytest.raises(ValueError, match=r"line 2 of .* is not UTF-8"):
        list(read_documents([write("b.csv", b"\n".join([b"text", *[b"caf\xe9"] * 120]))]))


def test_a_packed_table(write):
    file = write("a.csv.gz", gzip.compress(table("csv", [REVIEW]).encode()))
    assert list(read_documents([file], column="review")) == [SENTENCES]


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "pairs"])
def test_files_of_a_folder_are_documents(tmp_path, layout):
    """As aclImdb has them; lists beside the folders of texts are not texts."""
    for name, text in {"pos/0_9.txt": REVIEW, "neg/0_2.txt": "Bad."}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    (tmp_path / "urls_pos.txt").write_text("http://example.org/usercomments\n")
    check_files([tmp_path])
    assert list(read_documents([tmp_path], layout)) == [["Bad."], SENTENCES]
    assert list(read_documents([tmp_path / "pos"], layout)) == [SENTENCES]


def test_files_beside_subfolders_are_documents(tmp_path):
    """What is not read is said."""
    for name in ("a.txt", "notes/b.TXT", "notes/deep/c.txt", "z.txt", "t.md", ".git/x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    with pytest.warns(InputNote, match=r"not read \(no \.txt, or a list\): t\.md$"):
        documents = list(read_documents([tmp_path]))
    assert documents == [["a.txt"], ["notes/b.TXT"], ["notes/deep/c.txt"], ["z.txt"]]
    odd = tmp_path / "a.\udcc9.csv"
    odd.write_text("text\nOne.\n")
    assert len(content_digest([odd])) == 32


def test_a_folder_of_datasets(tmp_path):
    datasets = pytest.importorskip("datasets", reason="pip install -e '.[train]'")
    datasets.Dataset.from_dict({"review": [REVIEW, "Bad."]}).save_to_disk(tmp_path / "set")
    check_files([tmp_path / "set"])
    assert list(read_documents([tmp_path / "set"])) == [SENTENCES, ["Bad."]]
    assert content_digest([tmp_path / "set"])


@pytest.mark.parametrize(
    ("layout", "sentences"),
    [("sentences", [REVIEW.replace("<br /><br />", "  ")]), ("files", SENTENCES)],
)
def test_tags_of_line_breaks_in_plain_text(write, layout, sentences):
    assert list(read_documents([write("a.txt", REVIEW)], layout)) == [sentences]
    assert list(read_documents([write("b.txt", "1 < 2 <b>x</b>")])) == [["1 < 2 <b>x</b>"]]


def test_line_ends_and_byte_order_mark(write):
    """Lines end at a line feed and nowhere else."""
    file = write("a.txt", "\ufeffOne\r\nTwo\u2028still\r\n\r\nThree\x85still")
    assert list(read_documents([file])) == [["One", "Two\u2028still"], ["Three\x85still"]]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"fine\n\xff\xfe\n", "line 2 of .* is not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"txt": "b"}\n', "line 2 of .* 'text'"),
        ("a.jsonl", b"[1]\n", "line 1 of .* holds a list"),
        ("a.jsonl", b"{oops\n", "line 1 of"),
    ],
)
def test_wrong_lines(write, name, content, words):
    with pytest.raises(ValueError, match=words):
        list(read_documents([write(name, content)]))


@pytest.mark.parametrize("line", ["no tab", "a\tb\tc", "a\t ", "\tb"])
def test_lines_that_are_no_pair(write, line):
    file = write("a.txt", f"A\tB\n\n{line}\n")
    words = f"line 3 of {file} is .*; expected two sentences with a tab between them"
    with pytest.raises(ValueError, match=words):
        list(read_documents([file], "pairs"))


def test_pairs_of_a_table(write):
    file = write("a.csv", "text\nA\n")
    with pytest.raises(ValueError, match="has records, which are documents and no pairs"):
        list(read_documents([file], "pairs"))


def test_wrong_files(write, tmp_path):
    with pytest.raises(ValueError, match=r"a\.txt is empty; .*fill it"):
        check_files([write("a.txt", "")])
    with pytest.raises(FileNotFoundError, match="there is no file"):
        check_files([tmp_path / "none.txt"])
    (tmp_path / "bare").mkdir()
    with pytest.raises(ValueError, match=r"is a folder; expected .* a folder with \.txt files"):
        check_files([tmp_path / "bare"])
    with pytest.raises(ValueError, match="no files are named"):
        check_files([])
    with pytest.raises(ValueError, match=f"layout is 'odd'; expected one of {', '.join(LAYOUTS)}"):
        list(read_documents([], "odd"))


def test_digest_is_of_content(write):
    one, other = write("1.txt", "text"), write("2.txt", "text")
    assert content_digest([one]) == content_digest([other])
    assert content_digest([one]) != content_digest([write("3.txt", "Text")])
    # The same bytes are other documents in a table.
    assert content_digest([one]) != content_digest([write("1.csv", "text")])
    # Where one file ends and the next begins counts.
    assert content_digest([write("1", "ab"), write("2", "c")]) != content_digest(
        [write("1", "a"), write("2", "bc")]
    )
