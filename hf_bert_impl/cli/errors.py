"""Errors on the command line: one line and an exit status, without traceback."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import typer

from hf_bert_impl.errors import InputNote, one_line
from hf_bert_impl.training.launch import is_first_to_fail

BAD_INPUT = 2
BUG = 1
INTERRUPTED = 130
#: The exit status after a signal is this and its number, as in shells.
SIGNALLED = 128

#: Whether to show tracebacks and the messages of libraries.
debug = False


@contextlib.contextmanager
def stopped_in_order() -> Iterator[list[int]]:
    """Makes SIGTERM and SIGHUP end a command like Ctrl-C, so that it deletes partial files.

    Signals that the caller handles or ignores (`nohup`) keep their effect.

    Yields:
        The numbers of the signals received.
    """
    process = os.getpid()
    came: list[int] = []

    def stop(number: int, frame: Any) -> None:
        if os.getpid() != process:  # a forked worker
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        came.append(number)
        raise KeyboardInterrupt

    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    taken = []
    # An exception does not end the waits of a distributed run; its launcher stops the processes.
    alone = "LOCAL_RANK" not in os.environ
    if alone and threading.current_thread() is threading.main_thread():
        taken = [number for number in signals if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield came
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def in_options(error: BaseException, command: Any) -> str:
    """An exception's message with a command's options instead of the library's arguments.

    Args:
        error: The exception; its `options` are such arguments.
        command: Click's command.

    Returns:
        One line: `` `dtype` `` is --dtype, `` `to='h5'` `` --to h5, `` `check=False` `` --no-check,
        and `` `model` `` MODEL.
    """
    text, known = one_line(error), {item.name: item for item in command.params}
    for code in getattr(error, "options", ()):
        name, _, value = code.partition("=")
        if name not in known:
            continue
        flag = str(max(known[name].opts, key=len))
        if known[name].param_type_name == "argument":
            flag = known[name].metavar
        if value == "False":
            flag = str(known[name].secondary_opts[0])
        elif value not in ("", "True"):
            flag += f" {value.strip(chr(39))}"
        text = text.replace(f"`{code}`", flag)
        if text.startswith((f"{name} ", f"{name}=")):
            text = flag + text.removeprefix(name)
    return text


def usage(context: Any) -> str:
    """A command with its arguments and required options, as the user would write it."""
    arguments, options = [], []
    for item in context.command.params:
        if item.param_type_name == "argument":
            arguments.append(item.metavar if item.required else f"[{item.metavar}]")
        elif item.required:
            options.append(f"{max(item.opts, key=len)} {item.name.upper()}")
    return " ".join((context.command_path, *arguments, *options))


def report(error: BaseException, command: Any) -> int:
    """Prints an exception to standard error as one line (after its traceback with `--debug`).

    Args:
        error: The exception.
        command: Click's command that raised it.

    Returns:
        The exit status: 2 for bad input, 130 for an interrupt, 1 otherwise.
    """
    if debug:
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED
    _tell_launcher(error)
    status, line = _described(error, command)
    if line and _is_first_to_fail(error):
        typer.echo(f"error: {line}", err=True)
    return status


def _described(error: BaseException, command: Any) -> tuple[int, str]:
    """The exit status and the message of an exception."""
    # Click's UsageError; newer versions of typer have their own copy of click.
    if isinstance(error, typer.BadParameter.__mro__[1]):
        # Without a command the message is empty: the help has been printed.
        line = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
        context = error.ctx  # type: ignore[attr-defined]
        if context is None or hasattr(context.command, "commands"):
            return BAD_INPUT, line and f"{line}. See --help."
        return BAD_INPUT, f"{line}. Usage: {usage(context)}. See --help."
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        name = f"{str(error.filename)[:80]}…"
        return BAD_INPUT, f"{name} is too long for a file name. Check the path."
    if isinstance(error, ValueError | OSError):
        # The package raises these with a message for the user; so does transformers for files.
        return BAD_INPUT, in_options(error, command)
    if isinstance(error, OverflowError):
        # Libraries limit integers, and Python does not.
        what = f"A number is too large ({one_line(error)}). Choose a smaller one."
        return BAD_INPUT, what
    what = f"{type(error).__name__}: {one_line(error)}"
    if _is_lost_connection(error):
        return (
            BUG,
            f"Another process of this run failed ({what}). See the messages of the launcher.",
        )
    return BUG, f"{what}. This is a bug in hf-bert. Run it with --debug and report the traceback."


def _is_lost_connection(error: BaseException) -> bool:
    """Whether the connection to another process of a distributed run was lost."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    known = isinstance(error, distributed.DistError)
    return known or (isinstance(error, RuntimeError) and "gloo" in str(error).lower())


def _is_first_to_fail(error: BaseException) -> bool:
    """Whether this is the first process of a run to fail, which alone reports."""
    if "LOCAL_RANK" not in os.environ:
        return True
    try:
        return is_first_to_fail(isinstance(error, ValueError))
    except RuntimeError:  # the agent has gone
        return True


def _tell_launcher(error: BaseException) -> None:
    """Records an exception for torch's launcher, if there is one."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


@contextlib.contextmanager
def shown_notes() -> Iterator[None]:
    """Prints each `InputNote` to standard error, once, as one line."""
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        line = f"note: {one_line(message)}"
        if not issubclass(category, InputNote):
            before(message, category, *place)
        elif line not in shown:
            shown.add(line)
            typer.echo(line, err=True)

    with warnings.catch_warnings():
        before = warnings.showwarning
        warnings.simplefilter("always", InputNote)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silences messages and progress bars of transformers and the hub, except with `--debug`."""
    if debug:
        yield
        return
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    hub_verbosity, hub_bars = hub_logging.get_verbosity(), not are_progress_bars_disabled()
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", InputNote)
        logging.set_verbosity_error()
        hub_logging.set_verbosity_error()
        logging.disable_progress_bar()
        disable_progress_bars()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            hub_logging.set_verbosity(hub_verbosity)
            if bars:
                logging.enable_progress_bar()
            # Last, because transformers' function also switches the hub's bars.
            (enable_progress_bars if hub_bars else disable_progress_bars)()
