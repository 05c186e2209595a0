"""Checkpoints inside `.zip` and `.tar.gz` files, such as Google's releases and those of 2018.

An archive may come from anywhere. Nothing of it is written but plain files, inside one folder of
its own, and no more of them than its own size makes likely. `zipfile` and `tarfile` take it apart.
The filter "data" of `tarfile` would refuse names that lead outside; it allows links, names that
differ in case alone, content and headers of any size, and a damaged header that ends the archive
early. Those are refused here, for both kinds of archive.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import shutil
import stat
import struct
import tarfile
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from hf_bert_impl.errors import InputError

from .mapped import read_at

#: Most files and folders in an archive.
MAX_MEMBERS = 10_000
#: Most bytes of content, over all files.
MAX_CONTENT_BYTES = 64 << 30
#: And most bytes of content for an archive of n bytes: RATIO * n + SLACK. Weights hardly shrink,
#: and what lies beside them (a vocabulary, a graph) shrinks to a tenth.
MAX_CONTENT_RATIO = 200
CONTENT_SLACK_BYTES = 64 << 20
#: Most bytes in front of a file in a tar: its header, and long names as headers of their own.
_MAX_HEADER_BYTES = 1 << 20
_MAX_DEPTH = 32
_CHUNK = 1 << 20
_TAR_BLOCK = 512

_COMPRESSIONS: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_ZIP = b"PK\x03\x04"
#: What the libraries raise on damaged archives. A lying header of xz asks for too much memory.
_DAMAGE: tuple[type[Exception], ...] = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, ValueError, NotImplementedError, RecursionError, MemoryError),
)


def is_archive(path: Path) -> bool:
    """Whether a file is a zip or a tar (plain or compressed) of files.

    PyTorch's own files and numpy's `.npz` are zip files too, and no archives.

    Args:
        path: Any path; False for what is no file or cannot be read.
    """
    try:
        if not path.is_file():
            return False
        if _is_zip(path):
            names = _zip_names(path)
            if any(name.count("/") == 1 and name.endswith("/data.pkl") for name in names):
                return False
            return not all(name.endswith(".npy") for name in names)
        with _decompressed(path) as stream:
            tarfile.TarInfo.frombuf(stream.read(_TAR_BLOCK), "utf-8", "surrogateescape")
            return True  # a header with the sum that it says
    except _DAMAGE:
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
    whole = False
    try:
        target = _Target(path, folder)
        (_extract_zip if _is_zip(path) else _extract_tar)(target)
        if not target.files:
            raise InputError(f"{path} has no files", "a checkpoint", "check the archive")
        whole = True
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(
            f"{path} cannot be unpacked ({error or type(error).__name__})",
            "a whole zip or tar file",
            "download it again",
        ) from None
    finally:
        if not whole:
            shutil.rmtree(folder, ignore_errors=True)
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


class _Target:
    """The folder that an archive is unpacked to, and what is allowed there."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.archive = archive
        self.folder = folder
        self.files = 0
        self.limit = min(
            MAX_CONTENT_BYTES,
            MAX_CONTENT_RATIO * archive.stat().st_size + CONTENT_SLACK_BYTES,
        )
        self._members = 0
        self._bytes = 0
        self._taken: dict[tuple[str, ...], bool] = {}
        """The names in use, and whether each is a file, as the most forgetful disk has them."""

    def refuse(self, what: str, expected: str) -> NoReturn:
        raise InputError(
            f"{self.archive} {what}",
            expected,
            "unpack it by hand if you trust it, and convert that",
        )

    def expect(self, size: int) -> None:
        """Count content of so many bytes, or refuse it: no more than this is read of it."""
        self._bytes += size
        if size < 0 or self._bytes > self.limit:
            self.refuse(f"unpacks to more than {self.limit} bytes, or says so", "weights")
        free = shutil.disk_usage(self.folder).free
        if size > free:
            raise InputError(
                f"{self.archive} has {size} bytes to unpack, and {self.folder} {free} free",
                "room for them",
                "set TMPDIR to a larger disk",
            )

    def place(self, name: str, is_file: bool) -> Path | None:
        """Where a member goes; None for what is left out.

        Raises:
            InputError: The name leads elsewhere, or is taken.
        """
        self._members += 1
        if self._members > MAX_MEMBERS:
            self.refuse(f"has more than {MAX_MEMBERS} members", "a checkpoint of few files")
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        strange = ".." in parts or set(name) & set("\\:\0\n\r") or len(parts) > _MAX_DEPTH
        if name.startswith("/") or strange:
            self.refuse(f"has a member named {name!r:.200}", "names inside the archive")
        if "__MACOSX" in parts or any(part.startswith("._") for part in parts):
            return None
        plain = tuple(unicodedata.normalize("NFKC", p).casefold().rstrip(". ") for p in parts)
        if is_file and (not parts or plain in self._taken):
            self.refuse(f"has {name!r:.200} twice", "each name once, whatever its case")
        folders = [plain[:end] for end in range(1, len(plain))]
        if any([self._taken.setdefault(folder, False) for folder in folders]) or (
            self._taken.setdefault(plain, is_file) and not is_file
        ):
            self.refuse(f"has {name!r:.200} where a file is", "files inside folders")
        return self.folder.joinpath(*parts)

    def write(self, place: Path, content: IO[bytes], size: int) -> None:
        """Write a file of exactly so many bytes."""
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as file:
            for chunk in _chunks(content, size):
                file.write(chunk)
        self.files += 1


def _chunks(content: IO[bytes], size: int) -> Iterator[bytes]:
    while chunk := content.read(min(_CHUNK, size)):
        yield chunk
        size -= len(chunk)
    if size:
        raise EOFError(f"{size} bytes are missing")


def _is_zip(path: Path) -> bool:
    return read_at(path, 0, len(_ZIP)) == _ZIP


def _zip_names(path: Path) -> list[str]:
    """The members of a zip; of one without its list at the end, the first alone."""
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return archive.namelist()
    head = read_at(path, 0, 30)
    return [read_at(path, 30, int.from_bytes(head[26:28], "little")).decode("utf-8", "replace")]


def _extract_zip(target: _Target) -> None:
    with zipfile.ZipFile(target.archive) as archive:
        places: list[tuple[zipfile.ZipInfo, Path]] = []
        for member in archive.infolist():
            name, kind = member.orig_filename, stat.S_IFMT(member.external_attr >> 16)
            if member.flag_bits & 1:
                target.refuse(f"has {name!r:.200} encrypted", "an archive without a password")
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                target.refuse(f"has {name!r:.200}, a link or device", "plain files")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # the library would unpack others in memory, whatever comes out
                target.refuse(f"has {name!r:.200} in a rare compression", "deflate")
            is_folder = member.filename.endswith("/")  # is_dir() fails for a name of nothing
            place = target.place(name, not is_folder)
            if place and not is_folder:
                places.append((member, place))
        target.expect(sum(member.file_size for member, _ in places))
        for member, place in places:
            with archive.open(member) as content:
                target.write(place, content, member.file_size)


def _extract_tar(target: _Target) -> None:
    with _decompressed(target.archive) as stream:
        meter = _Meter(stream, target)
        with tarfile.open(fileobj=meter, mode="r|", bufsize=20 * _TAR_BLOCK) as archive:
            for member in archive:
                if not (member.isreg() or member.isdir()) or member.issparse():
                    target.refuse(f"has {member.name!r:.200}, a link or device", "plain files")
                place = target.place(member.name, member.isreg())
                target.expect(member.size)
                meter.allow(member.size)
                content = archive.extractfile(member)
                if content and place:
                    target.write(place, content, member.size)
                elif content:
                    for _ in _chunks(content, member.size):
                        pass
                meter.allow(0)
            # tarfile takes a damaged header, or none, for the end
            if not meter.had_zeros(archive.offset):
                raise EOFError("a header is damaged, or the end is missing")
            while meter.read(_CHUNK):  # up to the checksum of the compression
                pass


class _Meter(io.RawIOBase):
    """What comes out of a compressed tar, and no more of it than was announced."""

    def __init__(self, stream: IO[bytes], target: _Target) -> None:
        self._stream = stream
        self._target = target
        self._total = 0
        self._last = b""
        self.allow(0)

    def allow(self, size: int) -> None:
        """Let so many bytes pass, and a header's."""
        self._allowed = self._total + size + _MAX_HEADER_BYTES

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._total += len(data)
        if data:
            self._last = data
        if self._total > self._allowed:
            self._target.refuse(
                f"has {_MAX_HEADER_BYTES} bytes outside files, at {self._total}", "files alone"
            )
        return data

    def had_zeros(self, offset: int) -> bool:
        """Whether the block at an offset, in what was read last, is the empty one of the end."""
        start = offset - (self._total - len(self._last))
        return start >= 0 and self._last[start : start + _TAR_BLOCK] == bytes(_TAR_BLOCK)


def _decompressed(path: Path) -> IO[bytes]:
    start = read_at(path, 0, 6)
    for signature, opener in _COMPRESSIONS.items():
        if start.startswith(signature):
            return opener(path)
    return path.open("rb")
