"""The first example of README.md, timed before and after `optimize` in each precision.

    python -m benchmarks.first_example --output benchmarks/results/first-example.json

It encodes the example's two sentences, and 1,000 sentences of STS 2014 from HF_BERT_DATA (generated
texts without it).
All models take turns in one process, because they share torch's threads.
"""

from __future__ import annotations

import copy
import functools
import os
import statistics
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from sentence_transformers import SentenceTransformer

import hf_bert_impl
from benchmarks.races import spread
from benchmarks.text_models import make_inputs
from hf_bert_impl.benchmark.results import environment
from hf_bert_impl.checkpoints import demo_folder
from hf_bert_impl.files.json_files import write_json
from hf_bert_impl.measuring.timing import cpu_name, in_turns
from hf_bert_impl.tables import console, print_table

PAIR = ["A cat naps.", "A kitten sleeps."]


def main(
    threads: Annotated[int, typer.Option(min=1)] = 2,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    sentences: Annotated[int, typer.Option(min=1)] = 1000,
    output: Annotated[Path | None, typer.Option(help="Write the results as JSON.")] = None,
) -> None:
    """Time the first example of README.md."""
    torch.set_num_threads(threads)
    original = SentenceTransformer(str(demo_folder()), device="cpu", trust_remote_code=False)
    precisions = ("float32", "bfloat16", "int8")
    optimized = [hf_bert_impl.optimize(copy.deepcopy(original), name) for name in precisions]
    texts = {"pair": PAIR, "many": make_inputs("dense", original.tokenizer, sentences)}
    rows: list[dict[str, Any]] = []
    cells: list[tuple[str, ...]] = []
    for case, given in texts.items():
        calls = [
            functools.partial(model.encode, given, show_progress_bar=False)
            for model in (original, *optimized)
        ]
        expected, *vectors = (call() for call in calls)
        theirs, *ours = in_turns(calls, rounds)
        for name, times, found in zip(precisions, ours, vectors, strict=True):
            ratios = [other / own for own, other in zip(times, theirs, strict=True)]
            rows.append(
                {
                    "case": case,
                    "texts": len(given),
                    "dtype": name,
                    "ms": 1000 * statistics.median(times),
                    "original_ms": 1000 * statistics.median(theirs),
                    "ratio": statistics.median(ratios),
                    "ratio_min": min(ratios),
                    "ratio_max": max(ratios),
                    "error": float(abs(found - expected).max()),
                }
            )
            cells.append((case, name, *(f"{rows[-1][key]:.1f}" for key in ("ms", "original_ms"))))
            cells[-1] += (spread(ratios), f"{rows[-1]['error']:.0e}")
    columns = ("case", "dtype", "ms", "original, ms", "speed-up", "error")
    data = "STS 2014" if os.environ.get("HF_BERT_DATA") else "generated"
    title = f"{cpu_name()}, {threads} threads, {sentences} texts: {data}"
    print_table(console(), title, columns, cells, words=(0, 1))
    if output is not None:
        record = {"environment": environment("cpu", threads), "rounds": rounds, "texts": data}
        write_json(output, record | {"rows": rows})


if __name__ == "__main__":
    typer.run(main)
