"""A run's rows and its report; times are not checked."""

import importlib.util
import io
import json
import re
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from rich.console import Console

from hf_bert_impl.benchmark import cases
from hf_bert_impl.benchmark.cases import Unavailable
from hf_bert_impl.benchmark.contestants import States, Texts
from hf_bert_impl.benchmark.peers import PEERS, PRECISIONS, Settings, Source, check_peer
from hf_bert_impl.benchmark.results import Row
from hf_bert_impl.benchmark.run import Benchmark
from hf_bert_impl.cli.options import field_docs
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.measuring.batches import make_batch
from tests.encoders.cases import random_stock
from tests.support.lowered import WHY_NO_OPENVINO

TINY = Source(random="tiny")


def test_cases_have_the_padding_that_the_readme_states():
    for name, *expected in (
        ("short", 32, 128, 0.56),
        ("uniform", 32, 127, 0.41),
        ("long", 8, 488, 0.39),
        ("full", 16, 64, 0.0),
        ("sentence", 1, 12, 0.0),
        ("queries", 64, 40, 0.0),
    ):
        case = cases.make_case(name)
        assert [case.rows, case.width, round(case.padding, 2)] == expected
        batch = make_batch(case, vocab_size=1031)
        assert batch["attention_mask"].sum(dim=1).tolist() == list(case.lengths)
        assert (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()
        shorter = cases.make_case(name, positions=31).lengths
        assert min(shorter) >= 1 and max(shorter) <= 31


def test_the_help_names_every_case_peer_and_precision():
    docs = field_docs(Settings)
    for field, known in (("cases", cases.CASES), ("peers", PEERS), ("dtype", PRECISIONS)):
        assert all(name in docs[field][1] for name in known)


@pytest.mark.slow
def test_a_whole_run():
    """On a tiny model, with upstream and itself: the rows, and what is missing."""
    peers = "unchanged,upstream-sdpa,sentence-transformers"
    few = {"rounds": 2, "threads": 1, "quick": True}
    benchmark = Benchmark(TINY, Settings("short,sentence,queries,encode", peers, **few))
    results = benchmark.run()
    assert not Path(benchmark.scratch).exists()

    sides = ("unchanged upstream-sdpa", "prepared upstream-sdpa", "prepared unchanged")
    rows = {"short": 8, "sentence": 1, "queries": 16}
    known = sorted(f"{row.case} {row.ours} {row.peer}" for row in results.rows)
    assert known == sorted(f"{case} {pair}" for case in rows for pair in sides)
    for row in results.rows:
        assert (row.rows, row.rounds) == (rows[row.case], 2)
        assert row.ratio_min <= row.ratio <= row.ratio_max
        assert row.ours_ms > 0 < row.peer_ms
        assert 0 < row.ours_error < 2e-5 > row.peer_error > 0
    (missing,) = results.missing  # sentence-transformers cannot take random weights
    assert (missing.peer, missing.case) == ("sentence-transformers", "encode")
    assert results.kernels.keys() == {"float32"}


def test_medians_of_paired_rounds(monkeypatch):
    """A round that was disturbed changes neither time nor ratio; a narrow table has all numbers."""
    seconds = {"upstream-sdpa": [0.04, 0.04, 0.06], "prepared": [0.01, 0.02, 0.09]}
    answers = {"case": cases.make_case("short", 7), "result": torch.zeros(3), "kernels": None}

    def contestant(name, dtype, *_):
        def ask(method, *given):
            return seconds.get(name, [0.02] * 3)[given[1]] if method == "turn" else answers[method]

        made = MagicMock(dtype=dtype, ask=ask)
        made.name = name
        return made

    monkeypatch.setattr("hf_bert_impl.benchmark.run.Contestant", contestant)
    results = Benchmark(TINY, Settings("short", "upstream-sdpa,openvino", "int8", 3, 1)).run()
    row = results.rows[0]
    assert (row.ours, row.peer, row.rows) == ("prepared", "upstream-sdpa", 7)
    assert (row.ours_ms, row.peer_ms) == pytest.approx((20, 40))
    assert (row.ratio_min, row.ratio, row.ratio_max) == pytest.approx((0.06 / 0.09, 2, 4))
    assert [Row(**row) for row in json.loads(to_json(results))["rows"]] == results.rows
    wide, narrow = (Console(width=width, file=io.StringIO()) for width in (200, 40))
    for console in (wide, narrow):
        results.render(console)
    wide, narrow = (console.file.getvalue() for console in (wide, narrow))
    for words in ("prepared int8", "upstream-sdpa fp32", "7 rows", "openvino (int8): not avail"):
        assert words in wide
    assert {*re.findall(r"\d+\.\d\d?", wide)} == {*re.findall(r"\d+\.\d\d?", narrow)}


def test_queries_are_calls_of_their_own(monkeypatch):
    settings = Settings(threads=1, quick=True)
    prepared = States("prepared", "float32", TINY, settings)
    upstream = States("upstream-eager", "float32", TINY, settings)
    case, shapes, own = prepared.case("queries"), [], prepared.runner.call
    assert case.rows == 16 and {*case.lengths} <= {*range(5, 41)} and len({*case.lengths}) > 5
    prepared.runner.call = lambda one: shapes.append((*one["input_ids"].shape,)) or own(one)
    states = prepared.result(case)
    assert shapes == [(1, length) for length in case.lengths]
    assert states.shape[0] == case.tokens and not case.padding
    assert (states - upstream.result(case)).abs().max() < 2e-5
    monkeypatch.setattr("hf_bert_impl.measuring.timing.turn", lambda call, *_: (call(), 3.2)[1])
    assert prepared.turn(case, 0) == pytest.approx(0.2) and shapes == 2 * shapes[:16]


def test_what_a_peer_lacks_is_said(monkeypatch):
    for name, dtype, device, said in (
        ("ctranslate2", "bfloat16", "cpu", "no bfloat16"),
        ("openvino", "int8", "cpu", "calibrated"),
        ("openvino", "float32", "cuda", "on the CPU only"),
    ):
        with pytest.raises(Unavailable, match=said):
            check_peer(name, dtype, device)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"onnxruntime is not installed.*pip.*\[bench\]"):
        check_peer("onnxruntime", "float32", "cpu")


@pytest.mark.ecosystem
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "ctranslate2"])
@pytest.mark.filterwarnings("ignore")
def test_runtimes_compute_the_same(name, dtype, tmp_path, monkeypatch):
    if name == "openvino" and WHY_NO_OPENVINO:
        pytest.skip(WHY_NO_OPENVINO)
    try:
        check_peer(name, dtype, "cpu")
    except Unavailable as error:
        pytest.skip(str(error))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = Settings(threads=1)
    upstream = States("upstream-eager", "float32", TINY, settings)
    states = States(name, dtype, TINY, settings)
    for name, rows in (("short", 2), ("short", 5), ("queries", 3)):
        case = cases.make_case(name, rows, positions=64)
        gap = (states.result(case) - upstream.result(case)).abs().max()
        assert gap < 2e-5 if dtype == "float32" else 1e-4 < gap < 0.1


@pytest.mark.parametrize("name", ["RobertaModel", "DistilBertModel", "MPNetModel"])
@pytest.mark.filterwarnings("ignore")
def test_contestants_take_a_family_checkpoint(name, tmp_path):
    random_stock(name, seed=1, max_position_embeddings=140).save_pretrained(tmp_path)
    source, settings = Source(str(tmp_path)), Settings(threads=1, quick=True)
    names = ["upstream-eager", "unchanged", "prepared"]
    if importlib.util.find_spec("onnxruntime") and name != "DistilBertModel":
        names.append("onnxruntime")
    sides = [States(side, "float32", source, settings) for side in names]
    assert sides[0].model.config._attn_implementation == "eager"
    case = sides[0].case("short")
    expected, *ours = (side.result(case) for side in sides)
    assert all((states - expected).abs().max() < 2e-5 for states in ours)
    assert sides[0].kernels() is None and sides[2].kernels() is not None


@pytest.mark.filterwarnings("ignore")
def test_the_library_encodes_as_sentence_transformers(save_tiny, monkeypatch):
    monkeypatch.delenv("HF_BERT_DATA", raising=False)
    source = Source(str(save_tiny("BertModel", max_position_embeddings=67)))
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
