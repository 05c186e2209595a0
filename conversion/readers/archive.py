"""Checkpoints inside `.zip` and `.tar.gz` files, such as Google's releases and those of 2018.

An archive may come from anywhere. Nothing of it is written but plain files, inside one folder of
its own, and no more of them than its own size makes likely. `zipfile` and `tarfile` take it apart.
They would take links, names that lead outside or come twice, content and headers of any size, and
a damaged header that ends a tar early; those are refused here.
"""

from __future__ import annotations

import bz2
import contextlib
import functools
import gzip
import io
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

from .mapped import most_bytes, read_at, reading

#: Most files and folders in an archive.
_MAX_MEMBERS = 10_000
#: Most bytes that are read at once: the header of a tar may be of any size.
_MAX_READ = 1 << 20
_MAX_DEPTH = 32
_TAR_BLOCK = 512

_COMPRESSIONS: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_ZIP = b"PK\x03\x04"

#: Each member's name, whether it is a folder, its bytes, and its content where it is a file.
Members = Iterator[tuple[str, bool, int, Any]]


def is_archive(path: Path) -> bool:
    """Whether a file is a zip or a tar (plain or compressed) of files.

    PyTorch's own files and numpy's `.npz` are zip files too, and no archives.

    Args:
        path: Any path; False for what is no file or cannot be read.
    """
    try:
        if read_at(path, 0, len(_ZIP)) == _ZIP:
            with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
                names = archive.namelist()
                is_torch = any(n.count("/") == 1 and n.endswith("/data.pkl") for n in names)
                return not is_torch and not all(name.endswith(".npy") for name in names)
            head = read_at(path, 0, 300)  # without its list at the end: the first name
            name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
            return not name.endswith((b"/data.pkl", b".npy"))
        if not path.is_file():
            return False
        with _decompressed(path) as stream:
            tarfile.TarInfo.frombuf(stream.read(_TAR_BLOCK), "utf-8", "surrogateescape")
            return True  # a header with the sum that it says
    except Exception:  # what the libraries raise on damaged bytes depends on the byte
        return False


def open_archive(path: Path, into: Path) -> Path:
    """Extract the files of an archive.

    Archives inside the archive are left as they are; what macOS adds (`__MACOSX/`, `._*`) is left
    out.

    Args:
        path: A file that `is_archive`.
        into: An existing folder. On failure nothing stays in it.

    Returns:
        The folder with the files: one inside `into`, or the one folder that all of them are in.

    Raises:
        InputError: The archive is damaged or encrypted, has links, devices, names that lead
            elsewhere or come twice, more content than the limits of this module, or the disk has
            no room for it.
    """
    folder = Path(tempfile.mkdtemp(prefix="archive-", dir=into))
    try:
        with reading("zip or tar", path):
            try:
                _extract(path, folder)
            except _Refused as error:
                raise InputError(
                    f"{path}: {error}",
                    "plain files of a checkpoint, each once",
                    "unpack it by hand if you trust it, and convert that",
                ) from None
    except InputError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


class _Refused(ValueError):
    """What no archive of a checkpoint has."""


def _extract(path: Path, folder: Path) -> None:
    """Write the files; raises `_Refused`, or what the libraries do."""
    room = most_bytes(path)
    with contextlib.ExitStack() as stack:
        if read_at(path, 0, len(_ZIP)) == _ZIP:
            members = _zip_members(stack.enter_context(zipfile.ZipFile(path)))
        else:
            members = _tar_members(stack.enter_context(_decompressed(path)), room)
        found = False
        for count, (name, is_folder, size, content) in enumerate(members):
            parts = [part for part in name.split("/") if part not in ("", ".")]
            odd = ".." in parts or set(name) & set("\\:\0\n\r") or len(parts) > _MAX_DEPTH
            if name.startswith("/") or odd or not (parts or is_folder):
                raise _Refused(f"a member is named {name!r:.200}, which leads elsewhere")
            room -= size
            if room < 0 or size < 0 or count >= _MAX_MEMBERS:
                raise _Refused("it unpacks to more files or bytes than such an archive can hold")
            if "__MACOSX" in parts or any(part.startswith("._") for part in parts):
                continue
            place = folder.joinpath(*parts)
            try:  # the disk says which names are the same on it
                (place if is_folder else place.parent).mkdir(parents=True, exist_ok=True)
                if is_folder:
                    continue
                file = place.open("xb")
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                raise _Refused(f"it has {name!r:.200} twice") from None
            with file:
                shutil.copyfileobj(content(), file, _MAX_READ)
            if place.stat().st_size != size:
                raise ValueError(f"it ends within {name!r:.200}")
            found = True
    if not found:
        raise ValueError("it has no files")


def _zip_members(archive: zipfile.ZipFile) -> Members:
    for member in archive.infolist():
        kind = stat.S_IFMT(member.external_attr >> 16)
        plain = kind in (0, stat.S_IFREG, stat.S_IFDIR) and not member.flag_bits & 1
        # the library would unpack other compressions in memory, whatever comes out
        if not plain or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _Refused(
                f"{member.orig_filename!r:.200} is a link or a device, encrypted, or of a rare "
                "compression"
            )
        is_folder = member.orig_filename.endswith("/")
        content = functools.partial(archive.open, member)
        yield member.orig_filename, is_folder, member.file_size, content


def _tar_members(stream: IO[bytes], room: int) -> Members:
    metered = _Metered(stream, room)
    with tarfile.open(fileobj=metered, mode="r:") as archive:
        end = 0
        for member in archive:
            if not (member.isreg() or member.isdir()) or member.issparse():
                raise _Refused(f"{member.name!r:.200} is a link or a device")
            content = functools.partial(archive.extractfile, member)
            yield member.name, member.isdir(), member.size, content
            end = member.offset_data + -(-member.size // _TAR_BLOCK) * _TAR_BLOCK
    # tarfile takes a damaged header, or none, for the end
    metered.seek(end)
    if metered.read(_TAR_BLOCK) != bytes(_TAR_BLOCK):
        raise ValueError("a header is damaged, or the end is missing")
    while metered.read(_MAX_READ):  # up to the checksum of the compression
        pass


class _Metered(io.RawIOBase):
    """What comes out of a compressed tar: little at once, and not more than a limit."""

    def __init__(self, stream: IO[bytes], room: int) -> None:
        self._stream = stream
        self._room = room

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_READ or self._stream.tell() > self._room:
            raise _Refused("it has a header that is too large, or more bytes than such a tar")
        return self._stream.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        while place > self._stream.tell() and self.read(
            min(_MAX_READ, place - self._stream.tell())
        ):
            pass
        return self._stream.seek(place, whence)

    def tell(self) -> int:
        return self._stream.tell()


def _decompressed(path: Path) -> IO[bytes]:
    start = read_at(path, 0, 6)
    for signature, opener in _COMPRESSIONS.items():
        if start.startswith(signature):
            return opener(path)
    return path.open("rb")
