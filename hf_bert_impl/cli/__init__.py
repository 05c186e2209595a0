"""The command line `hf-bert`.

Commands import torch and transformers when they run, so that `hf-bert --help` answers at once.
"""

from __future__ import annotations

import atexit
import functools
import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from hf_bert_impl.cli import (
    answer,
    attention,
    benchmark,
    classify,
    convert,
    demo,
    embed,
    errors,
    evaluate,
    export,
    fill_mask,
    finetune,
    pretrain,
    push,
    serve,
    tokenizer,
    verify,
)
from hf_bert_impl.cli.options import add_command
from hf_bert_impl.freed_memory import keep_freed_memory

app = typer.Typer(
    name="hf-bert",
    help="Use, train, check, convert and publish BERT models.",
    epilog="Example: hf-bert verify google-bert/bert-base-cased",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
#: Headings of `hf-bert --help`, in their order, and the commands below each.
COMMANDS: dict[str, dict[str, Any]] = {
    "Use a model": {
        "demo": demo.Demo,
        "embed": embed.Embed,
        "answer": answer.Answer,
        "classify": classify.Classify,
        "fill-mask": fill_mask.FillMask,
        "serve": serve.Serve,
        "attention": attention.Attention,
    },
    "Train": {
        "tokenizer": tokenizer.app,
        "pretrain": pretrain.Pretrain,
        "finetune": finetune.Finetune,
    },
    "Check and measure": {
        "verify": verify.Verify,
        "evaluate": evaluate.app,
        "benchmark": benchmark.Benchmark,
    },
    "Convert and publish": {
        "inspect": convert.Inspect,
        "convert": convert.Convert,
        "export": export.Export,
        "push": push.Push,
    },
}
for heading, commands in COMMANDS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=heading)
        else:
            add_command(app, name, command, heading)


@app.callback(invoke_without_command=True)
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks and the libraries' own messages.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the versions and exit.")
    ] = False,
) -> None:
    """Use, train, check, convert and publish BERT models."""
    if debug:
        errors.debug = True
    if not version:
        return
    from importlib.metadata import version as version_of

    from hf_bert_impl import __version__

    typer.echo(f"hf_bert_impl {__version__}")
    for package in ("transformers", "torch"):
        typer.echo(f"{package} {version_of(package)}")
    raise typer.Exit


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the entry point of the console script `hf-bert`.

    Args:
        argv: The arguments; None for the process's own.

    Returns:
        The exit status: 0 for success, 1 where a check failed (or for a bug), 2 for bad input,
        128 and a signal's number where one ended it.
    """
    keep_freed_memory()
    if argv is None:  # the process is this command's own
        _seldom_collect_all()
    arguments = list(sys.argv[1:] if argv is None else argv)
    # `--debug` is an option of hf-bert itself; people write it after the command as well.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    errors.debug = "--debug" in arguments[:end]
    arguments = [item for item in arguments[:end] if item != "--debug"] + arguments[end:]
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() == "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")  # of names that are not UTF-8
    with errors.stopped_in_order() as signals, errors.shown_notes():
        status = _run(arguments)
    return errors.SIGNALLED + signals[0] if signals else status


def _seldom_collect_all() -> None:
    """Makes full garbage collections ten times rarer, and skips the one at exit.

    Imports of torch and transformers create half a million permanent objects. Scanning them took a
    quarter of a short command's time. Young garbage is collected as often as before.
    """
    youngest, middle, oldest = gc.get_threshold()
    gc.set_threshold(youngest, middle, max(oldest, 100))
    atexit.register(gc.freeze)


#: Makes the commands with all their options, once, since that takes 40 ms.
_command = functools.cache(typer.main.get_command)


def _run(arguments: list[str]) -> int:
    command: Any = _command(app)
    try:
        status = command.main(arguments, prog_name="hf-bert", standalone_mode=False)
        sys.stdout.flush()
        # A process that exits while the threads of its distributed group run is sometimes aborted,
        # which its launcher reports as a failure.
        distributed = sys.modules.get("torch.distributed")
        if distributed and distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()
    except BrokenPipeError:
        # The reader (`| head`) has gone, which is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except typer.Exit as stop:
        return stop.exit_code
    except (Exception, KeyboardInterrupt) as error:
        for word in arguments:
            if word not in getattr(command, "commands", ()):
                break
            command = command.commands[word]
        return errors.report(error, command)
    return status if isinstance(status, int) else 0
