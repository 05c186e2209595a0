"""The cost of padding and of busy neighbours: races of `hf-bert benchmark`'s contestants.

    python -m benchmarks.padding_cost line --random base
    python -m benchmarks.padding_cost busy MODEL

`line` pads the same tokens once, twice and four times as wide. `busy` runs the case `short` on a
quiet machine, and again while as many busy processes as threads compute too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.races import spread, stopped
from hf_bert_impl.benchmark.cases import make_case
from hf_bert_impl.benchmark.contest import Contestant, race
from hf_bert_impl.benchmark.contestants import States
from hf_bert_impl.benchmark.peers import Settings, Source
from hf_bert_impl.benchmark.results import environment
from hf_bert_impl.files.json_files import write_json
from hf_bert_impl.measuring.batches import LOG_SPREAD, Case, log_normal_lengths, scale_lengths
from hf_bert_impl.measuring.timing import cpu_name
from hf_bert_impl.tables import console, print_table

NAMES = ("unchanged", "prepared", "upstream-sdpa")
#: Rows of the batches, their longest length, and how many times as wide they are.
LINE_ROWS, LINE_LONGEST, LINE_WIDTHS = (8, 16, 24, 32), 64, (1, 2, 4)
#: Computes until its input ends. That happens when its parent ends. It takes turns with all others:
#: under a real-time policy of its parent it would block all other processes.
BUSY = (
    "import os, sys, threading\n"
    "if hasattr(os, 'SCHED_OTHER'): os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))\n"
    "threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()\n"
    "print(flush=True)\n"
    "while True: pass"
)
app = typer.Typer(add_completion=False, help=__doc__)
Model = Annotated[str | None, typer.Argument(help="A folder; else random weights.")]
Random = Annotated[str, typer.Option(help="Their size.")]
Rounds = Annotated[int, typer.Option()]
Threads = Annotated[int, typer.Option()]
Output = Annotated[Path | None, typer.Option(help="Write the results as JSON.")]


@contextlib.contextmanager
def opened(source: Source, threads: int) -> Iterator[list[Contestant]]:
    """Ours and transformers', in float32."""
    settings = Settings(threads=threads)
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                Contestant(
                    name,
                    "float32",
                    functools.partial(States, name, "float32", source, settings),
                    threads,
                    scratch,
                )
            )
            for name in NAMES
        ]


def line_cases(positions: int, rows: int) -> list[Case]:
    """The same lengths at several widths."""
    lengths = scale_lengths(log_normal_lengths(rows, 3.2, LOG_SPREAD, 4, LINE_LONGEST), positions)
    widths = (min(positions, factor * max(lengths)) for factor in LINE_WIDTHS)
    return [Case("line", tuple(lengths), width) for width in widths]


@app.command()
def line(
    model: Model = None,
    random: Random = "base",
    rounds: Rounds = 5,
    threads: Threads = 2,
    output: Output = None,
) -> None:
    """The cost of tokens, and of padding the same tokens wider."""
    source = Source(model, random)
    points: dict[str, list[tuple[int, float]]] = {name: [] for name in NAMES}
    costs: dict[str, list[float]] = {name: [] for name in NAMES}
    with opened(source, threads) as contestants:
        for number in LINE_ROWS:
            cases = line_cases(source.load().config.max_position_embeddings, number)
            for one in contestants:
                # The widths take turns, so that a slow minute hits all.
                times: list[list[float]] = [[] for _ in cases]
                for turn in range(rounds):
                    for place, case in enumerate(cases):
                        times[place].append(one.ask("turn", case, turn))
                for case, seconds in zip(cases, times, strict=True):
                    points[one.name].append((case.tokens, 1000 * statistics.median(seconds)))
                ratios = [wide / narrow for narrow, *_, wide in zip(*times, strict=True)]
                costs[one.name].append(statistics.median(ratios))
    rows: list[dict[str, Any]] = []
    for name in NAMES:
        tokens, ms = zip(*points[name], strict=True)
        slope, fixed = statistics.linear_regression(tokens, ms)
        row = {"contestant": name, "us_per_token": 1000 * slope, "fixed_ms": fixed}
        row |= {"squared": statistics.correlation(tokens, ms) ** 2}
        rows.append(row | {"cost_min": min(costs[name]), "cost_max": max(costs[name])})
    columns = ("", "µs a token", "fixed ms", "R² of a straight line", "cost of padding")
    cells = [
        (
            row["contestant"],
            f"{row['us_per_token']:.1f}",
            f"{row['fixed_ms']:.1f}",
            f"{row['squared']:.4f}",
            f"{row['cost_min']:.2f}–{row['cost_max']:.2f} times",
        )
        for row in rows
    ]
    print_table(console(), f"{source.name}; {cpu_name()}, {threads} threads", columns, cells)
    write_record(output, source, rounds, threads, {"rows": rows})


def write_record(
    path: Path | None, source: Source, rounds: int, threads: int, more: Mapping[str, Any]
) -> None:
    """Writes the results and where they were measured, if a path is given."""
    if path is not None:
        record = {"environment": environment("cpu", threads), "model": source.name}
        write_json(path, record | {"rounds": rounds, **more})


@contextlib.contextmanager
def neighbours(number: int) -> Iterator[None]:
    """So many busy processes while the block runs."""
    with contextlib.ExitStack() as started:
        for _ in range(number):
            pipe = subprocess.PIPE
            process = started.enter_context(
                subprocess.Popen([sys.executable, "-I", "-c", BUSY], stdin=pipe, stdout=pipe)
            )
            started.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()  # it says that it has begun
        yield


@app.command()
def busy(
    model: Model = None,
    random: Random = "base",
    rounds: Rounds = 5,
    threads: Threads = 2,
    output: Output = None,
) -> None:
    """The case `short` on a quiet and on a busy machine."""
    source = Source(model, random)
    rows: list[dict[str, Any]] = []
    case = make_case("short", positions=source.load().config.max_position_embeddings)
    with opened(source, threads) as contestants:
        for words, number in (("quiet", 0), ("busy", threads)):
            with neighbours(number):
                times = race(contestants, rounds, case, stopped)
            for one in contestants:
                ratios = [b / a for a, b in zip(times[one], times[contestants[-1]], strict=True)]
                row = {"machine": words, "contestant": one.name, "ratios": ratios}
                rows.append(row | {"ms": 1000 * statistics.median(times[one])})
    policy = os.environ.get("OMP_WAIT_POLICY", "active")
    title = f"{source.name}; {cpu_name()}, {threads} threads, OMP_WAIT_POLICY {policy}"
    cells = [
        (row["machine"], row["contestant"], f"{row['ms']:.0f}", spread(row["ratios"]))
        for row in rows
    ]
    columns = ("machine", "contestant", "ms", "speed-up over transformers' sdpa")
    print_table(console(), title, columns, cells, words=(0, 1))
    write_record(output, source, rounds, threads, {"policy": policy, "rows": rows})


if __name__ == "__main__":
    app()
