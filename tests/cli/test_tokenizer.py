"""`hf-bert tokenizer train` and `words`: text in, a tokenizer out."""

import pytest
from transformers import AutoTokenizer

from hf_bert_impl import BertTokenizer
from hf_bert_impl.conversion.readers.pickles import read_pickled_vocabulary

TEXT = "the low river flows lower\nand the lowest river is slow\n" * 4


def test_pieces(hf_bert, write, tmp_path):
    """Of a column of a table: no header, label, quote or tag becomes a piece."""
    rows = "".join(f'"{line}<br />",zzz\n' for line in TEXT.splitlines())
    command = ("tokenizer", "train", write("a.csv", f"text,label\n{rows}"), "--column", "text")
    words = hf_bert(*command, "--vocab-size", 40, "--output", tmp_path / "made").words
    assert "character coverage 1 " in words and "unknown rate 0 " in words
    assert f"{tmp_path / 'made'}: written in" in words
    files = {file.name for file in (tmp_path / "made").iterdir()}
    assert files == {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    tokenizer = BertTokenizer.from_pretrained(tmp_path / "made")
    assert len(tokenizer) == 40 and tokenizer.tokenize("LOW") == ["low"]
    assert not {"z", "x", "b", "<", "/", '"'} & tokenizer.get_vocab().keys()


def test_words(hf_bert, write, fixtures_dir, tmp_path):
    """Of a text, and those that the program bert-vocab wrote."""
    command, folder = ("tokenizer", "words", write("a.txt", TEXT)), tmp_path / "made"
    words = hf_bert(*command, "--vocab-size", 8, "--output", folder).words
    # "river" and "the" are 4 of the 11 words, "and" is one.
    assert "vocab size 8 words 9 unknown rate 0.545455" in words
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer.convert_ids_to_tokens(range(8))
    assert tokens == ["<pad>", "<unk>", "<eos>", "<sos>", "<mask>", "river", "the", "and"]
    assert tokenizer("the sea")["input_ids"] == [3, 6, 1, 2]
    report = hf_bert(*command, "--min-frequency", 5, "--json", "-o", tmp_path / "json").report
    assert report.pop("unknown_rate") == pytest.approx(7 / 11)
    assert report == {"output": str(tmp_path / "json"), "vocab_size": 7, "words": 9}

    file = fixtures_dir / "codertimo/vocab.small"
    assert hf_bert("tokenizer", "words", file, "-o", tmp_path / "read").status == 0
    made = AutoTokenizer.from_pretrained(tmp_path / "read")
    assert sorted(made.get_vocab(), key=made.get_vocab().get) == [*read_pickled_vocabulary(file)]
