"""The files of a checkpoint: which tokenizer it has, without code of its own, and its modules."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast, XLMRobertaTokenizer

import hf_bert_impl
from hf_bert_impl import TextEncoder
from hf_bert_impl.errors import InputError
from hf_bert_impl.inference.loading import load_own_tokenizer, load_tokenizer
from hf_bert_impl.inference.sentence_folder import copy_sentence_modules
from tests.inference.encoder_cases import names
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
    "an unknown class": (save_backend, {"tokenizer_class": "NoSuchTokenizer"}, {}),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_ids_are_those_of_auto_tokenizer(save_tiny, kind):
    prepare, settings, config = FOLDERS[kind]
    folder = save_tiny(words=LETTERS)
    if prepare is not None:
        prepare(folder)
    name_tokenizer(folder, settings, config)
    theirs = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    ours = load_own_tokenizer(str(folder))
    assert type(ours).__name__ == type(theirs).__name__
    for text in LETTER_TEXTS:
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]


def test_a_tokenizer_written_in_python_gives_the_same_vectors(save_tiny, tmp_path):
    folder = name_tokenizer(save_tiny("BertModel", words=LETTERS), SETTINGS, NAMED)
    encoder = TextEncoder.from_pretrained(folder, prepare=False)
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in LETTER_TEXTS:
        batch = tokenizer(text, truncation=True, max_length=31, return_tensors="pt")
        with torch.no_grad():
            expected = model(**batch).last_hidden_state[0].mean(dim=0)
        assert np.allclose(encoder.encode(text), expected, atol=1e-5)
    encoder.save_pretrained(tmp_path / "saved")
    again = TextEncoder.from_pretrained(tmp_path / "saved")
    assert np.allclose(again.encode(LETTER_TEXTS), encoder.encode(LETTER_TEXTS), atol=1e-6)


@pytest.mark.parametrize("named", [{"tokenizer_class": "MyTokenizer"}, {}])
@pytest.mark.parametrize("pair", [["own.MyTokenizer", None], {"AutoTokenizer": ["own.X", None]}])
def test_code_of_its_own_is_refused_in_one_line(save_tiny, named, pair):
    folder = name_tokenizer(save_tiny(words=LETTERS), named | {"auto_map": pair})
    (folder / "own.py").write_text("raise SystemExit('the code ran')")
    with pytest.raises(InputError, match=r"custom code, which is not run.* AutoTokenizer"):
        load_tokenizer(str(folder))


def test_bert_with_the_tokenizer_of_xlm_r(save_tiny):
    """As in paraphrase-multilingual-MiniLM-L12-v2: its pad token is 1, and 0 by the config."""
    folder = save_tiny("BertModel", words=LETTERS)
    save_pieces(folder)
    name_tokenizer(folder, None, {"tokenizer_class": "XLMRobertaTokenizer", "pad_token_id": 0})
    stock = SentenceTransformer(str(folder), device="cpu")
    stock.max_seq_length = 31
    assert stock.tokenizer.pad_token_id == 1
    encoder = TextEncoder.from_pretrained(folder)
    assert type(encoder.tokenizer) is type(stock.tokenizer)
    expected = stock.encode(LETTER_TEXTS)
    assert np.allclose(encoder.encode(LETTER_TEXTS), expected, atol=1e-5)
    optimized = hf_bert_impl.optimize(stock, "float32")
    assert np.allclose(optimized.encode(LETTER_TEXTS), expected, atol=1e-5)


def module_list(*paths):
    return json.dumps([{"type": f"x.Kind{n}", "path": path} for n, path in enumerate(paths)])


def test_what_is_copied(tmp_path):
    """The modules of the list, if all of them are inside the folder; no other files."""
    source, folder = tmp_path / "source", tmp_path / "folder"
    folder.mkdir()
    for path in (source / "1_Pooling", source / "heads/2_Dense", source / ".git"):
        path.mkdir(parents=True)
        (path / "config.json").write_text("{}")
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
    (source / "notes.txt").write_text("private")
    assert copy_sentence_modules(source, folder) == []
    for path in ("../folder", "/etc", "1_Pooling/../../folder"):
        (source / "modules.json").write_text(module_list("", path))
        with pytest.raises(ValueError, match="outside that folder"):
            copy_sentence_modules(source, folder)
    assert names(folder) == set()
    paths = ("", "1_Pooling", "heads/2_Dense/", "3_Normalize", ".git")
    (source / "modules.json").write_text(module_list(*paths))
    copied = copy_sentence_modules(source, folder)
    assert copied == ["modules.json", "sentence_bert_config.json", "1_Pooling/", "heads/2_Dense/"]
    below = {"1_Pooling/config.json", "heads/2_Dense/config.json"}
    assert names(folder) == {"modules.json", "sentence_bert_config.json", *below}
    assert (folder / "modules.json").read_text() == module_list(*paths)
