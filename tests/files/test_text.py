"""Text out of files: byte-order marks, and other encodings."""

import pytest

from hf_bert_impl.files.text import check_text_file, read_text


def test_what_is_and_is_not_text(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeffone\r\n\ufefftwo".encode())
    assert read_text(file) == "one\r\n\ufefftwo"  # only the first byte-order mark goes
    file.write_bytes(b"fine\ncaf\xe9\n")
    words = r"^Line 2 of .*a.txt is not UTF-8 text \(byte 4 of the line is 0xe9: .*Save the file as"
    with pytest.raises(ValueError, match=words):
        read_text(file)
    with pytest.raises(ValueError, match=r"is a folder. It should be a text"):
        check_text_file(tmp_path, "a text")
