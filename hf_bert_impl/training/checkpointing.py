"""The folder of a run: its checkpoints, its settings, and write errors.

Notation: OUT the folder of a run, OUT/checkpoint-N its checkpoint of step N.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers.trainer import TRAINER_STATE_NAME

from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.files.atomic import PARTIAL, is_disk_full
from hf_bert_impl.files.json_files import plain, read_json

#: The settings of a run: JSON values that must match to resume it.
SETTINGS = "run.json"
MIB = 2**20


class CheckpointError(OSError):
    """A checkpoint could not be written; earlier ones are complete."""


def last_checkpoint(folder: str | Path) -> str | None:
    """The last complete checkpoint of a run, or None."""
    whole = [str(place) for place in _checkpoints(folder) if _is_whole(place)]
    return max(whole, key=step_of, default=None)


def best_checkpoint(folder: str | Path) -> Path | None:
    """The checkpoint with the best validation score, otherwise the last; None without any."""
    last = last_checkpoint(folder)
    if last is None:
        return None
    best = json.loads((Path(last) / TRAINER_STATE_NAME).read_bytes())["best_global_step"]
    return Path(folder) / f"checkpoint-{best}" if best else Path(last)


def remove_leftovers(folder: Path) -> None:
    """Deletes incomplete checkpoints and temporary files of a killed run."""
    for place in (*_checkpoints(folder), *folder.glob(f"{PARTIAL}*")):
        if not _is_whole(place):
            shutil.rmtree(place, ignore_errors=True)


def step_of(checkpoint: str) -> int:
    """The step of a checkpoint, from its name."""
    return int(checkpoint.rpartition("-")[2])


def _checkpoints(folder: str | Path) -> Iterable[Path]:
    return Path(folder).glob("checkpoint-[0-9]*")


def _is_whole(checkpoint: Path) -> bool:
    """Whether the last written file exists and is complete."""
    try:
        json.loads((checkpoint / TRAINER_STATE_NAME).read_bytes())
    except (OSError, ValueError):
        return False
    return True


@contextlib.contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """Turns write errors of any library into `CheckpointError`.

    Args:
        what: The written thing, such as "the model".
        folder: OUT.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if not (isinstance(error, OSError | SafetensorError) or is_disk_full(error)):
            raise
        reason = getattr(error, "strerror", None) or one_line(error)[:150]
        free = shutil.disk_usage(folder).free / MIB
        last = last_checkpoint(folder)
        whole = f"{Path(last).name} is complete" if last else "there is no checkpoint yet"
        raise CheckpointError(
            f"{what} could not be written to {folder} ({reason}, {free:,.0f} MiB are free). "
            f"Free disk space and resume: {whole}."
        ) from error


def check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Checks that the run in a folder has the same settings.

    Raises:
        ValueError: There is no run, or its settings differ; the message names the first ones.
    """
    file = folder / SETTINGS
    if not file.exists():
        raise InputError(
            f"there is no run to resume in {folder}: it has no {SETTINGS}. Name the output of an "
            "earlier run, or leave `resume` out.",
            "resume",
        )
    before = read_json(file, remedy="restore it, or start anew")
    now = _flat(plain(settings))
    then = _flat(before)
    changed = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    if changed:
        shown = [f"{key} was {then.get(key)!r}, now {now.get(key)!r}" for key in changed]
        more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
        raise InputError(
            f"the run in {folder} was started with other settings ({'; '.join(shown[:3])}{more}). "
            "Resume with those, or start a new run in another folder."
        )


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted names, from groups and single values."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        group = isinstance(value, Mapping)
        flat |= {f"{name}.{key}": value[key] for key in value} if group else {name: value}
    return flat
