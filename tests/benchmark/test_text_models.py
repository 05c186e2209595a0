"""The contestants of the case `encode`: the same numbers from each."""

import pytest

from hf_bert_impl.benchmark.contestants import Texts
from hf_bert_impl.benchmark.peers import Settings, Source
from tests.support.checkpoints import SPECIAL_TOKENS, save_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore")
MADE_UP = "the river rose over night and a market in music window paper"
WORDS = (*SPECIAL_TOKENS, *MADE_UP.split())


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A bare BERT with a tokenizer of the random words."""
    monkeypatch.delenv("HF_BERT_DATA", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = save_checkpoint(
        tmp_path / "bert", "BertModel", words=WORDS, max_position_embeddings=67
    )
    return Source(str(folder))


def test_the_library_encodes_as_sentence_transformers(source):
    stock, ours = (
        Texts(name, "float32", source, Settings(threads=1, sentences=13))
        for name in ("sentence-transformers", "TextEncoder")
    )
    case = stock.case("encode")
    assert case == ours.case("encode")
    assert (case.rows, max(case.lengths) <= 67) == (13, True)
    assert (stock.result(case) - ours.result(case)).abs().max() < 1e-5
    assert (stock.kernels() is None, ours.kernels() is None) == (True, False)
    assert ours.turn(case, 3) > 0
