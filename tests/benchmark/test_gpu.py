"""`make gpu` on the CPU: every part runs, and failures are reported; times are not checked."""

import json
import sys

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.rows import Rows


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", gpu.PARTS)
def test_a_part_runs_to_its_end(part, tmp_path):
    small = ["--device", "cpu", "--small", "--parts", part, "--out", str(tmp_path)]
    end, output = gpu.run([sys.executable, "-m", "benchmarks.gpu", *small], 800)
    assert end == gpu.COMPLETE, output
    summary = json.loads((tmp_path / "summary.json").read_text())[part]
    rows = json.loads((tmp_path / f"{part}.json").read_text())
    assert (summary["passed"], summary["failed"], summary["rows"]) == (True, [], len(rows))
    assert len({row["case"] for row in rows}) == len(rows) >= 2
    assert all(row["passed"] or row["figures"] or row["note"] for row in rows)


def test_a_failure_is_a_row_and_the_exit_status(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "run", lambda command, limit: (gpu.COMPLETE, ""))
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path), "--parts", "modes"])
    monkeypatch.setattr(gpu.Path, "unlink", lambda *_, **__: None)  # the rows are here already
    rows = Rows(tmp_path / "modes.json")
    rows.check("right", 1e-5, 1e-4)
    with rows.case("missing"):
        raise ModuleNotFoundError("no flash_attn")
    assert gpu.main() == 0
    rows.check("NaN", float("nan"), 1e-4)
    with rows.case("broken"):
        raise RuntimeError("an illegal memory access")
    assert gpu.main() == 1
    summary = json.loads((tmp_path / "summary.json").read_text())["modes"]
    assert (summary["passed"], summary["failed"]) == (False, ["NaN", "broken"])
    assert "broken" in capsys.readouterr().out
