"""Archives of checkpoints are unpacked whole, or refused with nothing left behind."""

import os
import stat
import tarfile
import warnings
import zipfile

import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers.archive import is_archive, open_archive
from hf_bert_impl.errors import InputError
from tests.conversion.cases import ARCHIVES, COMPRESS, FIXTURES, pack, tar

REAL = FIXTURES / "pytorch_pretrained_bert" / "bert-tiny.tar.gz"


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


CONTENT = {
    "bert_config.json": b"{}",
    "bert_model.ckpt.index": bytes(range(256)) * 300,
    "bert_model.ckpt.data-00000-of-00001": np.random.default_rng(0).bytes(123_457),
    "vocab.txt": "[PAD]\nžluť\n".encode(),
    "empty": b"",
}


def test_a_real_one(tmp_path):
    """Its names begin with "./", and there is no folder around them."""
    assert is_archive(REAL)
    folder = open_archive(REAL, tmp_path)
    assert folder.parent == tmp_path
    expected = {name: (REAL.parent / name).read_bytes() for name in tree(folder)}
    assert set(expected) == {"bert_config.json", "pytorch_model.bin"}
    assert tree(folder) == expected


@pytest.mark.parametrize("top", ["", "./", "uncased_L-2_H-128_A-2/", "./cased//", "one/"])
@pytest.mark.parametrize("kind", ARCHIVES)
def test_kinds(kind, top, tmp_path):
    files = {top + name: content for name, content in CONTENT.items()}
    if top.endswith("2/"):
        files = {top.rstrip("/"): None} | files
    path = pack(tmp_path / f"model.{kind}", files)
    assert is_archive(path)
    (tmp_path / "into").mkdir()
    folder = open_archive(path, tmp_path / "into")
    assert tree(folder) == CONTENT
    assert (tmp_path / "into") in folder.parents
    assert folder.name == (top.strip("./") or folder.name)
    os.rename(path, tmp_path / "no name that says it")
    assert is_archive(tmp_path / "no name that says it")


@pytest.mark.parametrize("kind", ARCHIVES)
def test_only_one_folder_is_taken_off(kind, tmp_path):
    files = {"a/b/config.json": b"{}", "a/b/inner.tar.gz": REAL.read_bytes()}
    folder = open_archive(pack(tmp_path / f"m.{kind}", files), tmp_path)
    assert tree(folder) == {"b/config.json": b"{}", "b/inner.tar.gz": REAL.read_bytes()}
    files = {"a/config.json": b"{}", "vocab.txt": b"x"}
    assert tree(open_archive(pack(tmp_path / f"m.{kind}", files), tmp_path)) == files
    files = {"config.json": b"{}"}
    assert tree(open_archive(pack(tmp_path / f"m.{kind}", files), tmp_path)) == files


@pytest.mark.parametrize("kind", ARCHIVES)
def test_what_macos_adds_is_left_out(kind, tmp_path):
    files = {
        "__MACOSX/model/._config.json": b"\0\5\x16\7" * 9,
        "model/._config.json": b"\0\5\x16\7" * 9000,
        "model/config.json": b"{}",
    }
    folder = open_archive(pack(tmp_path / f"m.{kind}", files), tmp_path)
    assert folder.name == "model"
    assert tree(folder) == {"config.json": b"{}"}


def test_long_names(tmp_path):
    """They come in headers of their own, by two conventions."""
    name = f"{'folder' * 30}/{'name' * 40}.json"
    for number, form in enumerate((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        path = tmp_path / f"{number}.tar"
        path.write_bytes(tar((name, b"12345"), form=form))
        assert tree(open_archive(path, tmp_path)) == {name.split("/")[1]: b"12345"}


def test_permissions_are_not_taken(tmp_path):
    path = tmp_path / "m.tar"
    member = tarfile.TarInfo("config.json")
    member.mode = 0o4777
    path.write_bytes(tar((member, b"")))
    mode = (open_archive(path, tmp_path) / "config.json").stat().st_mode
    assert mode & 0o7111 == 0


def test_other_files_are_no_archives(tmp_path):
    assert {path for path in FIXTURES.rglob("*") if is_archive(path)} == {REAL}
    torch.save({"a": torch.arange(3)}, tmp_path / "model.bin")
    torch.save({"a": torch.arange(3)}, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    np.savez(tmp_path / "arrays.npz", a=np.arange(3), b=np.arange(4))
    np.savez_compressed(tmp_path / "compressed.npz", a=np.arange(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(torch.nn.Linear(2, 3)).save(tmp_path / "script.pt")
    for name in ("model.bin", "arrays.npz"):  # without their end, too
        content = (tmp_path / name).read_bytes()
        (tmp_path / f"cut {name}").write_bytes(content[: len(content) // 2])
    (tmp_path / "zeros").write_bytes(bytes(2000))
    (tmp_path / "empty").touch()
    (tmp_path / "two").write_bytes(b"\x1f\x8b")
    os.mkfifo(tmp_path / "pipe")
    for kind in ("gz", "bz2", "xz"):
        (tmp_path / f"vocab.{kind}").write_bytes(COMPRESS[kind](b"word\n" * 1000))
    paths = [*tmp_path.iterdir(), tmp_path, tmp_path / "nothing", tmp_path / ("x" * 5000)]
    assert [path.name for path in paths if is_archive(path)] == []


def test_no_archive(tmp_path):
    (tmp_path / "into").mkdir()
    (tmp_path / "text").write_text("words\n" * 500)
    for name in ("text", "nothing", "into"):
        with pytest.raises(InputError, match="cannot be unpacked"):
            open_archive(tmp_path / name, tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


# --- what leads elsewhere --------------------------------------------------------------------


NAMES = ["../out", "a/../../out", "/out", "//out", "a/..", "C:out", "C:\\out", "..\\out", "a\\b"]
NAMES += ["a\nb", "a\rb", "/".join("a" * 40)]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_elsewhere(name, make_zip, make_tar, refuse_archive):
    refuse_archive(make_zip(("good", b"1"), (name, b"2")), "has a member named")
    refuse_archive(make_tar(("good", b"1"), (name, b"2")), "has a member named")


@pytest.mark.parametrize("name", [b"a\0b", b"\0ab"])  # zipfile takes what stands before it
def test_names_with_a_zero(name, make_zip, refuse_archive):
    path = make_zip(("good", b"1"), ("a_b", b"2"))
    path.write_bytes(path.read_bytes().replace(b"a_b", name))
    refuse_archive(path, "has a member named")


@pytest.mark.parametrize(
    "names",
    [
        *(["a", "a"], ["a", "A"], ["a/b", "a//b"], ["a/b", "./a/./b"], ["Straße", "STRASSE"]),
        *(["ﬁle", "file"], ["é", "e\u0301"], ["a", "a."], ["a", "a "], ["a/", "a"]),
        *(["a", "a/b"], ["a/b", "a"], ["A", "a/b"], ["."]),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_are_taken(names, make_zip, make_tar, refuse_archive):
    refuse_archive(make_zip(*((name, b"1") for name in names)), "twice|where a file is")
    members = []
    for name in names:
        info = tarfile.TarInfo(name.rstrip("/"))
        info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
        members.append((info, b"" if name.endswith("/") else b"1"))
    refuse_archive(make_tar(*members), "twice|where a file is")


@pytest.mark.parametrize("kind", ["SYM", "LNK", "CHR", "BLK", "FIFO"])
def test_links_and_devices_in_a_tar(kind, make_tar, refuse_archive):
    for target in ("/etc/passwd", "good", "../../out"):
        info = tarfile.TarInfo("bad")
        info.type = getattr(tarfile, f"{kind}TYPE")
        info.linkname = target
        refuse_archive(make_tar(("good", b"1"), (info, b"")), "'bad', a link or device")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices_in_a_zip(kind, make_zip, refuse_archive):
    info = zipfile.ZipInfo("bad")
    info.external_attr = (kind | 0o777) << 16
    refuse_archive(make_zip(("good", b"1"), (info, b"/etc/passwd")), "'bad', a link or device")


def test_sparse_files(make_tar, refuse_archive):
    info = tarfile.TarInfo("bad")
    info.type = tarfile.GNUTYPE_SPARSE
    refuse_archive(make_tar(("good", b"1"), (info, b"1")), "a link or device")
    info = tarfile.TarInfo("bad")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
    info.pax_headers |= {"GNU.sparse.name": "x", "GNU.sparse.realsize": str(1 << 50)}
    content = b"1\n0\n5\n".ljust(512, b"\0") + b"12345"
    refuse_archive(make_tar((info, content), form=tarfile.PAX_FORMAT), "a link or device")


def test_encrypted(make_zip, refuse_archive):
    path = make_zip(("good", b"1"), ("bad", b"22"))
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\1\2") + 8] |= 1
    path.write_bytes(content)
    refuse_archive(path, "'bad' encrypted")


def test_rare_compressions(make_zip, refuse_archive):
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        refuse_archive(make_zip(("bad", b"1" * 99), method=method), "rare compression")
    path = make_zip(("bad", b"22"))
    content = path.read_bytes()
    for method in (6, 9, 14, 97, 99):
        changed = bytearray(content)
        changed[content.rindex(b"PK\1\2") + 10] = method
        path.write_bytes(changed)
        refuse_archive(path, "rare compression")


def test_nothing_inside(make_zip, make_tar, refuse_archive):
    refuse_archive(make_zip(("__MACOSX/x", b"1"), ("folder/", b"")), "has no files")
    refuse_archive(make_tar(("__MACOSX/x", b"1")), "has no files")
    refuse_archive(make_tar(), "has no files")
