"""An estimate of a job of a billion texts, from measurements on this machine.

    python benchmarks/scale_simulation.py MODEL --output FOLDER

Four things are measured:

1. texts per second of one process with one thread, `hf-bert embed --shard 0/1`;
2. the same texts on Ray clusters of 1, 2 and 4 nodes of one CPU each. The nodes are processes of
   this machine and share its cores, so only the first rows can scale;
3. the driver's own limits, with a model of one layer of 8 and parts of 100 rows. These are parts
   handed out per second, and rows read per second to find where parts begin;
4. the driver's memory while the number of texts grows a thousandfold.

The plan that follows multiplies them. Run it on an idle machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import psutil
import ray
import typer
from ray.cluster_utils import Cluster

from hf_bert_impl import BertConfig, BertModel
from hf_bert_impl.benchmark.cases import sentences
from hf_bert_impl.distributed import EmbedTexts
from hf_bert_impl.distributed.bulk import Engine, run_job
from hf_bert_impl.distributed.parts import PART_ROWS, BulkJob
from hf_bert_impl.extras import set_up_ray
from hf_bert_impl.inference.loading import load_tokenizer
from hf_bert_impl.tables import console, print_table

COMMAND = str(Path(sys.executable).with_name("hf-bert"))
NODES = (1, 2, 4)
BILLION = 1_000_000_000
#: Rows a part where the driver's limits are measured: a hundredth of what a job has.
SMALL_PART = 100
#: How often the driver's memory is looked at.
LOOK_SECONDS = 0.2
MIB = 2**20


def write_smallest(model: str, folder: Path) -> Path:
    """A BERT of one layer of 8 with a model's tokenizer: what is left is the driver's work."""
    tokenizer = load_tokenizer(model, {})
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def main(
    model: Annotated[str, typer.Argument(help="A folder or a hub id.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder.")],
    texts: Annotated[int, typer.Option(min=100)] = 20_000,
    memory_texts: Annotated[int, typer.Option(min=1_000)] = 1_000_000,
    dollars_per_core_hour: Annotated[float, typer.Option(min=0)] = 0.04,
) -> None:
    """Measure what two cores can show, and multiply."""
    if output.exists():
        raise typer.BadParameter(f"{output} exists; name a new folder")
    output.mkdir(parents=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    set_up_ray()
    out = console()
    lines, origin = sentences(texts)
    source = write_lines(output / "texts.txt", lines)
    parts = ["--part-size", str(max(1, texts // 40)), "--json", "--quiet"]
    embed = [COMMAND, "embed", model, str(source), "--batch-invariant", *parts]

    plain, _ = run_watched([*embed, "--output", str(output / "plain"), "--shard", "0/1"])
    rows = [row_of("one process, no Ray", plain, plain, None)]
    for nodes in NODES:
        folder = output / f"nodes-{nodes}"
        with cluster(nodes) as address:
            ray_options = ["--engine", "ray", "--address", address, "--workers", str(nodes)]
            report, memory = run_watched([*embed, "--output", str(folder), *ray_options])
        check_same(output / "plain", folder)
        rows.append(row_of(f"Ray, {nodes} nodes of 1 CPU", report, plain, max(memory)))
    print_table(
        out,
        f"{texts:,} texts ({origin}), {plain['tokens'] / texts:.1f} tokens each, "
        f"{os.cpu_count()} cores; all parts are the same bytes",
        ["", "texts/s", "tokens/s", "times one process", "driver MiB"],
        rows,
    )

    limits, growth = driver_limits(model, output, memory_texts)
    print_table(
        out,
        f"The driver, with a model of one layer of 8 and parts of {SMALL_PART} rows",
        ["texts", "parts", "seconds", "parts/s", "MiB before", "MiB at most"],
        growth,
        f"finding the parts reads {limits['read']:,.0f} rows a second in one process",
    )
    print_plan(out, output, plain, limits, texts, dollars_per_core_hour)


def write_lines(file: Path, lines: list[str]) -> Path:
    """One text a line."""
    file.write_text("".join(" ".join(line.split()) + "\n" for line in lines), encoding="utf-8")
    return file


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """The address of a Ray cluster whose head does not compute, on this machine."""
    running = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(nodes):
            running.add_node(num_cpus=1)
        running.wait_for_nodes()
        yield running.address
    finally:
        running.shutdown()


def run_watched(command: list[str]) -> tuple[dict[str, Any], list[float]]:
    """A command's JSON, and its own memory in MiB over time, without its children's."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        memory = []
        with watched_memory(process.pid, memory):
            printed = process.stdout.read()
    if process.returncode != 0:
        raise typer.Exit(process.returncode)  # it has said why
    return json.loads(printed), memory


@contextlib.contextmanager
def watched_memory(pid: int, memory: list[float]) -> Iterator[None]:
    """Adds the resident MiB of a process to `memory`, over and over."""
    ended = threading.Event()

    def watch() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            while not ended.wait(LOOK_SECONDS):
                memory.append(process.memory_info().rss / MIB)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def check_same(left: Path, right: Path) -> None:
    """Exits if two folders of parts do not hold the same bytes."""
    first, second = (
        [(part["part"], part["sha256"]) for part in manifest(folder)["parts"]]
        for folder in (left, right)
    )
    if first != second:
        raise typer.BadParameter(f"{right} has other bytes than {left}")


def manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder of parts."""
    return dict(json.loads((folder / "manifest.json").read_text(encoding="utf-8")))


def row_of(
    name: str, report: dict[str, Any], plain: dict[str, Any], memory: float | None
) -> list[str]:
    """A line of the first table."""
    return [
        name,
        f"{report['texts_per_second']:,.0f}",
        f"{report['tokens_per_second']:,.0f}",
        f"{report['texts_per_second'] / plain['texts_per_second']:.2f}",
        "" if memory is None else f"{memory:.0f}",
    ]


def driver_limits(model: str, output: Path, most: int) -> tuple[dict[str, float], list[list[str]]]:
    """The rates of one driver, and a line of the table for each number of texts."""
    limits: dict[str, float] = {}
    growth = []
    smallest = write_smallest(model, output / "smallest")
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
    try:
        for number in (most // 1000, most // 100, most // 10, most):
            source = write_lines(output / "short.txt", [f"text {i}" for i in range(number)])
            job = BulkJob(
                (str(source.absolute()),),
                (output / "short").absolute(),
                EmbedTexts,
                {"model": str(smallest.absolute())},
                None,
                part_rows=SMALL_PART,
            )
            begin = time.perf_counter()
            parts = len(job.cut(0, stored=False))
            limits["read"] = number / (time.perf_counter() - begin)
            memory: list[float] = []
            begin = time.perf_counter()
            with watched_memory(os.getpid(), memory):
                run_job(job, Engine("ray", os.cpu_count() or 1))
            seconds = time.perf_counter() - begin
            limits["parts"] = parts / seconds
            growth.append(
                [
                    *(f"{number:,}", f"{parts:,}", f"{seconds:.1f}", f"{limits['parts']:.0f}"),
                    *(f"{memory[0]:.0f}", f"{max(memory):.0f}"),
                ]
            )
            shutil.rmtree(output / "short")
    finally:
        ray.shutdown()
    return limits, growth


def print_plan(
    out: Any,
    output: Path,
    plain: dict[str, Any],
    limits: dict[str, float],
    texts: int,
    dollars: float,
) -> None:
    """A billion texts by what was measured."""
    hours = BILLION / plain["texts_per_second"] / 3600
    stored = sum(part["bytes"] for part in manifest(output / "plain")["parts"]) / texts
    text_bytes = (output / "texts.txt").stat().st_size / texts
    part_seconds = PART_ROWS / plain["texts_per_second"]
    entries = sum(file.stat().st_size for file in (output / "plain" / "_parts").glob("*.json"))
    entry_bytes = entries / len(manifest(output / "plain")["parts"])
    count = BILLION // PART_ROWS
    print_table(
        out,
        f"A billion such texts, in parts of {PART_ROWS:,} rows",
        ["", ""],
        [
            ["tokens", f"{plain['tokens'] / texts * BILLION / 1e9:,.1f} thousand million"],
            ["core-hours", f"{hours:,.0f}"],
            [f"dollars, at {dollars} a core-hour", f"{hours * dollars:,.0f}"],
            ["hours on 100 / 1,000 cores", f"{hours / 100:,.1f} / {hours / 1000:,.1f}"],
            ["texts, TB", f"{text_bytes * BILLION / 1e12:.2f}"],
            ["vectors in float32, TB", f"{stored * BILLION / 1e12:.2f}"],
            ["parts", f"{count:,} of {stored * PART_ROWS / 1e6:.0f} MB"],
            ["entries, which the manifest joins", f"{entry_bytes * count / 1e6:,.0f} MB"],
            ["one part on one core, seconds", f"{part_seconds:,.0f}"],
            [
                "cores that one driver keeps at work",
                f"{limits['parts'] * part_seconds:,.0f}",
            ],
            [
                "hours in which one process reads all texts to find the parts",
                f"{BILLION / limits['read'] / 3600:,.2f}",
            ],
        ],
    )


if __name__ == "__main__":
    typer.run(main)
