"""Documents out of files, by layout."""

import pytest

from hf_bert_impl.data.documents import LAYOUTS, check_files, content_digest, read_documents


@pytest.mark.parametrize(
    ("layout", "text", "documents"),
    [
        ("sentences", "A one. A two.\nB\n\n \nC\n", [["A one. A two.", "B"], ["C"]]),
        ("paragraphs", "A one. A two.\nB\n\n \nC\n", [["A one.", "A two.", "B"], ["C"]]),
        ("lines", "A one. A two.\nB\n\n \nC\n", [["A one.", "A two."], ["B"], ["C"]]),
        ("files", "A one. A two.\nB\n\n \nC\n", [["A one.", "A two.", "B", "C"]]),
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


def test_wrong_files(write, tmp_path):
    with pytest.raises(ValueError, match=r"a\.txt is empty; .*fill it"):
        check_files([write("a.txt", "")])
    with pytest.raises(FileNotFoundError, match="there is no file"):
        check_files([tmp_path / "none.txt"])
    with pytest.raises(ValueError, match="is a folder"):
        check_files([tmp_path])
    with pytest.raises(ValueError, match="no files are named"):
        check_files([])
    with pytest.raises(ValueError, match=f"layout is 'odd'; expected one of {', '.join(LAYOUTS)}"):
        list(read_documents([], "odd"))


def test_digest_is_of_content(write):
    one, other = write("1.txt", "text"), write("2.txt", "text")
    assert content_digest([one]) == content_digest([other])
    assert content_digest([one]) != content_digest([write("3.txt", "Text")])
    # Where one file ends and the next begins counts.
    assert content_digest([write("1", "ab"), write("2", "c")]) != content_digest(
        [write("1", "a"), write("2", "bc")]
    )
