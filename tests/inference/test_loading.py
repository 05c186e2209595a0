"""The files of a checkpoint: which tokenizer it has, without code of its own, and its modules."""

import json

import pytest
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, PreTrainedTokenizerFast, XLMRobertaTokenizer

import hf_bert_impl
from hf_bert_impl import TextEncoder
from hf_bert_impl.errors import InputError
from hf_bert_impl.inference.loading import load_own_tokenizer, load_tokenizer
from hf_bert_impl.inference.sentence_folder import copy_sentence_modules
from tests.inference.conftest import assert_near
from tests.support.checkpoints import JAPANESE, LETTER_TEXTS, LETTERS, name_tokenizer

SETTINGS = {name: value for name, value in JAPANESE.items() if name != "tokenizer_class"}
NAMED = {"tokenizer_class": "BertJapaneseTokenizer"}
OWN = {"AutoTokenizer": ["tokenization_bert.BertTokenizer", None]}
PIECES = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")] + [
    (token, -float(number)) for number, token in enumerate(("▁the", "▁", *"nicetomuhrvg."), 1)
]


def save_backend(folder):
    words = hf_bert_impl.BertTokenizer.from_pretrained(folder)
    tokens = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad")}
    other = PreTrainedTokenizerFast(tokenizer_object=words.backend_tokenizer, **tokens)
    other.save_pretrained(folder)


def save_pieces(folder):
    XLMRobertaTokenizer(vocab=PIECES).save_pretrained(folder)
    for name in ("vocab.txt", "tokenizer_config.json"):
        (folder / name).unlink()


#: Additions to vocab.txt: a function, tokenizer_config.json, and fields of config.json.
FOLDERS = {
    "named in tokenizer_config.json": (None, JAPANESE, {}),
    "named in config.json": (None, SETTINGS, NAMED),
    "named in config.json alone": (None, None, NAMED),
    "tokenizer_config.json goes first": (None, {"tokenizer_class": "BertTokenizer"}, NAMED),
    "nothing": (None, None, {}),
    "cased": (None, {"do_lower_case": False}, {"tokenizer_class": "BertTokenizerFast"}),
    "code that a push brings": (None, {"tokenizer_class": "BertTokenizer", "auto_map": OWN}, {}),
    "a generic class": (save_backend, None, {}),
    "sentencepiece in config.json": (save_pieces, None, {"tokenizer_class": "XLMRobertaTokenizer"}),
    "nothing but the family": (save_pieces, None, {"model_type": "xlm-roberta"}),
    "an unknown class": (save_backend, {"tokenizer_class": "NoSuchTokenizer"}, {}),
}


@pytest.fixture
def save(save_tiny):
    """Saves a model with the additions of a kind; gives the folder."""

    def save(kind, name="BertForMaskedLM"):
        prepare, settings, config = FOLDERS[kind]
        folder = save_tiny(name, words=LETTERS)
        if prepare is not None:
            prepare(folder)
        return name_tokenizer(folder, settings, config)

    return save


@pytest.mark.parametrize("kind", FOLDERS)
def test_ids_are_those_of_auto_tokenizer(save, kind):
    folder = save(kind)
    theirs = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    ours = load_own_tokenizer(str(folder))
    assert type(ours).__name__ == type(theirs).__name__
    for text in LETTER_TEXTS:
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]


@pytest.mark.parametrize("kind", ["named in config.json", "sentencepiece in config.json"])
def test_a_tokenizer_of_another_class_gives_the_same_vectors(save, tmp_path, kind):
    """In paraphrase-multilingual-MiniLM-L12-v2 its pad token is 1, and 0 by the config."""
    folder = save(kind, "BertModel")
    stock, encoder = SentenceTransformer(str(folder), device="cpu"), TextEncoder(folder)
    stock.max_seq_length = 31
    assert type(encoder.tokenizer) is type(stock.tokenizer)
    expected = stock.encode(LETTER_TEXTS)
    encoder.save_pretrained(tmp_path / "saved")
    saved, plain = TextEncoder(tmp_path / "saved"), TextEncoder(folder, prepare=False)
    for model in (encoder, saved, plain, hf_bert_impl.optimize(stock, "float32")):
        assert_near(model.encode(LETTER_TEXTS), expected)


@pytest.mark.parametrize("named", [{"tokenizer_class": "MyTokenizer"}, {}])
@pytest.mark.parametrize("pair", [["own.MyTokenizer", None], {"AutoTokenizer": ["own.X", None]}])
def test_code_of_its_own_is_refused_in_one_line(save_tiny, named, pair):
    folder = name_tokenizer(save_tiny(words=LETTERS), named | {"auto_map": pair})
    (folder / "own.py").write_text("raise SystemExit('the code ran')")
    with pytest.raises(InputError, match=r"custom code, which is not run.* AutoTokenizer"):
        load_tokenizer(str(folder))


def test_modules_are_copied_from_inside_the_folder(tmp_path):
    """Those of the list, and no other files."""
    source, folder = tmp_path / "source", tmp_path / "folder"
    folder.mkdir()
    for path in ("1_Pooling", "heads/2_Dense", ".git"):
        (source / path).mkdir(parents=True)
        (source / path / "config.json").write_text("{}")
    (source / "notes.txt").write_text("private")

    def copied(*paths):
        modules = [{"type": "x.Kind", "path": path} for path in ("", *paths)]
        (source / "modules.json").write_text(json.dumps(modules))
        return copy_sentence_modules(source, folder)

    for path in ("../folder", "/etc", "1_Pooling/../../folder"):
        with pytest.raises(ValueError, match="outside that folder"):
            copied(path)
    assert not [*folder.iterdir()]
    names = ["modules.json", "1_Pooling/", "heads/2_Dense/"]
    assert copied("1_Pooling", "heads/2_Dense/", "3_Normalize", ".git") == names
    assert {path.name for path in folder.rglob("*.*")} == {"modules.json", "config.json"}
