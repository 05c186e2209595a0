"""The tokenizer's files: what is read and written, by whom, and what is refused."""

import json
import pickle
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer, models

from hf_bert_impl.model.tokenization_bert import BertTokenizer, load_vocab
from tests.model.tokenization_bert.test_ids import (
    SMALL,
    SWITCHES,
    WORDS,
    outputs,
    write_vocab,
)


def write_config(folder: Path, **fields) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(fields), encoding="utf-8")
    return folder


@pytest.fixture
def bert_folder(tmp_path):
    """A folder of which AutoTokenizer knows that a BERT lies in it."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    return tmp_path


def test_a_folder_with_vocab_txt_with_and_without_config(tmp_path):
    tokenizer = BertTokenizer.from_pretrained(write_vocab(tmp_path))
    assert tokenizer.tokenize("The Cat") == ["the", "cat"]
    write_config(
        tmp_path,
        do_lower_case=False,
        never_split=["Apple"],
        model_max_length=77,
        tokenizer_class="BertTokenizer",
    )
    tokenizer = BertTokenizer.from_pretrained(tmp_path)
    assert tokenizer.tokenize("The cat") == ["The", "cat"]
    assert tokenizer.model_max_length == 77 and tokenizer.never_split == ["Apple"]
    lowered = BertTokenizer.from_pretrained(tmp_path, do_lower_case=True)  # arguments come first
    assert lowered.tokenize("The cat") == ["the", "cat"]


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_a_folder_with_tokenizer_json_alone_keeps_its_switches(tmp_path, do_lower_case):
    # Upstream takes the vocabulary out of it and lower-cases whatever the file says.
    BertTokenizer(SMALL, do_lower_case=do_lower_case, tokenize_chinese_chars=False).save_pretrained(
        tmp_path
    )
    for path in tmp_path.iterdir():
        if path.name != "tokenizer.json":
            path.unlink()
    tokenizer = BertTokenizer.from_pretrained(tmp_path)
    assert tokenizer.tokenize("The cat") == ["the" if do_lower_case else "The", "cat"]
    assert tokenizer.do_lower_case is do_lower_case
    assert tokenizer.tokenize_chinese_chars is False
    explicit = BertTokenizer.from_pretrained(tmp_path, do_lower_case=not do_lower_case)
    assert explicit.tokenize("The") == ["The" if do_lower_case else "the"]


def test_the_constructor_takes_paths(tmp_path):
    BertTokenizer(SMALL).save_pretrained(tmp_path)
    words, whole = str(tmp_path / "vocab.txt"), str(tmp_path / "tokenizer.json")
    for given in ({"vocab": words}, {"vocab_file": words}, {"tokenizer_file": whole}):
        tokenizer = BertTokenizer(**given)
        assert tokenizer.get_vocab() == SMALL
        assert tokenizer("The cat")["input_ids"] == BertTokenizer(SMALL)("The cat")["input_ids"]
    assert BertTokenizer(tmp_path / "vocab.txt").get_vocab() == SMALL


READERS = {
    "ours": BertTokenizer,
    "stock": transformers.BertTokenizer,
    "auto": transformers.AutoTokenizer,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", ["ours", "stock"])
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_what_one_saves_the_others_read(bert_folder, writer, reader, switches):
    wide = [*WORDS, "é", "É", "e", "##́", "中", "文", "中文"]
    vocab = {word: number for number, word in enumerate(wide)}
    written = READERS[writer](vocab, **{"do_lower_case": True, **switches}, model_max_length=99)
    written.add_tokens(["newword"])
    written.save_pretrained(bert_folder)
    read = READERS[reader].from_pretrained(bert_folder)
    text = "The Apple, unknowns É é 中文 newword [MASK]"
    assert outputs(read, text, "pie") == outputs(written, text, "pie")
    assert read.model_max_length == 99
    assert read.get_vocab() == written.get_vocab()


@pytest.mark.parametrize("reader", READERS)
def test_never_split_survives_saving_even_in_stock_tokenizers(bert_folder, reader):
    BertTokenizer(SMALL, never_split=["Apple"]).save_pretrained(bert_folder)
    read = READERS[reader].from_pretrained(bert_folder)
    assert read.tokenize("The Apple apple") == ["the", "Apple", "apple"]
    if reader != "stock":
        BertTokenizer(SMALL, do_basic_tokenize=False).save_pretrained(bert_folder)
        read = READERS[reader].from_pretrained(bert_folder)
        assert read.tokenize("The mat, cat") == ["The", "mat,", "cat"]


def test_vocab_txt_is_written_too_and_has_the_same_ids(tmp_path):
    written = BertTokenizer(SMALL)
    written.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["tokenizer_class"] == "BertTokenizer"
    assert not {"never_split", "do_basic_tokenize"} & config.keys()
    assert load_vocab(tmp_path / "vocab.txt") == SMALL
    (tmp_path / "tokenizer.json").unlink()
    assert BertTokenizer.from_pretrained(tmp_path).get_vocab() == SMALL
    written.save_pretrained(tmp_path / "json", legacy_format=False)
    assert not (tmp_path / "json" / "vocab.txt").exists()


def test_ids_stay_in_their_lines_when_a_token_stands_twice(tmp_path):
    write_vocab(tmp_path, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "cat", "mat"])
    tokenizer = BertTokenizer.from_pretrained(tmp_path)
    assert tokenizer.convert_tokens_to_ids(["cat", "mat"]) == [6, 7]
    (path,) = tokenizer.save_vocabulary(str(tmp_path), "again")
    assert Path(path).name == "again-vocab.txt"
    assert {**load_vocab(path), "": None} == {**tokenizer.get_vocab(), "": None}


def test_line_ends_byte_order_mark_and_spaces_in_vocab_txt(tmp_path):
    words = ["[PAD]", "[UNK] ", "[CLS]", "[SEP]", "[MASK]\t", "\u3000", "\u2028", "a"]
    (tmp_path / "vocab.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(words).encode())
    expected = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u3000", "\u2028", "a"]
    assert list(load_vocab(tmp_path / "vocab.txt")) == expected


def test_pickle_and_training_on_new_text():
    tokenizer = BertTokenizer(SMALL, never_split=["Apple"])
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.tokenize("The Apple") == ["the", "Apple"]
    texts = ["Zebras graze", "Zebras gaze", "a zebra"] * 5
    with pytest.warns(UserWarning, match="Apple"):
        trained = tokenizer.train_new_from_iterator(texts, vocab_size=60)
    assert isinstance(trained, BertTokenizer)
    assert trained.unk_token_id not in trained("zebras GAZE")["input_ids"]
    assert trained("a")["input_ids"][0] == trained.cls_token_id


# Bad input


def refuses(error, words, call):
    """The call fails in one line with these words."""
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_missing_files(tmp_path):
    path = str(tmp_path / "no.txt")
    words = r"no\.txt.*vocab\.txt"
    refuses(FileNotFoundError, words, lambda: BertTokenizer(vocab=path))
    refuses(FileNotFoundError, words, lambda: BertTokenizer(vocab_file=path))
    refuses(FileNotFoundError, "tokenizer.json", lambda: BertTokenizer.from_pretrained(tmp_path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty.*one token a line"),
        (b"\n\n", "is empty"),
        (b"[PAD]\n\xff\xfe\n", r"vocab\.txt.*not UTF-8"),
        (b"[PAD]\n[CLS]\n[SEP]\n[MASK]\n", r"\[UNK\].*unk_token="),
        (b"[PAD]\n[UNK]\n[SEP]\n[MASK]\n", r"\[CLS\].*cls_token="),
        (b"[PAD]\n[UNK]\n[CLS]\n[MASK]\n", r"\[SEP\].*sep_token="),
    ],
)
def test_vocabularies_that_are_none(tmp_path, content, words):
    (tmp_path / "vocab.txt").write_bytes(content)
    refuses(ValueError, words, lambda: BertTokenizer.from_pretrained(tmp_path))
    refuses(ValueError, words, lambda: BertTokenizer(tmp_path / "vocab.txt"))


def test_vocabulary_without_padding_and_mask_warns_of_new_ids():
    words = {word: n for n, word in enumerate(["[UNK]", "[CLS]", "[SEP]", "cat"])}
    with pytest.warns(UserWarning, match=r"\['\[PAD\]', '\[MASK\]'\]") as caught:
        tokenizer = BertTokenizer(words)
    assert len(caught) == 1
    assert len(tokenizer) == 6


def test_other_bad_files(tmp_path):
    write_config(write_vocab(tmp_path), model_max_length=-1)
    words = "model_max_length=-1 is not valid; use .* 1 or more"
    refuses(ValueError, words, lambda: BertTokenizer.from_pretrained(tmp_path))
    Tokenizer(models.BPE({"a": 0}, [])).save(str(tmp_path / "tokenizer.json"))
    refuses(ValueError, "BPE.*WordPiece", lambda: BertTokenizer.from_pretrained(tmp_path))
