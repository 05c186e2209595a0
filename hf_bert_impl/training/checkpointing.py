"""The folder of a run: its checkpoints, what it was started with, and failures to write.

Notation: OUT the folder of a run, OUT/checkpoint-N its checkpoint of step N.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers.trainer_utils import get_last_checkpoint

from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.files.atomic import atomic_file, is_disk_full
from hf_bert_impl.files.json_files import read_json

#: Where a checkpoint grows; what a killed run leaves there counts for nothing.
PARTIAL = "partial-checkpoint"
#: What a run was started with.
SETTINGS = "run.json"
#: What `atomic_files` leaves of a process that was killed.
LEFTOVERS = ".partial-*"
MIB = 2**20


class CheckpointError(OSError):
    """A checkpoint could not be written; those before it are whole."""


def last_checkpoint(folder: str | Path) -> str | None:
    """The last complete checkpoint of a run, or None where there is none."""
    checkpoint: str | None = get_last_checkpoint(str(folder))
    return checkpoint


def remove_leftovers(folder: Path) -> None:
    """Deletes the half-written files of a killed run, none of which counts for anything."""
    for leftover in (folder / PARTIAL, *folder.glob(LEFTOVERS)):
        shutil.rmtree(leftover, ignore_errors=True)


def step_of(checkpoint: str) -> int:
    """The step of a checkpoint, from its name."""
    return int(checkpoint.rpartition("-")[2])


def is_write_failure(error: BaseException) -> bool:
    """Whether an exception, of whatever library, says that a file could not be written."""
    return isinstance(error, OSError | SafetensorError) or is_disk_full(error)


@contextlib.contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """Turns failures to write, of whatever library, into `CheckpointError`."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if not is_write_failure(error):
            raise
        raise write_error(what, folder, error) from error


def write_error(what: str, folder: Path, failure: BaseException | None) -> CheckpointError:
    """What to raise where something could not be written.

    Args:
        what: That thing, such as "the model".
        folder: OUT.
        failure: What was raised; None where that was in another process.
    """
    free = shutil.disk_usage(folder).free / MIB
    reason = "another process failed" if failure is None else _reason(failure)
    last = last_checkpoint(folder)
    whole = f"{Path(last).name} is whole" if last else "there is no checkpoint yet"
    return CheckpointError(
        f"{what} could not be written to {folder} ({reason}; {free:,.0f} MiB are free); expected "
        f"room for it; free some and resume: {whole}"
    )


def _reason(failure: BaseException) -> str:
    if isinstance(failure, OSError) and failure.strerror:
        return failure.strerror
    return one_line(failure)[:150]


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Writes down what a run is started with.

    Args:
        folder: OUT.
        settings: JSON values: everything that makes a different run where it changes.
    """
    with atomic_file(folder / SETTINGS) as fresh:
        text = json.dumps(settings, indent=2, ensure_ascii=False)
        fresh.write_text(text + "\n", encoding="utf-8")


def check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Check that a run in a folder was started with the same settings.

    Args:
        folder: OUT.
        settings: Those of now.

    Raises:
        ValueError: There is no such run, or it had others; the message names the first of them.
    """
    file = folder / SETTINGS
    if not file.exists():
        raise InputError(
            f"there is no run to resume in {folder}",
            f"a folder with {SETTINGS}",
            "name the output of an earlier run, or start a new one",
        )
    before = read_json(file, remedy="restore it, or start anew")
    now = _flat(json.loads(json.dumps(settings)))
    then = _flat(before)
    changed = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    if changed:
        shown = [f"{key} was {then.get(key)!r}, now {now.get(key)!r}" for key in changed]
        more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
        raise InputError(
            f"the run in {folder} was started with other settings ({'; '.join(shown[:3])}{more})",
            "the same",
            "resume with those, or start a new run in another folder",
        )


def _flat(settings: Any, path: str = "") -> dict[str, Any]:
    """Nested settings with dotted names."""
    if not isinstance(settings, Mapping):
        return {path: settings}
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{path}.{key}" if path else str(key))
    return flat
