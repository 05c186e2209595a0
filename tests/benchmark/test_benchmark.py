"""The benchmark's arithmetic and its report; how long anything took decides nothing."""

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

from hf_bert_impl.benchmark import cases, memory, plot, texts
from hf_bert_impl.benchmark import run as run_module
from hf_bert_impl.benchmark.cases import Unavailable
from hf_bert_impl.benchmark.contest import Contestant
from hf_bert_impl.benchmark.models import PEERS, RANDOM, Entry, Source, check_peer
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

pytestmark = pytest.mark.slow

TINY = Source(random="tiny")
RECORDED = sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("*.json"))


def state(process):
    """A letter: R runs, S sleeps, T is stopped."""
    return (
        Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    )


@pytest.fixture(scope="module")
def run():
    """A whole run on a tiny model, beside upstream and itself.

    Returns:
        The results, everyone who was started, and the states of those whose turn it was not.
    """
    settings = Settings(
        cases=("short", "sentence", "busy", "line", "train", "sts"),
        peers=("self", "unchanged", "upstream-sdpa", "upstream-eager", "flash-attention-2"),
        rounds=2,
        batch_sizes=(2, 3),
        quick=True,
    )
    everyone, others = [], set()
    ask = Contestant.ask

    def watched(self, *words, **given):
        if self not in everyone:
            everyone.append(self)

        def look():
            waiting = [one for one in everyone if one is not self and one.is_alive]
            others.update(state(one.process) for one in waiting)

        if Path("/proc/self/stat").exists():
            look()
            answer = ask(self, *words, **given)
            look()
            return answer
        return ask(self, *words, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "TURN_SECONDS", 0.0)  # figures are of no interest here
        patch.setattr(Contestant, "ask", watched)
        return Benchmark(TINY, settings).run(), everyone, others


@pytest.fixture
def results(run):
    """What the run found."""
    return run[0]


@pytest.mark.parametrize(
    ("name", "rows", "longest", "padding"),
    [
        ("short", 32, 128, 0.56),
        ("uniform", 32, 127, 0.41),
        ("long", 8, 488, 0.39),
        ("full", 16, 64, 0.0),
        ("sentence", 1, 12, 0.0),
        ("busy", 32, 128, 0.56),
        ("train", 12, 118, 0.70),
    ],
)
def test_cases_have_the_padding_that_the_readme_states(name, rows, longest, padding):
    case = cases.make_case(name)
    assert (case.rows, case.width) == (rows, longest)
    assert case.padding == pytest.approx(padding, abs=0.01)
    batch = make_batch(case, vocab_size=1031)
    assert batch["attention_mask"].sum(dim=1).tolist() == list(case.lengths)
    assert 1 - batch["attention_mask"].float().mean().item() == pytest.approx(case.padding)
    assert (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()


def test_line_pads_the_same_tokens_wider():
    (group,) = cases.line_cases(512, rows=(5,))
    narrow, twice, widest = (make_batch(case, 1031) for case in group)
    width = narrow["input_ids"].shape[1]
    for batch, factor in ((twice, 2), (widest, 4)):
        assert batch["input_ids"].shape == (5, factor * width)
        assert torch.equal(batch["input_ids"][:, :width], narrow["input_ids"])
        assert batch["attention_mask"].sum() == narrow["attention_mask"].sum()


def test_a_small_model_gets_shorter_lengths():
    case = cases.make_case("long", positions=31)
    assert max(case.lengths) <= 31
    assert min(case.lengths) >= 1
    assert max(case.width for group in cases.line_cases(31) for case in group) <= 31
    with pytest.raises(ValueError, match="the single batch is"):
        cases.make_case("line")


def test_labels_lie_on_real_tokens():
    batch = make_batch(cases.make_case("train"), 1031)
    labels = cases.make_labels(batch)
    chosen = labels != cases.IGNORED
    assert not (chosen & (batch["attention_mask"] == 0)).any()
    assert 0.08 < chosen.sum() / batch["attention_mask"].sum() < 0.25


def test_sentences_are_real_where_there_are_some(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_BERT_DATA", raising=False)
    found, origin = texts.sentences(20)
    assert len(found) == 20
    assert "made-up" in origin
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2" / "dev.tsv").write_text("a fine film\t1\ndull\t0\n", encoding="utf-8")
    (tmp_path / "wikitext2").mkdir()
    (tmp_path / "wikitext2" / "test.txt").write_text(
        " \n = A heading = \n It rained .\n It stopped .\n", encoding="utf-8"
    )
    monkeypatch.setenv("HF_BERT_DATA", str(tmp_path))
    found, origin = texts.sentences(5)
    assert set(found) == {"a fine film", "dull", "It rained .", "It stopped ."}
    assert "WikiText" in origin


def test_tensor_peak_counts_what_is_alive_at_once():
    def call():
        first = torch.ones(300, 1000)
        second = first + 1
        del first
        return (second * 2).sum()

    assert memory.tensor_peak(call) == pytest.approx(2 * 300 * 1000 * 4 / 2**20, rel=0.01)


def test_resident_peak_sees_a_large_array():
    peak = memory.resident_peak(lambda: torch.ones(25, 2**20).sum())
    if peak is None:
        pytest.skip("this system does not count the peak of resident memory")
    assert 90 < peak < 250


def test_every_row_is_measured_and_exact(results):
    known = {(row.case, row.rows, row.ours, row.peer) for row in results.rows}
    assert ("short", 3, "unchanged", "upstream-sdpa") in known
    assert ("short", 3, "prepared", "upstream-sdpa") in known
    assert ("sentence", 2, "unchanged", "upstream-eager") in known
    assert ("busy", 2, "prepared", "self") in known
    assert ("short", 2, "prepared", "unchanged") in known
    assert ("train", 2, "training step", "upstream-sdpa") in known
    assert len(known) == len(results.rows)
    for row in results.rows:
        assert row.rounds == 2
        assert row.ratio_min <= row.ratio <= row.ratio_max
        assert row.ours_ms > 0 < row.peer_ms
        assert row.share is None or row.share > 0
        if row.ours != "AdamW step":
            assert row.ours_error < 2e-5 > row.peer_error
        if row.case != "train":
            assert row.ours_rms <= row.ours_error
    # Eager attention is the reference itself, the other kernels add in another order.
    by_peer = {row.peer: row for row in results.rows if row.case == "short"}
    assert by_peer["upstream-eager"].peer_error == 0 < by_peer["upstream-sdpa"].peer_error
    steps = [row for row in results.rows if row.ours == "training step"]
    assert steps
    for row in steps:
        assert 0 < row.notes["gradient_error"] < 2e-5
        assert row.notes["ours_loss"] == pytest.approx(row.notes["peer_loss"], abs=2e-5)
        assert row.notes["memory_ratio"] == row.ours_mib / row.peer_mib
    assert [(missing.peer, missing.case, missing.reason) for missing in results.missing] == [
        ("everyone", "sts", "random weights rank nothing; name a checkpoint"),
        ("flash-attention-2", "all", "needs a CUDA device"),
    ]


class Idle:
    """A contestant that starts no process and answers nothing."""

    is_alive = True

    def __init__(self, entry, name=None):
        self.entry, self.name = entry, name or entry.name

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def ask(self, *words, **given):
        pass

    check = close = ask


def test_training_races_in_float32_alone(monkeypatch):
    raced = []

    def race(racing, timed, rounds, drop):
        raced.extend((case.name, one.name, one.entry.dtype) for case in timed for one in racing)
        return [{} for _ in timed]

    monkeypatch.setattr(run_module, "Contestant", Idle)
    monkeypatch.setattr(run_module, "race", race)
    dtypes = ("float32", "bfloat16")
    settings = Settings(cases=("train",), peers=("upstream-sdpa",), dtypes=dtypes, batch_sizes=(2,))
    Benchmark(TINY, settings).run()
    assert raced == [
        (case, name, "float32")
        for case in ("train", "AdamW step")
        for name in ("unchanged", "upstream-sdpa")
    ]


def test_each_has_a_process_that_is_stopped_out_of_its_turn(run):
    _, everyone, others = run
    # Upstream's eager attention is the reference as well, and `unchanged` is there as ours.
    names = [one.entry.name for one in everyone]
    assert names == ["upstream-eager", "unchanged", "prepared", "upstream-sdpa", "prepared"]
    assert len({one.process.pid for one in everyone}) == 5
    if not Path("/proc/self/stat").exists():
        pytest.skip("this system does not show the states of processes")
    assert others == {"T"}


def test_nobody_stays_behind(run):
    _, everyone, _ = run
    assert [one.process.returncode for one in everyone] == [-signal.SIGKILL] * 5
    assert all(not Path(one.entry.scratch).exists() for one in everyone)
    # Neither do the busy processes.
    assert not [child for child in psutil.Process().children() if "-I" in child.cmdline()]


def test_json_holds_everything(results):
    data = json.loads(results.to_json())
    assert set(data) == {
        *("environment", "settings", "rows", "missing", "line", "products", "kernels"),
        "line_fits",
    }
    assert [Row(**row) for row in data["rows"]] == results.rows
    assert [LinePoint(**point) for point in data["line"]] == results.line
    assert {"torch", "nncf", "cpu", "instruction_set", "threads", "stopped"} <= set(
        data["environment"]
    )
    assert list(data["kernels"]) == ["float32"]
    assert data["settings"]["model"] == "random weights, tiny size"
    assert {fit["contestant"] for fit in data["line_fits"]} == {
        *("unchanged", "prepared", "upstream-sdpa")
    }


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_recorded_runs_are_rows_of_today(file):
    data = json.loads(file.read_text(encoding="utf-8"))
    if "rows" not in data:
        pytest.skip("not a run of this benchmark")
    found = Results(data["environment"], data["settings"], [Row(**row) for row in data["rows"]])
    render(found, Console(file=io.StringIO()))
    assert plot.speeds(found)


def test_tables_name_ours_peers_and_what_is_missing(results):
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    render(results, console)
    text = console.export_text()
    for words in ("unchanged fp32", "upstream-eager fp32", "times as fast", "share", "GFLOP/s"):
        assert words in text
    assert "flash-attention-2 (fp32): not available: needs a CUDA device" in text
    assert "AdamW step" in text
    level = results.environment["instruction_set"]  # long, and broken, if it is emulated
    assert f"3 rows, 137 tokens, 29% padding; {level}" in " ".join(text.split())
    assert "kernels, float32: " in text
    assert "R² of a straight line" in text
    assert re.search(r"\d\.\d\d \[\d+\.\d\d–\d+\.\d\d\]", text)


def test_narrow_tables_keep_every_figure(results):
    wide, narrow = (Console(width=width, file=io.StringIO()) for width in (200, 40))
    for console in (wide, narrow):
        render(results, console)
    figures = re.compile(r"\d+\.\d\d?")
    words = [set(figures.findall(console.file.getvalue())) for console in (wide, narrow)]
    assert words[0] == words[1]
    assert "…" not in narrow.file.getvalue()


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


def test_the_cost_of_padding_is_taken_within_a_round(results):
    groups = {}
    for point in results.line:
        groups.setdefault((point.contestant, point.tokens), []).append(point)
    for narrowest, *wider in groups.values():
        assert narrowest.cost == 1
        assert len(wider) == 2
        assert all(point.cost > 0 for point in wider)


def test_the_plot_is_drawn(results, tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install -e '.[bench]'")
    plot.draw(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_speeds_of_the_plot(results):
    speeds = plot.speeds(results)
    assert list(speeds)[:2] == ["short x2", "short x3"]
    names = list(speeds["short x2"])
    assert names[0].startswith("ours, ")
    assert "upstream-sdpa fp32" in names
    assert not any("self" in name for name in names)


def test_what_is_not_installed_is_unavailable(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        Unavailable, match=r"onnxruntime is not installed; .*pip install .*\[bench\]"
    ):
        check_peer("onnxruntime", "float32", "cpu")


def test_what_a_peer_lacks_is_said():
    with pytest.raises(Unavailable, match="no bfloat16"):
        check_peer("ctranslate2", "bfloat16", "cpu")
    with pytest.raises(Unavailable, match="on the CPU only"):
        check_peer("openvino", "float32", "cuda")
    with pytest.raises(Unavailable, match="half precision only"):
        check_peer("flash-attention-2", "float32", "cuda")
    # transformers has no int8, and in low precision its float32 is raced as well.
    assert PEERS["upstream-sdpa"].precisions == {
        "bfloat16": ("float32", "bfloat16"),
        "int8": ("float32",),
    }


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
    if runner.release is not None:
        runner.release()
    assert not hasattr(upstream.config, "position_embedding_type")


def test_ours_in_bfloat16_gives_float32_states(tmp_path):
    batch = make_batch(cases.make_case("sentence"), 1031)
    for name in ("unchanged", "prepared"):
        runner = build_runner(Entry(name, "bfloat16", TINY, 1, str(tmp_path)))
        assert runner.states(runner.call(batch)).dtype == torch.float32


def test_small_models_have_the_shapes_of_minilm_and_bge_small():
    for name, layers in (("minilm", 6), ("small", 12)):
        config = Source(random=name).config()
        assert (config.num_hidden_layers, config.num_attention_heads) == (layers, 12)
        assert (config.hidden_size, config.intermediate_size) == (384, 1536)
    assert list(RANDOM)[:3] == ["base", "minilm", "small"]


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
