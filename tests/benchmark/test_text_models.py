"""Models of sentence-transformers as contestants: the same numbers from each."""

import pytest

from benchmarks.static_int8 import StaticInt8
from benchmarks.text_models import KINDS, TextModel, make_folder
from hf_bert_impl.benchmark.contestants import States, Texts
from hf_bert_impl.benchmark.peers import Settings, Source
from tests.checkpoints import SPECIAL_TOKENS, save_checkpoint
from tests.lowered import WHY_NO_OPENVINO

pytestmark = pytest.mark.filterwarnings("ignore")
MADE_UP = "the river rose over night and a market in music window paper"
WORDS = (*SPECIAL_TOKENS, *MADE_UP.split())
SETTINGS = Settings(threads=1)


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A bare BERT whose tokenizer knows the made-up words."""
    pytest.importorskip("sentence_transformers")
    monkeypatch.delenv("HF_BERT_DATA", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = save_checkpoint(
        tmp_path / "bert", "BertModel", words=WORDS, max_position_embeddings=67
    )
    return Source(str(folder))


def test_the_library_encodes_as_sentence_transformers(source):
    """The contestants of the case `encode`."""
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


@pytest.mark.ecosystem
@pytest.mark.parametrize("kind", KINDS)
def test_every_contestant_gives_the_same_numbers(kind, source, tmp_path):
    given = (kind, make_folder(source, kind, tmp_path), 13, source, SETTINGS)
    stock = TextModel("sentence-transformers", "float32", *given)
    case = stock.case(kind)
    assert case.rows == 13
    assert max(case.lengths) <= 67
    reference = stock.result(case)
    assert reference.std() > 1e-4
    rivals = {
        "openvino": () if WHY_NO_OPENVINO else ("float32",),
        "sentence-transformers": ("bfloat16",),
        "optimized": ("float32", "int8"),
    }
    for name, dtypes in rivals.items():
        for dtype in dtypes:
            rival = TextModel(name, dtype, *given)
            assert rival.case(kind) == case
            assert rival.inputs == stock.inputs
            error = (rival.result(case) - reference).abs().max()
            assert error < 1e-5 if dtype == "float32" else 1e-6 < error < 2


@pytest.mark.ecosystem
@pytest.mark.skipif(bool(WHY_NO_OPENVINO), reason=str(WHY_NO_OPENVINO))
def test_static_int8_is_near(source):
    pytest.importorskip("nncf")
    static, exact = StaticInt8(source, SETTINGS), States("unchanged", "float32", source, SETTINGS)
    case = exact.case("sentence")
    assert 1e-4 < (static.result(case) - exact.result(case)).abs().max() < 2
