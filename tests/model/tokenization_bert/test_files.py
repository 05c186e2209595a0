"""The tokenizer's files: what is read and written, by whom, and what is refused."""

import json
import pickle
import warnings
from contextlib import contextmanager
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


def test_a_folder_with_vocab_txt_alone(tmp_path):
    tokenizer = BertTokenizer.from_pretrained(write_vocab(tmp_path))
    assert tokenizer.get_vocab() == SMALL
    assert tokenizer.tokenize("The Cat") == ["the", "cat"]


def test_a_folder_with_vocab_txt_and_config(tmp_path):
    write_config(
        write_vocab(tmp_path),
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


@pytest.mark.parametrize("argument", ["vocab", "vocab_file", "tokenizer_file", "positional"])
def test_the_constructor_takes_paths(tmp_path, argument):
    BertTokenizer(SMALL).save_pretrained(tmp_path)
    path = tmp_path / ("tokenizer.json" if argument == "tokenizer_file" else "vocab.txt")
    if argument == "positional":
        tokenizer = BertTokenizer(path)
    else:
        tokenizer = BertTokenizer(**{argument: str(path)})
    assert tokenizer.get_vocab() == SMALL
    assert tokenizer("The cat")["input_ids"] == BertTokenizer(SMALL)("The cat")["input_ids"]


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
    if reader == "ours":
        assert read.never_split == ["Apple"]


@pytest.mark.parametrize("reader", ["ours", "auto"])
def test_no_basic_tokenization_survives_saving(bert_folder, reader):
    BertTokenizer(SMALL, do_basic_tokenize=False).save_pretrained(bert_folder)
    read = READERS[reader].from_pretrained(bert_folder)
    assert read.tokenize("The mat, cat") == ["The", "mat,", "cat"]
    assert read("The")["input_ids"] == [SMALL["[CLS]"], SMALL["The"], SMALL["[SEP]"]]


def test_what_is_saved_names_no_new_arguments_unless_used(tmp_path):
    BertTokenizer(SMALL).save_pretrained(tmp_path / "plain")
    config = json.loads((tmp_path / "plain" / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["tokenizer_class"] == "BertTokenizer"
    assert not {"never_split", "do_basic_tokenize"} & config.keys()


def test_vocab_txt_is_written_too_and_has_the_same_ids(tmp_path):
    written = BertTokenizer(SMALL)
    written.save_pretrained(tmp_path)
    assert load_vocab(tmp_path / "vocab.txt") == SMALL
    (tmp_path / "tokenizer.json").unlink()
    assert BertTokenizer.from_pretrained(tmp_path).get_vocab() == SMALL
    written.save_pretrained(tmp_path / "json", legacy_format=False)
    assert not (tmp_path / "json" / "vocab.txt").exists()


def test_saving_twice_gives_the_same_files(tmp_path):
    BertTokenizer(SMALL, never_split=["Apple"], do_lower_case=False).save_pretrained(tmp_path / "a")
    BertTokenizer.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    for name in ("vocab.txt", "tokenizer.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


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


def test_other_special_tokens():
    vocab = {"<pad>": 0, "<unk>": 1, "<s>": 2, "</s>": 3, "<mask>": 4, "cat": 5}
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    tokenizer = BertTokenizer(vocab, cls_token="<s>", sep_token="</s>", **names)
    assert tokenizer("cat dog <mask>")["input_ids"] == [2, 5, 1, 4, 3]
    tokenizer.sep_token = "cat"
    tokenizer.update_post_processor()
    assert tokenizer("cat")["input_ids"] == [2, 5, 5]


# Bad input


@contextmanager
def refuses(error, *words):
    """What is done inside fails in one line with these words."""
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("argument", ["vocab", "vocab_file"])
def test_missing_file(tmp_path, argument):
    with refuses(FileNotFoundError, "no.txt", "vocab.txt"):
        BertTokenizer(**{argument: str(tmp_path / "no.txt")})


def test_empty_folder(tmp_path):
    with refuses(FileNotFoundError, str(tmp_path), "tokenizer.json"):
        BertTokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ("is empty", "one token a line")),
        (b"\n\n", ("is empty", "one token a line")),
        (b"[PAD]\n\xff\xfe\n", ("vocab.txt", "not UTF-8")),
    ],
)
def test_vocabulary_without_a_token_or_that_is_not_text(tmp_path, content, words):
    (tmp_path / "vocab.txt").write_bytes(content)
    with refuses(ValueError, *words):
        BertTokenizer.from_pretrained(tmp_path)
    with refuses(ValueError, *words):
        BertTokenizer(tmp_path / "vocab.txt")


@pytest.mark.parametrize("name", ["unk_token", "cls_token", "sep_token"])
def test_vocabulary_without_a_needed_token(tmp_path, name):
    token = f"[{name[:3].upper()}]"
    words = [word for word in WORDS if word != token]
    with refuses(ValueError, token, f"{name}="):
        BertTokenizer.from_pretrained(write_vocab(tmp_path, words))
    with refuses(ValueError, token, f"{name}="):
        BertTokenizer(dict.fromkeys(words, 0))


def test_vocabulary_without_padding_and_mask_warns_of_new_ids():
    words = {word: n for n, word in enumerate(["[UNK]", "[CLS]", "[SEP]", "cat"])}
    with pytest.warns(UserWarning, match=r"\['\[PAD\]', '\[MASK\]'\]") as caught:
        tokenizer = BertTokenizer(words)
    assert len(caught) == 1
    assert len(tokenizer) == 6


def test_tokenizer_json_of_another_kind(tmp_path):
    Tokenizer(models.BPE({"a": 0}, [])).save(str(tmp_path / "tokenizer.json"))
    with refuses(ValueError, "BPE", "WordPiece"):
        BertTokenizer.from_pretrained(tmp_path)


def test_good_input_gives_no_warning(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BertTokenizer(SMALL, never_split=["Apple"]).save_pretrained(tmp_path)
        BertTokenizer.from_pretrained(tmp_path)
        BertTokenizer()


def test_a_length_without_a_token(tmp_path):
    write_config(write_vocab(tmp_path), model_max_length=-1)
    with pytest.raises(ValueError, match=r"model_max_length=-1 is not valid; use .* 1 or more"):
        BertTokenizer.from_pretrained(tmp_path)
