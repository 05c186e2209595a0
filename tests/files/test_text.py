"""Text out of files: byte-order marks, and other encodings."""

from hf_bert_impl.files.text import read_text


def test_what_is_and_is_not_text(write):
    file = write("a.txt", "\ufeffone\r\n\ufefftwo".encode())
    assert read_text(file) == "one\r\n\ufefftwo"  # only the first byte-order mark goes
