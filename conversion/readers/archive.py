"""Checkpoints inside `.zip` and `.tar.gz` files, such as the releases of 2018.

`zipfile` and `tarfile` read them. They would accept links, names outside the folder, duplicate
names, and content and headers of any size; this module refuses these.
"""

from __future__ import annotations

import bz2
import contextlib
import functools
import gzip
import lzma
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from hf_bert_impl.errors import InputError

from .mapped import Unsafe, most_bytes, read_at, reading

#: Maximum number of files and folders in an archive.
_MAX_MEMBERS = 10_000
_CHUNK = 1 << 20
_MAX_DEPTH = 32
_SWELLS = "it unpacks to more files or bytes than its own size allows"

_COMPRESSIONS: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_ZIP = b"PK\x03\x04"

#: Each member's name, whether it is a folder, its size in bytes, and a function that opens a file.
Members = Iterator[tuple[str, bool, int, Any]]


def is_archive(path: Path) -> bool:
    """Whether a file is a zip or a tar (plain or compressed) of files.

    PyTorch's own files and numpy's `.npz` are zip files too, and no archives.

    Args:
        path: Any path; False if it cannot be read.
    """
    try:
        if read_at(path, 0, len(_ZIP)) == _ZIP:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
            is_torch = any(n.count("/") == 1 and n.endswith("/data.pkl") for n in names)
            return not is_torch and not all(name.endswith(".npy") for name in names)
        if not path.is_file():
            return False
        with _opened(path) as stream:
            tarfile.TarInfo.frombuf(stream.read(512), "utf-8", "surrogateescape")
            return True  # the header has the right checksum
    except Exception:  # the type depends on the damaged byte
        return False


def open_archive(path: Path, into: Path) -> Path:
    """Extract the files of an archive.

    Archives inside it stay packed, and the files of macOS (`__MACOSX/`, `._*`) are skipped.

    Args:
        path: A file that `is_archive`.
        into: An existing folder, which is unchanged on failure.

    Returns:
        The folder with the files: one inside `into`, or the one folder that holds all of them.

    Raises:
        InputError: The archive is damaged or encrypted, has links, devices, duplicate names or
            names outside the folder, exceeds the limits of this module, or fills the disk.
    """
    folder = Path(tempfile.mkdtemp(prefix="archive-", dir=into))
    try:
        with reading("zip or tar", path):
            _extract(path, folder)
    except InputError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def _unsafe(fact: str) -> Unsafe:
    return Unsafe(f"{fact}. If you trust it, unpack it yourself, and give the folder.")


def _extract(path: Path, folder: Path) -> None:
    budget = most_bytes(path)
    with contextlib.ExitStack() as stack:
        if read_at(path, 0, len(_ZIP)) == _ZIP:
            members = _zip_members(stack.enter_context(zipfile.ZipFile(path)))
        else:
            members = _tar_members(path, budget)
        is_empty = True
        for count, (name, is_folder, size, content) in enumerate(members):
            parts = [part for part in name.split("/") if part not in ("", ".")]
            odd = ".." in parts or set(name) & set("\\:\0\n\r") or len(parts) > _MAX_DEPTH
            if name.startswith("/") or odd or not (parts or is_folder):
                raise _unsafe(f"a member is named {name!r:.200}, which is no plain path")
            budget -= size
            if budget < 0 or size < 0 or count >= _MAX_MEMBERS:
                raise _unsafe(_SWELLS)
            if "__MACOSX" in parts or any(part.startswith("._") for part in parts):
                continue
            place = folder.joinpath(*parts)
            try:  # the file system decides which names are equal
                (place if is_folder else place.parent).mkdir(parents=True, exist_ok=True)
                if is_folder:
                    continue
                file = place.open("xb")
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                raise _unsafe(f"it has {name!r:.200} twice") from None
            with file:
                shutil.copyfileobj(content(), file)
            if place.stat().st_size != size:
                raise ValueError(f"it ends within {name!r:.200}")
            is_empty = False
    if is_empty:
        raise ValueError("it has no files")


def _zip_members(archive: zipfile.ZipFile) -> Members:
    for member in archive.infolist():
        kind = stat.S_IFMT(member.external_attr >> 16)
        plain = kind in (0, stat.S_IFREG, stat.S_IFDIR) and not member.flag_bits & 1
        # zipfile would unpack other compressions in memory, whatever their size
        if not plain or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            name = f"{member.orig_filename!r:.200}"
            raise _unsafe(f"{name} is a link, a device, encrypted, or of a rare compression")
        is_folder = member.orig_filename.endswith("/")
        content = functools.partial(archive.open, member)
        yield member.orig_filename, is_folder, member.file_size, content


def _tar_members(path: Path, budget: int) -> Members:
    # Decompressed into a file first, which bounds what a header may claim.
    with _opened(path) as source, tempfile.TemporaryFile() as plain:
        while chunk := source.read(_CHUNK):
            if plain.tell() > budget:
                raise _unsafe(_SWELLS)
            plain.write(chunk)
        plain.seek(0)
        with tarfile.open(fileobj=plain, mode="r:") as archive:
            for member in archive:
                if not (member.isreg() or member.isdir()) or member.issparse():
                    raise _unsafe(f"{member.name!r:.200} is a link or a device")
                content = functools.partial(archive.extractfile, member)
                yield member.name, member.isdir(), member.size, content


def _opened(path: Path) -> IO[bytes]:
    start = read_at(path, 0, 6)
    for signature, opener in _COMPRESSIONS.items():
        if start.startswith(signature):
            return opener(path)
    return path.open("rb")
