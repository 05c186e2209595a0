"""The benchmark's arithmetic and its report; how long anything took decides nothing."""

import dataclasses
import importlib.util
import io
import json
import re
import signal
from pathlib import Path

import psutil
import pytest
import torch
from rich.console import Console

from hf_bert_impl.benchmark import cases, memory, plot
from hf_bert_impl.benchmark.cases import Unavailable
from hf_bert_impl.benchmark.contest import Contestant
from hf_bert_impl.benchmark.models import PEERS, Entry, Source, check_peer
from hf_bert_impl.benchmark.report import render
from hf_bert_impl.benchmark.results import (
    LinePoint,
    Results,
    Row,
    environment,
    straight_line,
)
from hf_bert_impl.benchmark.run import Benchmark, Settings
from hf_bert_impl.benchmark.runtimes import build_runner
from hf_bert_impl.measuring import timing
from hf_bert_impl.measuring.batches import make_batch
from hf_bert_impl.measuring.timing import LOWERED_BY
from hf_bert_impl.parity import reference_model
from tests.lowered import WHY_NO_OPENVINO

TINY = Source(random="tiny")
SETTINGS = Settings(
    cases=("short", "sentence", "busy", "line", "train", "sts"),
    peers=("self", "unchanged", "upstream-sdpa", "upstream-eager", "flash-attention-2"),
    rounds=2,
    batch_sizes=(2, 3),
    quick=True,
)
FOLDER = Path(__file__).parents[2] / "benchmarks" / "results"
RECORDED = sorted(file for file in FOLDER.glob("*.json") if '"rows"' in file.read_text("utf-8"))


@pytest.mark.parametrize(
    ("name", "rows", "longest", "padding"),
    [
        ("short", 32, 128, 0.56),
        ("uniform", 32, 127, 0.41),
        ("long", 8, 488, 0.39),
        ("full", 16, 64, 0.0),
        ("sentence", 1, 12, 0.0),
        ("train", 12, 118, 0.70),
    ],
)
def test_cases_have_the_padding_that_the_readme_states(name, rows, longest, padding):
    case = cases.make_case(name)
    assert (case.rows, case.width) == (rows, longest)
    assert case.padding == pytest.approx(padding, abs=0.01)
    batch = make_batch(case, vocab_size=1031)
    assert batch["attention_mask"].sum(dim=1).tolist() == list(case.lengths)
    assert (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()
    chosen = cases.make_labels(batch) != cases.IGNORED
    assert not (chosen & (batch["attention_mask"] == 0)).any()
    assert 0.05 < chosen.sum() / batch["attention_mask"].sum() < 0.3
    shorter = cases.make_case(name, positions=31).lengths
    assert min(shorter) >= 1 and max(shorter) <= 31


def test_line_pads_the_same_tokens_wider():
    (group,) = cases.line_cases(512, rows=(5,))
    narrow, twice, widest = (make_batch(case, 1031) for case in group)
    width = narrow["input_ids"].shape[1]
    for batch, factor in ((twice, 2), (widest, 4)):
        assert batch["input_ids"].shape == (5, factor * width)
        assert torch.equal(batch["input_ids"][:, :width], narrow["input_ids"])
        assert batch["attention_mask"].sum() == narrow["attention_mask"].sum()
    assert max(case.width for group in cases.line_cases(31) for case in group) <= 31


def test_tensor_peak_counts_what_is_alive_at_once():
    def call():
        first = torch.ones(300, 1000)
        second = first + 1
        del first
        return (second * 2).sum()

    assert memory.tensor_peak(call) == pytest.approx(2 * 300 * 1000 * 4 / 2**20, rel=0.01)


@pytest.mark.slow
def test_a_whole_run(monkeypatch, tmp_path):
    """On a tiny model, beside upstream and itself: the rows, the report and who was started."""
    everyone = []
    ask = Contestant.ask

    def watched(self, *words, **given):
        everyone.extend([self] * (self not in everyone))
        answer = ask(self, *words, **given)
        waiting = [psutil.Process(one.process.pid) for one in everyone if one.is_alive]
        assert {one.status() for one in waiting} == {psutil.STATUS_STOPPED}
        return answer

    monkeypatch.setattr(timing, "TURN_SECONDS", 0.0)  # figures are of no interest here
    monkeypatch.setattr(Contestant, "ask", watched)
    results = Benchmark(TINY, SETTINGS).run()
    # Upstream's eager attention is the reference as well, and `unchanged` is there as ours.
    names = [one.entry.name for one in everyone]
    assert names == ["upstream-eager", "unchanged", "prepared", "upstream-sdpa", "prepared"]
    assert [one.process.returncode for one in everyone] == [-signal.SIGKILL] * 5
    assert all(not Path(one.entry.scratch).exists() for one in everyone)
    assert not [child for child in psutil.Process().children() if "-I" in child.cmdline()]

    known = {(row.case, row.rows, row.ours, row.peer) for row in results.rows}
    assert len(known) == len(results.rows)
    assert known >= {
        ("short", 3, "unchanged", "upstream-sdpa"),
        ("sentence", 2, "unchanged", "upstream-eager"),
        ("busy", 2, "prepared", "self"),
        ("short", 2, "prepared", "unchanged"),
        ("train", 2, "training step", "upstream-sdpa"),
    }
    for row in results.rows:
        assert row.rounds == 2
        assert row.ratio_min <= row.ratio <= row.ratio_max
        assert row.ours_ms > 0 < row.peer_ms
        if row.ours != "AdamW step":
            assert row.ours_error < 2e-5 > row.peer_error
        if row.ours == "training step":
            assert 0 < row.notes["gradient_error"] < 2e-5
            assert row.notes["ours_loss"] == pytest.approx(row.notes["peer_loss"], abs=2e-5)
    # Eager attention is the reference itself, the other kernels add in another order.
    by_peer = {row.peer: row for row in results.rows if row.case == "short"}
    assert by_peer["upstream-eager"].peer_error == 0 < by_peer["upstream-sdpa"].peer_error
    assert [(missing.peer, missing.case, missing.reason) for missing in results.missing] == [
        ("everyone", "sts", "random weights rank nothing; name a checkpoint"),
        ("flash-attention-2", "all", "needs a CUDA device"),
    ]
    assert all(point.cost > 0 for point in results.line)
    narrow = {(point.contestant, point.tokens): point for point in reversed(results.line)}
    assert all(point.cost == 1 for point in narrow.values())

    data = json.loads(results.to_json())
    assert [Row(**row) for row in data["rows"]] == results.rows
    assert [LinePoint(**point) for point in data["line"]] == results.line
    assert {"torch", "cpu", "instruction_set", "threads"} <= set(data["environment"])
    assert {"unchanged", "prepared"} <= {fit["contestant"] for fit in data["line_fits"]}
    wide, narrow = (Console(width=width, file=io.StringIO()) for width in (200, 40))
    for console in (wide, narrow):
        render(results, console)
    text = wide.file.getvalue()
    assert "flash-attention-2 (fp32): not available: needs a CUDA device" in text
    for words in ("unchanged fp32", "upstream-eager fp32", "times as fast", "R² of a straight"):
        assert words in text
    figures = re.compile(r"\d+\.\d\d?")
    assert {*figures.findall(text)} == {*figures.findall(narrow.file.getvalue())}
    speeds = plot.speeds(results)
    assert list(speeds)[:2] == ["short x2", "short x3"]
    assert {"upstream-sdpa fp32"} <= speeds["short x2"].keys()
    assert not any("self" in name for name in speeds["short x2"])
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install -e '.[bench]'")
    plot.draw(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_recorded_runs_are_rows_of_today(file):
    data = json.loads(file.read_text(encoding="utf-8"))
    found = Results(data["environment"], data["settings"], [Row(**row) for row in data["rows"]])
    render(found, Console(file=io.StringIO()))
    assert plot.speeds(found)


def test_a_bar_is_the_median_of_ours_beside_several_peers():
    row = Row(**json.loads(RECORDED[0].read_text())["rows"][0])
    rows = [dataclasses.replace(row, ours_gflops=rate, peer="self") for rate in (1.0, 6.0, 2.0)]
    assert [[*bars.values()] for bars in plot.speeds(Results({}, {}, rows)).values()] == [[2.0]]


def test_a_straight_line_and_the_cost_of_padding():
    assert straight_line([1, 2, 3], [5, 7, 9]) == pytest.approx((2, 3, 1))
    assert straight_line([4, 4], [5, 7]) == (0.0, 6.0, 1.0)
    sizes = [(tokens, widths) for tokens in (10, 20) for widths in (1, 2, 4)]
    points = [LinePoint("unchanged", "float32", t, t * w, w, t, 1) for t, w in sizes]
    points += [LinePoint("peer", "float32", t, t * w, w, t * w, w + t / 10) for t, w in sizes]
    ours, peer = Results({}, {}, line=points).line_fits()
    assert ours["r_squared"] == pytest.approx(1)
    assert (ours["padding_cost_min"], ours["padding_cost"]) == (1, 1)
    assert peer["r_squared"] < 0.9
    assert (peer["padding_cost_min"], peer["padding_cost"]) == (5, 6)


def test_what_a_peer_lacks_is_said(monkeypatch):
    for name, dtype, device, said in (
        ("ctranslate2", "bfloat16", "cpu", "no bfloat16"),
        ("openvino", "float32", "cuda", "on the CPU only"),
        ("flash-attention-2", "float32", "cuda", "half precision only"),
    ):
        with pytest.raises(Unavailable, match=said):
            check_peer(name, dtype, device)
    # transformers has no int8, and in low precision its float32 is raced as well.
    assert PEERS["upstream-sdpa"].precisions == {
        "bfloat16": ("float32", "bfloat16"),
        "int8": ("float32",),
    }
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"onnxruntime is not installed; .*pip.*\[bench\]"):
        check_peer("onnxruntime", "float32", "cpu")


@pytest.mark.ecosystem
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "ctranslate2"])
@pytest.mark.filterwarnings("ignore")
def test_runtimes_compute_the_same(name, dtype, tmp_path):
    if name == "openvino" and WHY_NO_OPENVINO:
        pytest.skip(WHY_NO_OPENVINO)
    try:
        check_peer(name, dtype, "cpu")
    except Unavailable as error:
        pytest.skip(str(error))
    upstream = reference_model(TINY.load())
    runner = build_runner(Entry(name, dtype, TINY, 1, str(tmp_path)))
    for rows in (2, 5):
        batch = make_batch(cases.make_case("short", rows, positions=64), 1031)
        expected = upstream(**batch).last_hidden_state
        states = runner.states(runner.call(runner.convert(batch)))
        attended = batch["attention_mask"].bool()
        gap = (states - expected)[attended].abs().max()
        assert gap < 2e-5 if dtype == "float32" else 1e-4 < gap < 0.1


def test_a_lowered_instruction_set_is_called_emulated(monkeypatch):
    for name in LOWERED_BY:
        monkeypatch.delenv(name, raising=False)
    own = environment("cpu", 1)
    assert own["instruction_set"] == torch.backends.cpu.get_cpu_capability()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    lowered = environment("cpu", 1)
    expected = f"{own['instruction_set']}, emulated by ONEDNN_MAX_CPU_ISA=AVX2"
    assert lowered["instruction_set"] == expected
    assert lowered["cpu"] == own["cpu"].replace(own["instruction_set"], expected)
