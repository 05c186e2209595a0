"""Atomic writes of whole folders."""

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
from hf_bert_impl.files.atomic import swap_in, unwritable
from hf_bert_impl.files.lock import lock_file, output_lock

#: Endings of files, with which no new folder begins.
FILES = (
    *(".txt", ".json", ".jsonl", ".csv", ".tsv", ".parquet", ".npy", ".zip", ".html", ".png"),
    *(".onnx", ".xml", ".bin", ".pt", ".pth", ".pt2", ".h5", ".msgpack", ".safetensors", ".ckpt"),
)
#: The report of `convert`, which lists the files that a later result replaces.
REPORT = "conversion_report.json"
#: Weights, predictions and their files, which must not mix with another model's.
_WEIGHTS = re.compile(
    r"model(-[0-9]{5}-of-[0-9]{5})?\.safetensors|(pytorch|tf|flax)_model(-[0-9]{5}-of-[0-9]{5})?"
    r"\.(bin|h5|msgpack)|.*\.index\.json|bert_model\.ckpt\..*|checkpoint|(bert_)?config\.json"
    r"|tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json|vocab\.txt"
    r"|modules\.json|sentence_bert_config\.json|config_sentence_transformers\.json"
    r"|model\.(onnx|onnx\.data|pt2)|openvino_model\.(xml|bin)"
    r"|predictions(_without_null)?\.json|null_score_diffs\.json"
)


@contextlib.contextmanager
def claimed(folder: Path, sources: Iterable[Path], overwrite: bool | None) -> Iterator[None]:
    """Checks a folder by `check_output` and locks it; removes the remains of killed runs.

    Raises:
        InputError: The folder is not writable or locked by another run, or mounted, or as for
            `check_output`.
    """
    place = Path(os.path.realpath(folder))  # of a link to itself, too
    check_movable(place)
    with output_lock(place):
        check_output(folder, sources, overwrite)
        for left in place.parent.glob(glob.escape(_fresh_prefix(place)) + "*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def check_movable(folder: Path) -> None:
    """Raises InputError for a mounted folder, which cannot be replaced as a whole."""
    if os.path.ismount(folder):
        raise InputError(
            f"{folder} is a mounted folder, which cannot be replaced. Choose a new folder in it, "
            f"such as {folder / 'model'}."
        )


def check_output(
    folder: Path, sources: Iterable[Path], overwrite: bool | None, content: str = "files"
) -> None:
    """Checks an output folder before anything is read.

    Args:
        folder: The output.
        sources: Files and folders to read.
        overwrite: Whether a folder with files may be replaced; None if it never is.
        content: Such files, in words.

    Raises:
        InputError: The folder contains a source, is a file, or has files.
    """
    if folder.suffix in FILES and not folder.exists():
        raise InputError(
            f"{folder} ends in {folder.suffix}, and the output is a folder. Leave the ending out."
        )
    if folder.is_symlink() and not folder.exists():
        raise InputError(f"{folder} is a dangling link. Remove it: rm {folder}")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file. Choose another name for the folder.")
    for source in sources:
        real = Path(os.path.realpath(source))
        if Path(os.path.realpath(folder)) in (real, *real.parents):
            raise InputError(
                f"{source} is in the output {folder}, which would be replaced. Choose another "
                "output."
            )
    has_files = folder.is_dir() and any(
        file.name != lock_file(folder).name for file in folder.iterdir()
    )
    if has_files and not overwrite:
        other = "" if overwrite is None else ", or replace it with `overwrite=True`"
        raise InputError(
            f"{folder} has {content} in it. Choose another name{other}.",
            "overwrite=True resume=True",
        )


@contextlib.contextmanager
def output_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that replaces a `claimed` one at the end, unless there is an error.

    Files of the old folder stay, except weights and files of an earlier conversion.

    Raises:
        InputError: The folder is not writable.
    """
    folder = Path(os.path.realpath(folder))
    fresh = folder.with_name(_fresh_prefix(folder) + secrets.token_hex(4))
    try:
        fresh.mkdir()
        yield fresh
        _replace(fresh, folder)
    except OSError as error:
        if error.errno is None:  # transformers' error about an unusable file
            raise
        raise unwritable(folder, error) from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # unless it was renamed


def _fresh_prefix(folder: Path) -> str:
    return f".{folder.name}.partial-"


def _replace(fresh: Path, folder: Path) -> None:
    old = swap_in(fresh, folder)
    if old is None:
        return
    replaced = {REPORT, *_reported(old / REPORT)}
    for entry in old.iterdir():
        stays = entry.name not in replaced and not _WEIGHTS.fullmatch(entry.name)
        if stays and not (folder / entry.name).exists():
            os.rename(entry, folder / entry.name)
    shutil.rmtree(old)


def _reported(report: Path) -> set[str]:
    """The files of an earlier conversion."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        files = json.loads(report.read_text())["result"]["files"]
        return {
            file["name"].split("/")[0] for file in files
        }  # of a file in a subfolder, the subfolder
    return set()
