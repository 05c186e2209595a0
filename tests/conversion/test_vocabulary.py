"""Lower-casing, inferred or told."""

import json
import shutil

import pytest

from hf_bert_impl.conversion.vocabulary import find_vocabulary, make_tokenizer
from hf_bert_impl.errors import InputError
from tests.conversion.cases import FIXTURES

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "[unusedX]"]
LOWER = [*SPECIAL, "the", "city", "##ing", "paris", "A", "B", "，", "北"]
CASED = [*SPECIAL, "the", "The", "Paris", "##ing", "city"]


def write(folder, tokens, **config):
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("tokens", "names", "config", "asked", "expected", "reason"),
    [
        (LOWER, [], {}, None, True, "0 of 3 words"),
        (CASED, [], {}, None, False, "2 of 4 words"),
        (LOWER, ["cased_L-12_H-768_A-12.zip"], {}, None, False, "the name cased_L-12"),
        (CASED, ["out", "bert-base-uncased.tar.gz"], {}, None, True, "the name bert-base-uncased"),
        (CASED, ["multi_cased_L-12"], {}, None, False, "the name multi_cased"),
        (CASED, ["cased-and-uncased"], {}, None, False, "words"),
        (LOWER, ["showcased"], {}, None, True, "words"),
        (CASED, ["cased"], {"do_lower_case": True}, None, True, "tokenizer_config.json"),
        (CASED, ["cased"], {"do_lower_case": True}, False, False, "as asked for"),
        (CASED, ["cased"], {"model_max_length": 7}, None, False, "the name cased"),
    ],
)
def test_lower_case(tmp_path, tokens, names, config, asked, expected, reason):
    write(tmp_path, tokens, **config)
    found = find_vocabulary([tmp_path], names, asked)
    assert found.lower_case is expected
    assert reason in found.reason
    tokenizer = make_tokenizer(found, 31)
    assert tokenizer.do_lower_case is expected
    assert tokenizer.model_max_length == config.get("model_max_length", 31)


def test_tokenizer_json_says_it_too(tmp_path):
    write(tmp_path, CASED)
    make_tokenizer(find_vocabulary([tmp_path], ["uncased"]), 9).save_pretrained(tmp_path / "a")
    (tmp_path / "a/tokenizer_config.json").unlink()
    (tmp_path / "a/vocab.txt").unlink()
    found = find_vocabulary([tmp_path / "a"], ["cased"])
    assert found.lower_case
    assert found.reason == "tokenizer.json"
    assert make_tokenizer(found, None).tokenize("THE") == ["the"]


def test_places_in_order(tmp_path):
    (tmp_path / "near").mkdir()
    assert find_vocabulary([tmp_path / "near"], []) is None
    write(tmp_path, CASED)
    assert find_vocabulary([tmp_path / "near", tmp_path], []).path == tmp_path / "vocab.txt"
    (tmp_path / "vocab.txt").rename(tmp_path / "bert-base-cased-vocab.txt")
    assert find_vocabulary([tmp_path], []).path.name == "bert-base-cased-vocab.txt"


def test_codertimo_has_no_case(tmp_path):
    shutil.copy(FIXTURES / "codertimo/vocab.small", tmp_path)
    found = find_vocabulary([tmp_path], ["uncased"])
    assert not found.lower_case
    assert make_tokenizer(found, 16).tokenize("the of zz") == ["the", "of", "<unk>"]
    with pytest.raises(InputError, match="`do_lower_case`"):
        find_vocabulary([tmp_path], [], True)
