"""Text out of files: byte-order marks, and other encodings."""

import pytest

from hf_bert_impl.files.text import check_text_file, read_text


def test_only_the_first_byte_order_mark_goes(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeffone\r\n\ufefftwo".encode())
    assert read_text(file) == "one\r\n\ufefftwo"


def test_another_encoding(tmp_path):
    """The line and the byte are named."""
    file = tmp_path / "a.txt"
    file.write_bytes(b"fine\ncaf\xe9\n")
    words = r"^line 2 of .*a.txt is not UTF-8 text \(byte 4 of the line is 0xe9: .*save the file as"
    with pytest.raises(ValueError, match=words):
        read_text(file)


def test_no_file(tmp_path):
    with pytest.raises(ValueError, match="none; expected a text; check the path"):
        check_text_file(tmp_path / "none", "a text")
    with pytest.raises(ValueError, match="is a folder; expected a text; name a file in it"):
        check_text_file(tmp_path, "a text")
