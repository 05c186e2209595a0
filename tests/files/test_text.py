"""Text out of files: lines, byte-order marks, and other encodings."""

import pytest

from hf_bert_impl.files.text import check_text_file, decode_lines, numbered_lines, read_text

TEXT = "\ufeffone\r\ntwo\u2028still\r\r\n\n\x85\ufefffour"


def test_lines_and_the_whole(tmp_path):
    """Only the first byte-order mark goes, and only line feeds end a line."""
    file = tmp_path / "a.txt"
    file.write_bytes(TEXT.encode())
    lines = [(1, "one"), (2, "two\u2028still\r"), (3, ""), (4, "\x85\ufefffour")]
    assert list(numbered_lines(file)) == lines
    with file.open("rb") as stream:
        assert list(decode_lines(stream, "standard input")) == lines
    assert read_text(file) == TEXT[1:]


def test_another_encoding(tmp_path):
    """The line and the byte are named, whether lines are read one by one or all at once."""
    file = tmp_path / "a.txt"
    file.write_bytes(b"fine\ncaf\xe9\n")
    words = r"^line 2 of .*a.txt is not UTF-8 text \(byte 4 of the line is 0xe9: .*save the file as"
    with pytest.raises(ValueError, match=words):
        read_text(file)
    lines = numbered_lines(file)
    assert next(lines) == (1, "fine")
    with pytest.raises(ValueError, match=words):
        next(lines)


def test_no_file(tmp_path):
    with pytest.raises(ValueError, match="none; expected a text; check the path"):
        check_text_file(tmp_path / "none", "a text")
    with pytest.raises(ValueError, match="is a folder; expected a text; name a file in it"):
        check_text_file(tmp_path, "a text")
