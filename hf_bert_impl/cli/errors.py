"""Errors as a user of the command line sees them: one line, an exit status, no traceback."""

from __future__ import annotations

import contextlib
import errno
import os
import re
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

#: An argument's name, and its value, in a message of the library.
_ARGUMENT = re.compile(r"`([a-z_]+)(?:=(\w+|'[^'`]*'))?`|^([a-z_]+)(?= is |=)")

_debug = False


@contextlib.contextmanager
def stopped_in_order() -> Iterator[list[int]]:
    """Lets SIGTERM and SIGHUP end a command as Ctrl-C does, so that half-written files go.

    Signals that the caller handles or ignores (`nohup`) are left alone.

    Yields:
        The numbers of the signals that came.
    """
    process = os.getpid()
    came: list[int] = []

    def stop(number: int, frame: Any) -> None:
        if os.getpid() != process:  # a forked worker ends as it would without this
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        came.append(number)
        raise KeyboardInterrupt

    signals = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
    taken = []
    # The processes of a distributed run wait for each other in code that no exception ends; their
    # launcher stops them.
    alone = "LOCAL_RANK" not in os.environ
    if alone and threading.current_thread() is threading.main_thread():
        taken = [it for it in signals if it and signal.getsignal(it) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield came
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def set_debug(value: bool) -> None:
    """Show tracebacks and the libraries' own messages, or not."""
    global _debug
    _debug = value


def in_options(text: str, command: Any) -> str:
    """What the library says, in the words of a command: its options in place of arguments.

    Args:
        text: Arguments stand between backticks, with their value or without, or begin the text.
        command: Click's; its parameters have the library's names.

    Returns:
        `` `dtype` `` as --dtype, `` `to='h5'` `` as --to h5 and `` `check=False` `` as --no-check.
        What is no parameter stays as it is.
    """
    known = {it.name: it for it in command.params if it.param_type_name == "option"}

    def written(match: re.Match[str]) -> str:
        name, value = match[1] or match[3], match[2]
        if name not in known:
            return match[0]
        if value == "False":
            return str(known[name].secondary_opts[0])
        option = str(max(known[name].opts, key=len))
        return option if value in (None, "True") else f"{option} {value.strip(chr(39))}"

    return _ARGUMENT.sub(written, text)


def report(error: BaseException, command: Any) -> int:
    """Print an exception to standard error as one line (after its traceback with `--debug`).

    Args:
        error: What was raised.
        command: Click's command that raised it.

    Returns:
        The exit status: 2 for bad input, 1 for anything unforeseen, 130 for an interrupt.
    """
    if _debug:
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED
    _tell_launcher(error)
    status, line = _described(error, command)
    if line and _is_first_to_fail(error):
        typer.echo(f"error: {line}", err=True)
    return status


def _described(error: BaseException, command: Any) -> tuple[int, str]:
    """The exit status of an exception, and what to say of it."""
    if isinstance(error, _usage_error()):
        # Without a command there is nothing to say: the help has been printed.
        usage = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
        return BAD_INPUT, usage and f"{usage}; see --help"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        name = f"{str(error.filename)[:80]}…"
        return BAD_INPUT, f"{name} is too long for a name; expected a path; check it"
    if isinstance(error, ValueError | OSError):
        # The package raises these with a message for the user; so does transformers for files.
        return BAD_INPUT, in_options(one_line(error), command)
    if isinstance(error, OverflowError):
        # Python's integers have no limit. Those of the libraries below it have one.
        what = f"a number that was given is too large ({one_line(error)}); choose a smaller one"
        return BAD_INPUT, what
    what = f"{type(error).__name__}: {one_line(error)}"
    if _is_lost_connection(error):
        return BUG, f"another process of this run has ended, its launcher says which ({what})"
    return BUG, f"{what}; this is a bug in hf-bert; run again with --debug and report the traceback"


def _is_lost_connection(error: BaseException) -> bool:
    """Whether an exception says that the processes of a distributed run lost each other."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    known = isinstance(error, distributed.DistError)
    return known or (isinstance(error, RuntimeError) and "gloo" in str(error).lower())


def _is_first_to_fail(error: BaseException) -> bool:
    """Whether this process is to report: of those that a launcher started, the first that fails."""
    if "LOCAL_RANK" not in os.environ:
        return True
    try:
        return is_first_to_fail(isinstance(error, ValueError))
    except RuntimeError:  # the agent has gone
        return True


def _tell_launcher(error: BaseException) -> None:
    """Leaves an exception for the report of torch's launcher, where one started this process."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


def _usage_error() -> type[Exception]:
    """The class of wrong usage: newer versions of typer have a copy of click of their own."""
    return typer.BadParameter.__mro__[1]


@contextlib.contextmanager
def shown_notes() -> Iterator[None]:
    """Print each `InputNote` to standard error, once, as one line."""
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
    """Silence transformers' and the hub's messages and progress bars, except with `--debug`."""
    if _debug:
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
            # Last, because transformers' own function switches the hub's bars too.
            (enable_progress_bars if hub_bars else disable_progress_bars)()
