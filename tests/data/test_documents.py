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


@pytest.mark.parametrize("form", ["csv", "tsv", "folder"])
def test_rows_of_a_table_and_files_of_a_folder_are_documents(tmp_path, form):
    """In any layout; without header, quotes and labels. A folder as aclImdb has lists, too."""
    place, column = tmp_path / f"a.{form}", "review"
    if form == "folder":
        texts = {"neg/0_2.txt": "Bad.", "pos/0_9.txt": REVIEW}
        texts |= {"urls_pos.txt": "x", "imdbEr.txt": "x"}
        for name, text in texts.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        column = None
    else:
        quoted = '"' + REVIEW.replace('"', '""') + '"'
        rows = [("review", "label"), ("Bad.", "bad"), (quoted if form == "csv" else REVIEW, "good")]
        between = "," if form == "csv" else "\t"
        place.write_text("".join(between.join(row) + "\n" for row in rows))
    check_files([place], column)
    for layout in set(LAYOUTS) - {"pairs"}:
        assert list(read_documents([place], layout, column)) == [["Bad."], SENTENCES]


def test_digest_is_of_content(write):
    """Not of names; but the same bytes are other documents in a table, and files have borders."""
    text, *tables = (content_digest([write(f"1.{it}", "text")]) for it in ("txt", "csv", "jsonl"))
    assert text == content_digest([write("2.txt", "text")]) and text not in tables
    digests = set()
    for first, second in (("ab", "c"), ("a", "bc")):
        write("of/1.txt", first)
        digests.add(content_digest([write("of/2.txt", second).parent]))
    assert len(digests) == 2
