"""Vocabularies learnt from text: of pieces, and of words."""

from hf_bert_impl.data.tokenizer_training import SPECIAL_TOKENS, train_tokenizer
from hf_bert_impl.data.word_vocabulary import train_words
from hf_bert_impl.inference.loading import load_tokenizer

TEXT = (
    "The lower river flows slowly, and the lowest one slower.\n"
    "Flowing rivers lower the land; slow rivers flow lowest!\n"
) * 5


def tokens(tokenizer):
    ids = tokenizer.get_vocab()
    assert sorted(ids.values()) == [*range(len(ids))]
    return sorted(ids, key=ids.get)


def test_the_vocabulary(write):
    tokenizer, report = train_tokenizer([write("a.txt", TEXT)], vocab_size=60)
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


def test_chinese(data_dir, write):
    lines = (data_dir / "cmn_eng" / "cmn.txt").read_text(encoding="utf-8").splitlines()[:3000]
    file = write("zh.txt", "\n".join(line.split("\t")[1] for line in lines))
    tokenizer, report = train_tokenizer([file], vocab_size=3000)
    assert report.character_coverage >= 0.9999 and report.unknown_rate < 0.0005
    # No character inside words: each is a word.
    assert tokenizer.tokenize("我们回家。") == ["我", "们", "回", "家", "。"]


def test_rare_characters_become_unknown(write):
    text = write("a.txt", TEXT * 20 + "€uro\n")
    tokenizer, report = train_tokenizer([text], vocab_size=70, character_coverage=0.999)
    assert "€" not in tokenizer.get_vocab()
    assert report.character_coverage < 1
    assert report.unknown_rate > 0
    whole, report = train_tokenizer([text], vocab_size=70, character_coverage=1.0)
    assert "€" in whole.get_vocab()
    assert report.unknown_rate == 0


# --- vocabularies of words -----------------------------------------------------------------------

SPEECH = "to be or\tnot to be <mask>\n\nthat is the question to\n"


def test_a_vocabulary_without_config_is_loaded(write, tmp_path):
    """As pre-training takes it, before there is a model. Padding has the type 0."""
    train_words([write("a.txt", SPEECH)])[0].save_pretrained(tmp_path)
    batch = load_tokenizer(str(tmp_path))([("to be", "or nothing"), ("not", "is")], padding=True)
    assert batch["input_ids"] == [[3, 5, 6, 2, 9, 1, 2], [3, 8, 2, 7, 2, 0, 0]]
    assert batch["token_type_ids"] == [[1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 2, 2, 0, 0]]
    assert batch["attention_mask"] == [[1] * 7, [1, 1, 1, 1, 1, 0, 0]]
