"""Models of sentence-transformers as contestants: their texts, and the same numbers from each."""

import dataclasses

import pytest
from transformers import BertTokenizer

from hf_bert_impl.benchmark import texts
from hf_bert_impl.benchmark.cases import Unavailable
from hf_bert_impl.benchmark.models import Entry, Source, check_peer
from hf_bert_impl.benchmark.text_models import KINDS, TextModel
from hf_bert_impl.measuring.batches import Case
from tests.checkpoints import SPECIAL_TOKENS, save_checkpoint
from tests.lowered import WHY_NO_OPENVINO

pytestmark = pytest.mark.filterwarnings("ignore")
MADE_UP = "the river rose over night and a market in music window paper"
WORDS = (*SPECIAL_TOKENS, *MADE_UP.split())


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """Stock float32 with the weights of a bare BERT whose tokenizer knows the made-up words."""
    pytest.importorskip("sentence_transformers")
    monkeypatch.delenv("HF_BERT_DATA", raising=False)
    folder = save_checkpoint(
        tmp_path / "bert", "BertModel", words=WORDS, max_position_embeddings=67
    )
    (tmp_path / "shared").mkdir()
    source = Source(str(folder))
    return Entry("sentence-transformers", "float32", source, 1, str(tmp_path / "shared"), 13)


def tokenizer(longest=512):
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    return BertTokenizer(vocab=vocabulary, model_max_length=longest)


def test_passages_have_the_tokens_that_are_promised(monkeypatch):
    monkeypatch.delenv("HF_BERT_DATA", raising=False)
    found = texts.passages(40, tokenizer())
    lengths = [len(tokenizer().tokenize(text)) for text in found]
    assert len(set(found)) == 40
    assert all(30 <= length <= 300 for length in lengths)
    assert min(lengths) < 60 and max(lengths) > 270
    assert found[:7] == texts.passages(7, tokenizer())
    shrunk = [len(tokenizer(64).tokenize(text)) for text in texts.passages(40, tokenizer(64))]
    assert max(shrunk) <= 38


def test_sentences_of_sts_and_where_they_come_from(tmp_path, monkeypatch):
    for year, line in ((2014, "3\ta cat\ta dog\n"), (2012, "1\ta dog\ta bird\n")):
        (tmp_path / "sts" / str(year)).mkdir(parents=True)
        (tmp_path / "sts" / str(year) / "set.tsv").write_text(line, encoding="utf-8")
    monkeypatch.setenv("HF_BERT_DATA", str(tmp_path))
    assert texts.sts_sentences(4) == ["a cat", "a dog", "a bird", "a cat"]
    assert texts.origin("dense") == "STS 2014 and 2012, 3 sentences"
    monkeypatch.delenv("HF_BERT_DATA")
    assert texts.sts_sentences(4) == texts.sentences(4)[0]
    assert "made-up" in texts.origin("dense")


@pytest.mark.ecosystem
@pytest.mark.parametrize("kind", KINDS)
def test_every_contestant_gives_the_same_numbers(kind, entry):
    stock = TextModel(entry, kind)
    case = Case(kind, tuple(stock.lengths()), 0)
    assert case.rows == 13
    assert max(case.lengths) <= 67
    reference = stock.result(case)
    assert reference["values"].std() > 1e-4
    rivals = {
        "openvino": () if kind == "encode" or WHY_NO_OPENVINO else ("float32", "int8"),
        "sentence-transformers": ("bfloat16",),
        "prepared": ("float32", "int8"),
    }
    for name, dtypes in rivals.items():
        for dtype in dtypes:
            try:
                check_peer(name, dtype, "cpu") if name == "openvino" else None
            except Unavailable:
                continue
            rival = TextModel(dataclasses.replace(entry, name=name, dtype=dtype), kind)
            assert rival.lengths() == stock.lengths()
            assert rival.inputs == stock.inputs
            error = rival.check(case, reference)["error"]
            assert error < 1e-5 if dtype == "float32" else 1e-6 < error < 2
            assert (rival.kernels is None) == (name != "prepared")
