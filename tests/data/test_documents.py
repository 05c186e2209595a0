"""Documents out of files, by layout."""

import pytest

from hf_bert_impl.data.documents import LAYOUTS, check_files, content_digest, read_documents

REVIEW = 'It is "good", they say.<br /><br />I slept. Twice'
SENTENCES = ['It is "good", they say.', "I slept.", "Twice"]
TEXT = "A one. A two.\nB\n\n \nC\n"
WIKI = (
    " \n = Lobster = \n \n It is blue . It grows . \n A formula \n = = Life = = \n \n It eats ."
    " \n \n = Iron = \n \n It rusts . \n = a + b = \n Why ? \n"
)
ARTICLES = [["It is blue .", "It grows .", "A formula", "It eats ."], ["It rusts .", "Why ?"]]


@pytest.mark.parametrize(
    ("layout", "text", "documents"),
    [
        ("sentences", TEXT, [["A one. A two.", "B"], ["C"]]),
        ("paragraphs", TEXT, [["A one.", "A two.", "B"], ["C"]]),
        ("lines", TEXT, [["A one.", "A two."], ["B"], ["C"]]),
        ("files", TEXT, [["A one.", "A two.", "B", "C"]]),
        ("pairs", "A one.\tB\n\n \n C \t D<br />e\n", [["A one.", "B"], ["C", "D e"]]),
        # Lines end at a line feed and nowhere else.
        ("sentences", "\ufeffA\r\nB\u2028b\r\n\r\nC\x85c", [["A", "B\u2028b"], ["C\x85c"]]),
        ("sentences", REVIEW, [['It is "good", they say.  I slept. Twice']]),
        ("files", REVIEW, [SENTENCES]),
        ("wikitext", WIKI, ARTICLES),
        ("sentences", "1 < 2 <b>x</b>", [["1 < 2 <b>x</b>"]]),
    ],
)
def test_layouts(write, layout, text, documents):
    file = write("a.txt", text)
    assert list(read_documents([file], layout)) == documents
    # A document ends with its file.
    assert list(read_documents([file, file], layout)) == documents * 2


@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_rows_of_a_table_are_documents(write, form):
    """In any layout, without the header, quotes and labels."""
    quoted = '"' + REVIEW.replace('"', '""') + '"'
    rows = [("review", "label"), (quoted if form == "csv" else REVIEW, "good"), ("Bad.", "bad")]
    between = "," if form == "csv" else "\t"
    file = write(f"a.{form}", "".join(between.join(row) + "\n" for row in rows))
    check_files([file], "review")
    for layout in set(LAYOUTS) - {"pairs"}:
        assert list(read_documents([file], layout, "review")) == [SENTENCES, ["Bad."]]


def test_files_of_a_folder_are_documents(tmp_path):
    """As in aclImdb, whose lists are not texts."""
    texts = {"pos/0_9.txt": REVIEW, "neg/0_2.txt": "Bad.", "urls_pos.txt": "x", "imdbEr.txt": "x"}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    check_files([tmp_path])
    for layout in set(LAYOUTS) - {"pairs"}:
        assert list(read_documents([tmp_path], layout)) == [["Bad."], SENTENCES]


def test_digest_is_of_content(write):
    one = content_digest([write("1.txt", "text")])
    assert one == content_digest([write("2.txt", "text")])
    # The same bytes are other documents in a table.
    assert one not in (content_digest([write(name, "text")]) for name in ("1.csv", "1.jsonl"))
    # Where one file ends and the next begins counts.
    digests = set()
    for first, second in (("ab", "c"), ("a", "bc")):
        folder = write("of/1.txt", first).parent
        write("of/2.txt", second)
        digests.add(content_digest([folder]))
    assert len(digests) == 2
