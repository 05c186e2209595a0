"""A folder that appears complete or not at all."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.atomic import swap_in
from hf_bert_impl.files.lock import output_lock, unwritable

#: What `convert` says of its result; it names the files that a later result replaces.
REPORT = "conversion_report.json"
#: Weights and what belongs to them: never left beside the weights of another model.
_WEIGHTS = re.compile(
    r"model(-[0-9]{5}-of-[0-9]{5})?\.safetensors|(pytorch|tf|flax)_model(-[0-9]{5}-of-[0-9]{5})?"
    r"\.(bin|h5|msgpack)|.*\.index\.json|bert_model\.ckpt\..*|checkpoint|(bert_)?config\.json"
    r"|tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json|vocab\.txt"
    r"|modules\.json|sentence_bert_config\.json|config_sentence_transformers\.json"
    r"|model\.(onnx|onnx\.data|pt2)|openvino_model\.(xml|bin)"
)


@contextlib.contextmanager
def claimed(folder: Path, sources: Iterable[Path], overwrite: bool | None) -> Iterator[None]:
    """Checks a folder as `check_output` does, and keeps other runs from writing it meanwhile.

    What a killed run left beside it is removed: no other run is at work while it is locked.

    Args:
        folder: Where the result is to be; folders above it that are missing are made.
        sources: Files and folders that are read.
        overwrite: As for `check_output`.

    Raises:
        InputError: The folder cannot be written, another run is writing it, or as for
            `check_output`.
    """
    place = folder.resolve()
    with output_lock(place) as is_locked:
        check_output(folder, sources, overwrite)
        if is_locked:
            for left in place.parent.glob(glob.escape(_fresh_prefix(place)) + "*"):
                shutil.rmtree(left, ignore_errors=True)
        yield


def check_output(
    folder: Path, sources: Iterable[Path], overwrite: bool | None, content: str = "files"
) -> None:
    """Check what can be checked before anything is read.

    Args:
        folder: Where the result is to be.
        sources: Files and folders that are read.
        overwrite: Whether a folder with files in it may be replaced; None where it never is.
        content: What is in such a folder, in words.

    Raises:
        InputError: The folder is a source or around one, is a file, or has files.
    """
    if folder.is_symlink() and not folder.exists():
        raise InputError(f"{folder} is a dangling link. Remove it: rm {folder}")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file. Choose another name for the folder.")
    for source in sources:
        if folder.resolve() in (source.resolve(), *source.resolve().parents):
            raise InputError(
                f"{source} is in the output {folder}, which would be replaced. Choose another "
                "output."
            )
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        other = "" if overwrite is None else ", or replace it with `overwrite=True`"
        raise InputError(f"{folder} has {content} in it. Choose another name{other}.")


@contextlib.contextmanager
def output_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside the named one, which takes its place when all went well.

    Files of the old folder that are neither weights nor of an earlier conversion stay.

    Args:
        folder: The folder to write, which is `claimed`.

    Yields:
        The temporary folder.

    Raises:
        InputError: It cannot be written there.
    """
    folder = folder.resolve()
    fresh = folder.with_name(_fresh_prefix(folder) + secrets.token_hex(4))
    try:
        fresh.mkdir()
        yield fresh
        _replace(fresh, folder)
    except OSError as error:
        if error.errno is None:  # transformers' own, about a file that it cannot use
            raise
        raise unwritable(folder, error) from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # where it was not renamed


def _fresh_prefix(folder: Path) -> str:
    return f".{folder.name}.partial-"


def _replace(fresh: Path, folder: Path) -> None:
    old = swap_in(fresh, folder)
    if old is None:
        return
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
