"""Proves and measures the CUDA path in eight minutes: one process per part, a JSON file each.

python -m benchmarks.gpu --out build/gpu
python -m benchmarks.gpu --device cpu --small --parts parity,races
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: Each part's module and function, and its limit in seconds. The first are the most important.
PARTS = {
    "machine": ("races", 60),
    "parity": ("parity", 150),
    "races": ("races", 150),
    "steps": ("races", 90),
    "modes": ("parity", 120),
    "product": ("product", 180),
    "compiled": ("races", 120),
}
SECONDS = 470
COMPLETE = "exit status 0"
#: Of what a part printed, where it did not end well.
LAST_LINES = 12


def main() -> int:
    """Runs the parts; 1 if a row or a part failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of the JSON")
    parser.add_argument("--small", action="store_true", help="tiny models: to see that all runs")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of: %(default)s")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part:
        return run_part(options)
    deadline = time.monotonic() + SECONDS
    summary = {name: start_part(name, options, deadline) for name in options.parts.split(",")}
    (options.out / "summary.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
    return int(not all(part["passed"] for part in summary.values()))


def run_part(options: argparse.Namespace) -> int:
    """Runs one part in this process."""
    from benchmarks.gpu.rows import Rows

    module = importlib.import_module(f"benchmarks.gpu.{PARTS[options.part][0]}")
    rows = Rows(options.out / f"{options.part}.json")
    getattr(module, options.part)(rows, options.device, options.small)
    return 0


def start_part(name: str, options: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """Runs one part in its own process and prints its rows; returns its summary."""
    file: Path = options.out / f"{name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", name, "--out", str(options.out)]
    command += ["--device", options.device, *["--small"] * options.small]
    begun = time.monotonic()
    # A small run is for machines that may be busy.
    limit = SECONDS if options.small else min(PARTS[name][1], deadline - begun)
    end, output = run(command, limit)
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    failed = [row["case"] for row in rows if row["passed"] is False]
    is_complete = end == COMPLETE and bool(rows)
    passed, seconds = is_complete and not failed, round(time.monotonic() - begun, 1)
    print(f"\n{name}: {'passed' if passed else 'FAILED'}, {end}, {seconds} s")
    for row in rows:
        print(line(row))
    last = [] if is_complete else output.splitlines()[-LAST_LINES:]
    print(*last, sep="\n", end="", flush=True)
    facts = {"passed": passed, "end": end, "seconds": seconds, "rows": len(rows)}
    return facts | {"failed": failed, "output": last}


def run(command: list[str], limit: float) -> tuple[str, str]:
    """How a command ended, and what it printed; it is killed after `limit` seconds."""
    if limit <= 0:
        return "no time was left", ""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            end = f"exit status {process.wait(limit)}"
        except subprocess.TimeoutExpired:
            end = f"stopped after {limit:.0f} s"
        finally:
            if process.poll() is None:  # with the processes that it started
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return end, output.read()


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    verdict = {True: "ok", False: "FAIL", None: ""}[row["passed"]]
    told = f"{verdict:5}{row['case']:58}"
    if row["value"] is not None and row["bound"] is not None:
        told += f" {row['value']:9.2e} of {row['bound']:8.1e}"
    for name, figure in row["figures"].items():
        if isinstance(figure, int | float):
            told += f" {name}={figure:.4g}"
    return f"{told} {row['note'][:90]}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
