"""`hf-bert benchmark`: this BERT's speed beside transformers' and other runtimes'."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from hf_bert_impl import checkpoints
from hf_bert_impl.benchmark.cases import CASES, FROM_TEXT, LIBRARY
from hf_bert_impl.benchmark.models import DEFAULT_PEERS, PEERS, PRECISIONS, RANDOM, Source
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import AsJson
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import require
from hf_bert_impl.figures import FORMATS
from hf_bert_impl.files.atomic import atomic_file
from hf_bert_impl.tables import console

ROUNDS, QUICK_ROUNDS, QUICK_SENTENCES = 9, 3, 200


def benchmark(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="A folder or a hub id; random weights where none is named."
        ),
    ] = None,
    random: Annotated[
        str | None,
        typer.Option(help=f"Random weights of a size: {', '.join(RANDOM)}.", show_default="base"),
    ] = None,
    case_names: Annotated[
        str | None,
        typer.Option(
            "--cases",
            help=f"Some of {', '.join(CASES)}.",
            show_default=f"all but {', '.join(LIBRARY)}; sts needs a MODEL",
        ),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(
            help=f"Some of {', '.join(PEERS)}; none for ours alone.",
            show_default="all but upstream-compile",
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help=f"One or several of {', '.join(PRECISIONS)}.")
    ] = "float32",
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="How many times each pair runs.", show_default=str(ROUNDS)),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="Threads of every contestant.", show_default="the cores of this process"
        ),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(help="Rows of a batch, as 1,8,32.", show_default="32, 8, 16, 1 by case"),
    ] = None,
    sentences: Annotated[
        int | None,
        typer.Option(
            min=10,
            help=f"Texts of each of the cases {', '.join(FROM_TEXT)}.",
            show_default=", ".join(str(CASES[name].texts) for name in FROM_TEXT),
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda.", show_default="cuda where there is one")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the results as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw them: a png, svg or pdf.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of --output and --plot.")
    ] = False,
    as_json: AsJson = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="MiniLM's size, small batches, few rounds: to see that it runs."
        ),
    ] = False,
) -> None:
    """Measure the speed of this BERT beside transformers' own and other runtimes.

    Ours and each peer run in turns, on the same batches, weights and threads, each in a process of
    its own that is stopped while it is not its turn. A peer that cannot run is named with the
    reason. Figures need a machine that does nothing else.

    Example: hf-bert benchmark --random base --cases short,sentence --output results.json
    """
    if model is not None and random is not None:
        raise InputError(
            f"both a model ({model}) and --random {random} are given", "one of them", "drop one"
        )
    random = random or ("minilm" if quick else "base")
    if random not in RANDOM:
        raise InputError(f"--random is {random!r}", f"one of {', '.join(RANDOM)}", "choose one")
    # Random weights rank nothing, so for them `sts` has to be asked for; so have the models of
    # sentence-transformers, which take long.
    usual = tuple(
        case for case in CASES if case not in LIBRARY and (model is not None or case != "sts")
    )
    chosen = _names("--cases", case_names, tuple(CASES), usual)
    rivals = _names("--peers", peers, tuple(PEERS), DEFAULT_PEERS)
    dtypes = _names("--dtype", dtype, tuple(PRECISIONS), ("float32",))
    sizes = _sizes(batch_sizes)
    if output is not None:
        check_output_file("--output", output, overwrite)
    if plot is not None:
        check_output_file("--plot", plot, overwrite, endings=FORMATS)
        require("matplotlib", "bench", "a plot")
    from hf_bert_impl.benchmark.run import Benchmark, Settings

    with quiet_libraries():
        if model is not None:
            model = checkpoints.open_checkpoint(model).path
        settings = Settings(
            cases=chosen,
            peers=rivals,
            dtypes=dtypes,
            rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS),
            threads=threads or _cores(),
            batch_sizes=sizes,
            sentences=sentences or (QUICK_SENTENCES if quick else None),
            quick=quick,
        )
        source = Source(model, random, _device(device))
        with _line() as line:
            results = Benchmark(
                source, settings, lambda text: line.update(text, refresh=True)
            ).run()
    if output is not None:
        with atomic_file(output) as fresh:
            fresh.write_text(results.to_json() + "\n", encoding="utf-8")
    if plot is not None:
        from hf_bert_impl.benchmark.plot import draw

        with atomic_file(plot) as fresh:
            draw(results, fresh)
    if as_json:
        typer.echo(results.to_json())
    else:
        from hf_bert_impl.benchmark.report import render

        render(results, console())


def _names(
    option: str, given: str | None, known: tuple[str, ...], usual: tuple[str, ...]
) -> tuple[str, ...]:
    """The names of a list with commas, each once, in the order of what is known."""
    if given is None:
        return usual
    if option == "--peers" and given == "none":
        return ()
    names = [name.strip() for name in given.split(",")]
    for name in names:
        if name not in known:
            raise InputError(
                f"{option} has {name!r}", f"some of {', '.join(known)}", "separate them by commas"
            )
    return tuple(name for name in known if name in names)


def _sizes(given: str | None) -> tuple[int, ...]:
    if given is None:
        return ()
    try:
        sizes = tuple(dict.fromkeys(int(size) for size in given.split(",")))
    except ValueError:
        sizes = (0,)
    if min(sizes) < 1:
        raise InputError(f"--batch-sizes is {given!r}", "numbers from 1", "write 1,8,32")
    return sizes


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows
        return os.cpu_count() or 1


def _device(given: str | None) -> str:
    import torch

    if given not in (None, "cpu", "cuda"):
        raise InputError(f"--device is {given!r}", "cpu or cuda", "choose one")
    if given == "cuda" and not torch.cuda.is_available():
        raise InputError("--device is cuda", "a CUDA device that torch sees", "take cpu")
    return given or ("cuda" if torch.cuda.is_available() else "cpu")


def _line() -> Live:
    """A line on standard error about what runs now, where someone looks at it.

    It is redrawn only when told: a thread that turns a spinner would be measured too.
    """
    return Live(console=Console(stderr=True), auto_refresh=False, transient=True)
