"""A folder that appears complete or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import ConversionError

REPORT = "conversion_report.json"
#: Weights and what belongs to them: never left beside the weights of another model.
_WEIGHTS = re.compile(
    r"model(-[0-9]{5}-of-[0-9]{5})?\.safetensors|(pytorch|tf|flax)_model(-[0-9]{5}-of-[0-9]{5})?"
    r"\.(bin|h5|msgpack)|.*\.index\.json|bert_model\.ckpt\..*|checkpoint|(bert_)?config\.json"
    r"|tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json|vocab\.txt"
    r"|modules\.json|sentence_bert_config\.json|config_sentence_transformers\.json"
)


def check_output(folder: Path, source: Path, overwrite: bool) -> None:
    """Check what can be checked before anything is read.

    Args:
        folder: Where the result is to be.
        source: What the user named as the source.
        overwrite: Whether a folder with files in it may be replaced.

    Raises:
        ConversionError: The folder is the source or around it, is a file, or has files.
    """
    if folder.is_symlink() and not folder.exists():
        raise ConversionError(f"{folder} is a dangling link", "a folder", "remove it")
    if folder.exists() and not folder.is_dir():
        raise ConversionError(f"{folder} is a file", "a folder for the result", "name another one")
    target, origin = folder.resolve(), source.resolve()
    if target == origin or target in origin.parents:
        raise ConversionError(
            f"the result would replace its own source {source}",
            "a folder of its own for the result",
            "name another one",
        )
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise ConversionError(
            f"{folder} exists and has files in it",
            "a new or an empty folder for the result",
            "name another one, or replace it with --overwrite",
        )


@contextlib.contextmanager
def output_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside the named one, which takes its place when all went well.

    Files of the old folder that are neither weights nor of an earlier conversion stay.

    Args:
        folder: The folder to write.

    Yields:
        The temporary folder.

    Raises:
        ConversionError: It cannot be written there.
    """
    folder = folder.resolve()
    made: list[Path] = []
    fresh = None
    try:
        try:
            made = _make_parents(folder.parent)
            fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
            os.chmod(fresh, 0o777 & ~_umask())
        except OSError as error:
            raise _unwritable(folder, error) from None
        try:
            yield fresh
            _replace(fresh, folder)
        except OSError as error:
            if error.errno is None:  # transformers' own, about a file that it cannot use
                raise
            raise _unwritable(folder, error) from None
        made, fresh = [], None
    finally:
        if fresh is not None:
            shutil.rmtree(fresh, ignore_errors=True)
        for parent in reversed(made):
            with contextlib.suppress(OSError):
                parent.rmdir()


def _unwritable(folder: Path, error: OSError) -> ConversionError:
    return ConversionError(
        f"{folder} cannot be written ({error.strerror or error})",
        "a place that can be written to, with room for the result",
        "free some space, or name another folder",
    )


def _make_parents(parent: Path) -> list[Path]:
    missing = [path for path in (parent, *parent.parents) if not path.exists()][::-1]
    for path in missing:
        path.mkdir(exist_ok=True)
    return missing


def _umask() -> int:
    # The one way to ask for it is to set it.
    umask = os.umask(0o022)
    os.umask(umask)
    return umask


def _replace(fresh: Path, folder: Path) -> None:
    if not folder.exists():
        os.rename(fresh, folder)
        return
    # Nothing of the old folder is deleted before the new one is in its place.
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    os.rename(folder, old)
    try:
        os.rename(fresh, folder)
    except OSError:
        os.rename(old, folder)
        raise
    replaced = {REPORT, *_reported(old / REPORT)}
    for entry in old.iterdir():
        kept = entry.name not in replaced and not _WEIGHTS.fullmatch(entry.name)
        if kept and not (folder / entry.name).exists():
            os.rename(entry, folder / entry.name)
    shutil.rmtree(old)


def _reported(report: Path) -> set[str]:
    """The files that an earlier conversion wrote."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        files = json.loads(report.read_text())["result"]["files"]
        return {file["name"].split("/")[0] for file in files}  # of a file in a folder, the folder
    return set()
