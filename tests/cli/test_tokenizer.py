"""`hf-bert tokenizer train` and `words`: text in, a tokenizer out."""

import pytest
from transformers import AutoTokenizer

from hf_bert_impl import BertTokenizer
from hf_bert_impl.conversion.readers.pickles import read_pickled_vocabulary

TEXT = "the low river flows lower\nand the lowest river is slow\n" * 4


@pytest.fixture
def text(write):
    return write("a.txt", TEXT)


def test_table(hf_bert, text, tmp_path):
    output = tmp_path / "made"
    words = hf_bert("tokenizer", "train", text, "--vocab-size", 40, "--output", output).words
    assert "character coverage 1 " in words
    assert "unknown rate 0 " in words
    assert f"{output}: written in" in words
    assert {file.name for file in output.iterdir()} == {
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    }
    tokenizer = BertTokenizer.from_pretrained(output)
    assert len(tokenizer) == 40
    assert [tokenizer.convert_ids_to_tokens(n) for n in range(5)] == [
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    ]
    assert tokenizer.tokenize("LOW") == ["low"]


def test_a_column_of_a_table(hf_bert, write, tmp_path):
    """Its words alone: no header, label, quote or tag becomes a piece."""
    file = write("reviews.csv", "review,sentiment\n" + '"a low, low river<br />flows",zzz\n' * 9)
    arguments = ("tokenizer", "train", file, "--vocab-size", 60, "-o", tmp_path / "made")
    assert hf_bert(*arguments, "--column", "review").status == 0
    vocabulary = BertTokenizer.from_pretrained(tmp_path / "made").get_vocab()
    assert {"river", "flows", ","} < vocabulary.keys()
    assert not {"z", "<", ">", "/", '"', "b"} & vocabulary.keys()


# --- words -----------------------------------------------------------------------------------


def test_words(hf_bert, text, tmp_path):
    folder = tmp_path / "made"
    words = hf_bert("tokenizer", "words", text, "--vocab-size", 8, "--output", folder).words
    # "river" and "the" are 4 of the 11 words, "and" is one.
    assert "vocab size 8 words 9 unknown rate 0.545455" in words
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer.convert_ids_to_tokens(range(8))
    assert tokens == ["<pad>", "<unk>", "<eos>", "<sos>", "<mask>", "river", "the", "and"]
    assert tokenizer("the sea")["input_ids"] == [3, 6, 1, 2]
    options = ("--min-frequency", 5, "--json", "-o", tmp_path / "json")
    report = hf_bert("tokenizer", "words", text, *options).report
    assert report.pop("unknown_rate") == pytest.approx(7 / 11)
    assert report == {"output": str(tmp_path / "json"), "vocab_size": 7, "words": 9}


def test_words_that_bert_vocab_wrote(hf_bert, fixtures_dir, tmp_path):
    file = fixtures_dir / "codertimo/vocab.small"
    assert hf_bert("tokenizer", "words", file, "-o", tmp_path / "made").status == 0
    made = AutoTokenizer.from_pretrained(tmp_path / "made")
    assert sorted(made.get_vocab(), key=made.get_vocab().get) == [*read_pickled_vocabulary(file)]
