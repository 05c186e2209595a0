"""`hf-bert benchmark`: speed compared with transformers and other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from hf_bert_impl import checkpoints
from hf_bert_impl.benchmark.peers import RANDOM, Settings, Source
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import AsJson, from_dataclass
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.cli.reports import show
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.files.json_files import write_json


@from_dataclass(Settings)
def benchmark(
    fields: dict[str, Any],
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="A folder or a hub id; without it, random weights."),
    ] = None,
    random: Annotated[
        str | None,
        typer.Option(help=f"Random weights of a size: {', '.join(RANDOM)}.", show_default="base"),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda.", show_default="cuda if available")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the results as JSON.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file of --output.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the speed of a BERT, or a model of its family, with transformers and other runtimes.

    All take turns on the same batches, weights and threads, each in its own process. The report
    names peers that cannot run, with the reason. Run it on an idle machine.

    Example: hf-bert benchmark --random base --cases short,sentence --output results.json
    """
    if model is not None and random is not None:
        raise InputError("MODEL and --random exclude each other. Leave one out.")
    settings = Settings(**fields)
    random = random or ("minilm" if settings.quick else "base")
    check_choice("--random", random, RANDOM)
    if output is not None:
        check_output_file("--output", output, overwrite)
    from hf_bert_impl.benchmark.run import Benchmark

    with quiet_libraries():
        path = None if model is None else checkpoints.open_checkpoint(model, any_family=True).path
        source = Source(path, random, _device(device))
        # No refreshing thread: it would take time from the measured one.
        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as line:
            results = Benchmark(
                source, settings, lambda text: line.update(text, refresh=True)
            ).run()
    if output is not None:
        write_json(output, results)
    show(results, as_json)


def _device(given: str | None) -> str:
    import torch

    usual = "cuda" if torch.cuda.is_available() else "cpu"
    check_choice("--device", given or usual, dict.fromkeys(("cpu", usual)))
    return given or usual
