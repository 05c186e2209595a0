"""Fixtures, archives and refusals for the tests of conversion."""

import bz2
import gzip
import io
import lzma
import shutil
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_bert_impl.conversion.formats import Candidate, candidates
from hf_bert_impl.conversion.planning import same_bits
from hf_bert_impl.conversion.tensors import Checkpoint
from hf_bert_impl.errors import InputError

FIXTURES = Path(__file__).parents[1] / "fixtures"
COMPRESS: dict = {"tar": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
ARCHIVES = ("zip", "tar", "tar.gz", "tar.bz2", "tar.xz")


def read(form: str, path: Path) -> Checkpoint:
    """Read a checkpoint by a format's reader."""
    return Candidate(path, form).read()


def read_all(form: str, path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint that torch has the dtype of."""
    found = read(form, path).tensors
    return {name: item for name, item in found.items() if isinstance(item, torch.Tensor)}


def refuse(
    form: str, path: Path, match: str | None = None, damage: bytes | Callable | None = None
) -> str:
    """Hold that reading everything ends in one short line that names the file; the line.

    Args:
        form: The format.
        path: The file.
        match: A pattern of words of the line.
        damage: The content of the file, or a function that writes it; None for one that exists.
    """
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    elif damage is not None:
        damage(path)
    line = refused(lambda: read(form, path), match)
    assert path.name.split(".")[0] in line
    return line


def refused(run: Callable[[], Any], match: str | None = None) -> str:
    """Hold that a call ends in one short line; the line."""
    with pytest.raises(InputError, match=match) as raised:
        run()
    line = str(raised.value)
    assert line.isprintable()
    assert len(line) < 900
    return line


class Runs:
    """It pickles as a call."""

    def __init__(self, function: Callable, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable, tuple]:
        return self.call


def tar(*members: tuple[Any, bytes | None], form: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar of (name or TarInfo, content); without content (None) it is a folder."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as out:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            if content is None:
                info.type = tarfile.DIRTYPE
            info.size = len(content or b"")
            out.addfile(info, io.BytesIO(content or b""))
    return file.getvalue()


def zipped(*members: tuple[Any, bytes | None], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of (name or ZipInfo, content); without content (None) it is a folder."""
    file = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(file, "w") as out:  # names twice
        for member, content in members:
            out.writestr(f"{member}/" if content is None else member, content or b"", method)
    return file.getvalue()


def pack(path: Path, files: dict[str, bytes | None]) -> Path:
    """Write files (None: a folder) into an archive of the kind that the name says."""
    kind = path.suffix[1:]
    content = zipped(*files.items()) if kind == "zip" else COMPRESS[kind](tar(*files.items()))
    path.write_bytes(content)
    return path


def copied(name: str, place: Path) -> Path:
    """A copy of a fixture without its outputs, which a changed model would not have."""
    return shutil.copytree(FIXTURES / name, place, ignore=shutil.ignore_patterns("expected*"))


def tensors_of(folder: str) -> dict[str, Any]:
    """The tensors of a fixture."""
    return dict(candidates(FIXTURES / folder)[0][0].read().tensors)


def assert_same(found: Mapping, expected: Mapping) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert same_bits(found[name], tensor.detach().contiguous()), name
