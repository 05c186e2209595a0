"""Archives of checkpoints are unpacked whole, or refused without a trace."""

import gzip
import os
import random
import stat
import tarfile
import zipfile

import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers import archive, mapped
from hf_bert_impl.conversion.readers.archive import is_archive, open_archive
from tests.conversion.cases import ARCHIVES, FIXTURES, pack, refused, tar, zipped

REAL = FIXTURES / "pytorch_pretrained_bert" / "bert-tiny.tar.gz"
ZEROS = bytes(4 << 20)


@pytest.fixture
def refuse(tmp_path):
    """Check that an archive is refused in one line, and no file is written."""
    (tmp_path / "here" / "into").mkdir(parents=True)

    def refuse(content, match=None):
        path = tmp_path / "bad.archive"
        path.write_bytes(content)
        assert path.name in refused(lambda: open_archive(path, tmp_path / "here/into"), match)
        assert sorted(tmp_path.rglob("*")) == [path, tmp_path / "here", tmp_path / "here" / "into"]

    return refuse


# --- whole ones ------------------------------------------------------------------------------

CONTENT = {
    "bert_model.ckpt.data-00000-of-00001": np.random.default_rng(0).bytes(123_457),
    "vocab.txt": "[PAD]\nžluť\n".encode(),
    "empty": b"",
}


@pytest.mark.parametrize("top", ["", "./", "uncased_L-2_H-128_A-2/", "./cased//"])
@pytest.mark.parametrize("kind", ARCHIVES)
def test_kinds(kind, top, tmp_path):
    """A single folder around all files is removed, and files of macOS are skipped."""
    files = {top + name: content for name, content in CONTENT.items()}
    if top.endswith("2/"):
        mac = {"__MACOSX/x": b"\0\5\x16\7" * 9, f"{top}._config.json": b"\0\5\x16\7" * 9000}
        files = {top.rstrip("/"): None} | mac | files
    path = pack(tmp_path / f"model.{kind}", files)
    (tmp_path / "into").mkdir()
    folder = open_archive(path, tmp_path / "into")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == CONTENT
    assert (tmp_path / "into") in folder.parents
    assert folder.name == (top.strip("./") or folder.name)
    os.rename(path, tmp_path / "no name that says it")
    assert is_archive(tmp_path / "no name that says it")


def test_other_files_are_no_archives(tmp_path):
    torch.save({"a": torch.arange(3)}, tmp_path / "model.bin")
    np.savez_compressed(tmp_path / "arrays.npz", a=np.arange(3))
    for name in ("model.bin", "arrays.npz"):  # without their end, too
        content = (tmp_path / name).read_bytes()
        (tmp_path / f"cut {name}").write_bytes(content[: len(content) // 2])
    (tmp_path / "zeros").write_bytes(bytes(2000))
    (tmp_path / "vocab.gz").write_bytes(gzip.compress(b"word\n" * 1000))
    os.mkfifo(tmp_path / "pipe")
    paths = [*tmp_path.iterdir(), tmp_path, *FIXTURES.rglob("*")]
    assert [path for path in paths if is_archive(path)] == [REAL]


# --- hostile ones ----------------------------------------------------------------------------

ELSEWHERE = ["../out", "a/../../out", "/out", "//out", "a/..", "C:out", "C:\\out", "..\\out"]
ELSEWHERE += ["a\\b", "a\nb", "a\rb", "/".join("a" * 40)]
#: Duplicate names, or one for a file and a folder.
TAKEN = [["a", "a"], ["a/b", "./a//b"], ["a/", "a"], ["a", "a/b"], ["a/b", "a"], ["."]]
PACKED = {"tar": tar, "zip": zipped}


def members(names):
    """A name that ends in a slash is a folder."""
    return [(name.rstrip("/"), None if name.endswith("/") else b"1") for name in names]


def tar_member(content=b"", form=tarfile.GNU_FORMAT, **fields):
    """A tar with one member as it should not be."""
    info = tarfile.TarInfo("bad")
    for field, value in fields.items():
        setattr(info, field, value)
    return tar(("good", b"1"), (info, content), form=form)


LINK = zipfile.ZipInfo("bad")
LINK.external_attr = (stat.S_IFLNK | 0o777) << 16


#: A zip whose list says that its file is encrypted.
PLAIN, ENCRYPTED = (b"PK\1\2\x14\3\x14\0" + flag for flag in (b"\0", b"\1"))
LOCKED = zipped(("bad", b"22")).replace(PLAIN, ENCRYPTED)
SWELLS, DEVICE = "unpacks to more files or bytes", "'bad' is a link"
HOSTILE = {
    **{
        f"{kind} named {name[:20]!r}": (make(("good", b"1"), (name, b"2")), "no plain path")
        for kind, make in PACKED.items()
        for name in ELSEWHERE
    },
    **{
        f"{kind} {names}": (make(*members(names)), "twice|no plain path|damaged")
        for kind, make in PACKED.items()
        for names in TAKEN
    },
    **{
        f"tar {kind.decode()}": (tar_member(type=kind, linkname="../../out"), DEVICE)
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)
    },
    "tar sparse": (tar_member(b"1", type=tarfile.GNUTYPE_SPARSE), "a link or a device"),
    "zip link": (zipped(("good", b"1"), (LINK, b"/etc/passwd")), DEVICE),
    "zero in a name": (  # zipfile takes what stands before it
        zipped(("good", b"1"), ("a_b", b"2")).replace(b"a_b", b"a\0b"),
        "which is no plain path",
    ),
    "encrypted": (LOCKED, DEVICE),
    "bzip2": (zipped(("bad", b"1" * 99), method=zipfile.ZIP_BZIP2), "of a rare compression"),
    "no files in a tar": (tar(("__MACOSX/x", b"1")), "has no files"),
    "many in a zip": (zipped(*((f"{n}", b"1") for n in range(41))), SWELLS),
    "zip bomb": (zipped(("bad", ZEROS)), SWELLS),
    "bomb behind the end": (gzip.compress(tar(("good", b"1")) + ZEROS), SWELLS),
    "left out bomb": (gzip.compress(tar(("._bad", ZEROS), ("good", b"1"))), SWELLS),
    "pax path": (tar_member(b"1", tarfile.PAX_FORMAT, pax_headers={"path": "../out"}), None),
}


@pytest.mark.parametrize(("content", "match"), HOSTILE.values(), ids=HOSTILE)
def test_hostile(content, match, refuse, monkeypatch):
    monkeypatch.setattr(archive, "_MAX_MEMBERS", 40)
    if match == SWELLS:  # zeros shrink to a thousandth
        monkeypatch.setattr(mapped, "_SLACK_BYTES", 1 << 20)
    refuse(content, match)


@pytest.mark.parametrize("kind", [kind for kind in ARCHIVES if kind != "tar"])
def test_truncated(kind, tmp_path, refuse):
    files = {"a": random.Random(0).randbytes(3000), "b/c": b"2" * 700, "d": b""}
    path = pack(tmp_path / f"good.{kind}", files)
    content, end = path.read_bytes(), path.stat().st_size
    path.unlink()
    for cut in {*range(0, end, 151), *range(end - 10, end)}:
        refuse(content[:cut])
