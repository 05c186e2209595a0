"""A vocabulary learnt from text."""

import os
import subprocess
import sys

import pytest
from transformers import AutoTokenizer

from hf_bert_impl.data import wordpiece
from hf_bert_impl.data.tokenizer_training import SPECIAL_TOKENS, train_tokenizer

TEXT = (
    "The lower river flows slowly, and the lowest one slower.\n"
    "Flowing rivers lower the land; slow rivers flow lowest!\n"
) * 5


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text(TEXT)
    return file


def tokens(tokenizer):
    vocab = tokenizer.get_vocab()
    return sorted(vocab, key=vocab.get)


def test_the_vocabulary(text):
    tokenizer, report = train_tokenizer([text], vocab_size=60)
    words = tokens(tokenizer)
    assert words[:5] == list(SPECIAL_TOKENS) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(words) == len(set(words)) == report.vocab_size == 60
    alphabet = words[5 : 5 + report.alphabet]
    assert alphabet == sorted(set(TEXT.lower()) - {" ", "\n"})
    # Then the same characters inside words, in order, and then what was merged.
    inside = [word for word in words if len(word) == 3 and word.startswith("##")]
    assert words[5 + report.alphabet : 5 + report.alphabet + len(inside)] == sorted(inside)
    assert {"low", "##er", "flow"} <= set(words)
    assert report.unknown_rate == 0
    assert report.character_coverage == 1
    assert report.words == 115


def test_pieces_are_those_of_the_reference(text):
    tokenizer, report = train_tokenizer([text], vocab_size=60)
    pieces = wordpiece.tokenize(TEXT, tokenizer.get_vocab())
    assert tokenizer.tokenize(TEXT) == pieces
    assert report.pieces_per_word == pytest.approx(len(pieces) / 115)


def test_case(text):
    assert train_tokenizer([text], vocab_size=70)[0].tokenize("The") == ["the"]
    cased, _ = train_tokenizer([text], vocab_size=75, lowercase=False)
    assert cased.tokenize("The") == ["The"]
    assert not cased.do_lower_case


def test_saved_and_loaded(text, tmp_path):
    tokenizer, _ = train_tokenizer([text], vocab_size=60, lowercase=False)
    tokenizer.save_pretrained(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert again("The slow River")["input_ids"] == tokenizer("The slow River")["input_ids"]


@pytest.mark.slow
def test_the_same_in_every_process(text):
    """The trainer hashes with a new seed in each process."""
    code = (
        "import sys; from hf_bert_impl.data.tokenizer_training import train_tokenizer\n"
        "print(sorted(train_tokenizer([sys.argv[1]], vocab_size=66)[0].get_vocab().items()))"
    )
    run = [sys.executable, "-c", code, str(text)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true"}
    found = {
        subprocess.run(run, capture_output=True, check=True, env=environment).stdout
        for _ in range(2)
    }
    assert len(found) == 1


def test_chinese(data_dir, tmp_path):
    lines = (data_dir / "cmn_eng" / "cmn.txt").read_text(encoding="utf-8").splitlines()[:3000]
    file = tmp_path / "zh.txt"
    file.write_text("\n".join(line.split("\t")[1] for line in lines), encoding="utf-8")
    tokenizer, report = train_tokenizer([file], vocab_size=3000)
    assert report.character_coverage >= 0.9999 and report.unknown_rate < 0.0005
    # No character inside words: each is a word.
    assert tokenizer.tokenize("我们回家。") == ["我", "们", "回", "家", "。"]


def test_rare_characters_become_unknown(text):
    text.write_text(TEXT * 20 + "€uro\n")
    tokenizer, report = train_tokenizer([text], vocab_size=70, character_coverage=0.999)
    assert "€" not in tokenizer.get_vocab()
    assert report.character_coverage < 1
    assert report.unknown_rate > 0
    whole, report = train_tokenizer([text], vocab_size=70, character_coverage=1.0)
    assert "€" in whole.get_vocab()
    assert report.unknown_rate == 0


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (TEXT, {"vocab_size": 20}, "a vocabulary of 20 tokens has no room for the 20 charac"),
        (TEXT, {"vocab_size": 10**9}, "vocab_size is 1000000000; expected .* 0 to 10,000,000"),
        (TEXT, {"min_frequency": 0}, "min_frequency is 0"),
        (TEXT, {"character_coverage": 1.5}, r"character_coverage is 1\.5"),
        ("", {}, "is empty"),
        (" \n\n", {}, "nothing but white space"),
    ],
)
def test_wrong_input(text, content, options, words):
    text.write_text(content)
    with pytest.raises(ValueError, match=words):
        train_tokenizer([text], **options)
