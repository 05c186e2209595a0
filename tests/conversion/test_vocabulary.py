"""Lower-casing, inferred or told, and tokenizers of other classes, which are copied."""

import json

import pytest
from transformers import AutoTokenizer

from hf_bert_impl import BertTokenizer
from hf_bert_impl.conversion import convert
from hf_bert_impl.conversion.readers.pickles import read_pickled_vocabulary
from hf_bert_impl.conversion.vocabulary import find_vocabulary, make_tokenizer
from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import NOT_PUBLISHED
from tests.conversion.cases import FIXTURES
from tests.support.checkpoints import JAPANESE, LETTER_TEXTS, LETTERS, name_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "[unusedX]"]
LOWER = [*SPECIAL, "the", "city", "##ing", "paris", "A", "B", "，", "北"]
LOWER_25 = [*SPECIAL, *(f"w{chr(97 + n)}" for n in range(25)), *"abcdefghi"]
LOWER_100 = [*SPECIAL, "the", *(chr(97 + n) * 2 + m for n in range(25) for m in "abcd")]
CASED = [*SPECIAL, "the", "The", "Paris", "##ing", "city"]


def write(folder, tokens):
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("tokens", "names", "said", "asked", "expected", "reason"),
    [
        (LOWER, [], None, None, True, "0 of 3 words"),
        ([*LOWER_25, "low", "Xy"], [], None, None, False, "1 of 27"),
        ([*LOWER_100, "Xy"], [], None, None, True, "1 of 102"),
        (LOWER, ["cased_L-12_H-768_A-12.zip"], None, None, False, "the name cased_L-12"),
        (CASED, ["out", "bert-base-uncased.tar.gz"], None, None, True, "the name bert-base-uncase"),
        (CASED, ["cased-and-uncased"], None, None, False, "2 of 4 words"),
        (LOWER, ["showcased"], None, None, True, "words"),
        (CASED, ["cased"], True, None, True, "tokenizer_config.json"),
        (CASED, ["cased"], True, False, False, "as requested"),
    ],
)
def test_lower_case(tmp_path, tokens, names, said, asked, expected, reason):
    write(tmp_path, tokens)
    if said is not None:
        settings = {"do_lower_case": said, "model_max_length": 9}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = find_vocabulary([tmp_path], names, asked)
    assert found.lower_case is expected
    assert reason in found.reason
    tokenizer = make_tokenizer(found, 31)
    assert tokenizer.do_lower_case is expected
    assert tokenizer.model_max_length == (31 if said is None else 9)
    tokenizer.save_pretrained(tmp_path / "saved")  # its tokenizer.json says it, too
    (tmp_path / "saved/tokenizer_config.json").unlink()
    (tmp_path / "saved/vocab.txt").unlink(missing_ok=True)
    found = find_vocabulary([tmp_path / "saved"], ["cased"])
    assert (found.lower_case, found.reason) == (expected, "tokenizer.json")
    assert (make_tokenizer(found, None).tokenize("THE")[0] == "the") is expected


CODE = "import transformers\nclass Shouting(transformers.BertTokenizer): pass"


@pytest.mark.parametrize(
    ("settings", "config", "code"),
    [
        (JAPANESE, {}, None),
        ({**JAPANESE, "tokenizer_class": None}, {"tokenizer_class": "BertJapaneseTokenizer"}, None),
        ({"tokenizer_class": "Shouting"}, {}, CODE),
        ({"tokenizer_class": "BertTokenizer"}, {}, CODE),
    ],
)
def test_a_tokenizer_of_another_class_is_copied(save_tiny, tmp_path, settings, config, code):
    folder = save_tiny(words=LETTERS)
    if code is not None:
        (folder / "own.py").write_text(code)
        settings = settings | {"auto_map": {"AutoTokenizer": [None, "own.Shouting"]}}
    name_tokenizer(folder, settings, config)
    report = convert(folder, tmp_path / "out")
    for name in ("vocab.txt", "tokenizer_config.json", *(["own.py"] if code else [])):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()
    before, after = (
        AutoTokenizer.from_pretrained(place, trust_remote_code=code is not None)
        for place in (folder, tmp_path / "out")
    )
    assert type(before).__name__ == type(after).__name__
    for text in LETTER_TEXTS:
        assert before(text)["input_ids"] == after(text)["input_ids"]
    (check,) = (row for row in report.rows if row.name == "token ids compared with the source")
    runs = code is None or settings.get("tokenizer_class") == "BertTokenizer"
    assert check.passed is (True if runs else None)
    with pytest.raises(InputError, match="`do_lower_case` does not apply to the tokenizer"):
        convert(folder, tmp_path / "lower", do_lower_case=True)


def test_words_of_codertimo():
    words = read_pickled_vocabulary(FIXTURES / "codertimo" / "vocab.small")
    assert words[:5] == ("<pad>", "<unk>", "<eos>", "<sos>", "<mask>") and len(words) == 139


def test_a_folder_of_transformers_keeps_its_case(save_tiny, tmp_path):
    """AutoTokenizer lower-cases unless a file says otherwise, also with capitals in vocab.txt."""
    folder = save_tiny(words=tuple(CASED))
    report = convert(folder, tmp_path / "cased")
    before, after = (AutoTokenizer.from_pretrained(it) for it in (folder, tmp_path / "cased"))
    assert before("The Paris")["input_ids"] == after("The Paris")["input_ids"]
    assert NOT_PUBLISHED in (tmp_path / "cased/README.md").read_text(encoding="utf-8")
    (note,) = (note for note in report.notes if "2 of 4 words" in note)
    assert "`do_lower_case=False` keeps the case" in note
    write(folder, LOWER)
    for name, noted in (("bert-base-cased", True), ("model", False)):
        assert bool(find_vocabulary([folder], [name], None, {"model_type": "bert"}).note) is noted


def test_a_tokenizer_that_is_written_wrongly_is_not_verified(save_tiny, tmp_path, monkeypatch):
    def swapped(vocabulary, tokenizer, folder):
        first = {"nice": tokenizer.vocab["to"], "to": tokenizer.vocab["nice"]}
        BertTokenizer(tokenizer.vocab | first).save_pretrained(folder)

    monkeypatch.setattr("hf_bert_impl.conversion.pipeline.save_tokenizer", swapped)
    with pytest.raises(InputError, match=r"token ids compared .* returns other ids for .* texts"):
        convert(save_tiny(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
