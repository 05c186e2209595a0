"""Archives of checkpoints are unpacked whole, or refused with nothing left behind."""

import bz2
import gzip
import io
import lzma
import os
import random
import shutil
import stat
import tarfile
import tracemalloc
import warnings
import zipfile
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_bert_impl.conversion.readers import archive
from hf_bert_impl.conversion.readers.archive import is_archive, open_archive
from hf_bert_impl.errors import InputError
from tests.conversion.cases import EDITS, FIXTURES, TARS, edited, pack

REAL = FIXTURES / "pytorch_pretrained_bert" / "bert-tiny.tar.gz"
COMPRESS = {"tar": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def tar(*members, form=tarfile.GNU_FORMAT):
    """A tar of (name or TarInfo, content)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as out:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return file.getvalue()


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
@pytest.mark.parametrize("kind", ["zip", *TARS])
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


@pytest.mark.parametrize("kind", ["zip", *TARS])
def test_only_one_folder_is_taken_off(kind, tmp_path):
    files = {"a/b/config.json": b"{}", "a/b/inner.tar.gz": REAL.read_bytes()}
    folder = open_archive(pack(tmp_path / f"m.{kind}", files), tmp_path)
    assert tree(folder) == {"b/config.json": b"{}", "b/inner.tar.gz": REAL.read_bytes()}
    files = {"a/config.json": b"{}", "vocab.txt": b"x"}
    assert tree(open_archive(pack(tmp_path / f"m.{kind}", files), tmp_path)) == files
    files = {"config.json": b"{}"}
    assert tree(open_archive(pack(tmp_path / f"m.{kind}", files), tmp_path)) == files


@pytest.mark.parametrize("kind", ["zip", *TARS])
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


@pytest.fixture
def refuse(tmp_path):
    """Hold that an archive is refused in one line, and that nothing is written anywhere."""
    (tmp_path / "here" / "into").mkdir(parents=True)

    def refuse(path, match=None):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(InputError, match=match) as raised:
            open_archive(path, tmp_path / "here" / "into")
        message = str(raised.value)
        assert path.name in message
        assert "\n" not in message
        assert len(message) < 900
        assert sorted(tmp_path.rglob("*")) == before

    return refuse


@pytest.fixture
def make_zip(tmp_path):
    def make(*members, method=zipfile.ZIP_DEFLATED):
        path = tmp_path / "bad.zip"
        with zipfile.ZipFile(path, "w", method) as out:
            for member, content in members:
                out.writestr(member, content, method)
        return path

    return make


@pytest.fixture
def make_tar(tmp_path):
    def make(*members, kind="gz", **options):
        path = tmp_path / f"bad.tar.{kind}"
        path.write_bytes(COMPRESS[kind](tar(*members, **options)))
        return path

    return make


NAMES = ["../out", "a/../../out", "/out", "//out", "a/..", "C:out", "C:\\out", "..\\out", "a\\b"]
NAMES += ["a\nb", "a\rb", "/".join("a" * 40)]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_elsewhere(name, make_zip, make_tar, refuse):
    refuse(make_zip(("good", b"1"), (name, b"2")), "has a member named")
    refuse(make_tar(("good", b"1"), (name, b"2")), "has a member named")


@pytest.mark.parametrize("name", [b"a\0b", b"\0ab"])  # zipfile takes what stands before it
def test_names_with_a_zero(name, make_zip, refuse):
    path = make_zip(("good", b"1"), ("a_b", b"2"))
    path.write_bytes(path.read_bytes().replace(b"a_b", name))
    refuse(path, "has a member named")


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
def test_names_that_are_taken(names, make_zip, make_tar, refuse):
    refuse(make_zip(*((name, b"1") for name in names)), "twice|where a file is")
    members = []
    for name in names:
        info = tarfile.TarInfo(name.rstrip("/"))
        info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
        members.append((info, b"" if name.endswith("/") else b"1"))
    refuse(make_tar(*members), "twice|where a file is")


@pytest.mark.parametrize("kind", ["SYM", "LNK", "CHR", "BLK", "FIFO"])
def test_links_and_devices_in_a_tar(kind, make_tar, refuse):
    for target in ("/etc/passwd", "good", "../../out"):
        info = tarfile.TarInfo("bad")
        info.type = getattr(tarfile, f"{kind}TYPE")
        info.linkname = target
        refuse(make_tar(("good", b"1"), (info, b"")), "'bad', a link or device")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices_in_a_zip(kind, make_zip, refuse):
    info = zipfile.ZipInfo("bad")
    info.external_attr = (kind | 0o777) << 16
    refuse(make_zip(("good", b"1"), (info, b"/etc/passwd")), "'bad', a link or device")


def test_sparse_files(make_tar, refuse):
    info = tarfile.TarInfo("bad")
    info.type = tarfile.GNUTYPE_SPARSE
    refuse(make_tar(("good", b"1"), (info, b"1")), "a link or device")
    info = tarfile.TarInfo("bad")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
    info.pax_headers |= {"GNU.sparse.name": "x", "GNU.sparse.realsize": str(1 << 50)}
    content = b"1\n0\n5\n".ljust(512, b"\0") + b"12345"
    refuse(make_tar((info, content), form=tarfile.PAX_FORMAT), "a link or device")


def test_encrypted(make_zip, refuse):
    path = make_zip(("good", b"1"), ("bad", b"22"))
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\1\2") + 8] |= 1
    path.write_bytes(content)
    refuse(path, "'bad' encrypted")


def test_rare_compressions(make_zip, refuse):
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        refuse(make_zip(("bad", b"1" * 99), method=method), "rare compression")
    path = make_zip(("bad", b"22"))
    content = path.read_bytes()
    for method in (6, 9, 14, 97, 99):
        changed = bytearray(content)
        changed[content.rindex(b"PK\1\2") + 10] = method
        path.write_bytes(changed)
        refuse(path, "rare compression")


def test_nothing_inside(make_zip, make_tar, refuse):
    refuse(make_zip(("__MACOSX/x", b"1"), ("folder/", b"")), "has no files")
    refuse(make_tar(("__MACOSX/x", b"1")), "has no files")
    refuse(make_tar(), "has no files")


# --- limits ----------------------------------------------------------------------------------


def test_too_many_members(make_zip, make_tar, refuse, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_MEMBERS", 20)
    members = [(f"{number}", b"1") for number in range(21)]
    refuse(make_zip(*members), "more than 20 members")
    refuse(make_tar(*members), "more than 20 members")
    assert len(list(open_archive(make_tar(*members[1:]), tmp_path).iterdir())) == 20


def test_bombs(make_zip, make_tar, refuse, monkeypatch):
    """Zeros shrink to a thousandth; xz and bzip2 make far more of it."""
    monkeypatch.setattr(archive, "CONTENT_SLACK_BYTES", 1 << 20)
    zeros = bytes(16 << 20)
    refuse(make_zip(("bad", zeros)), "unpacks to more than")
    for kind in ("gz", "bz2", "xz"):
        refuse(make_tar(("bad", zeros), kind=kind), "unpacks to more than")
    small = [(f"{number}", bytes(1 << 19)) for number in range(32)]
    refuse(make_zip(*small), "unpacks to more than")
    for kind in ("gz", "bz2", "xz"):
        refuse(make_tar(*small, kind=kind), "unpacks to more than")
    refuse(make_tar(("._bad", zeros), ("good", b"1")), "unpacks to more than")
    monkeypatch.setattr(archive, "MAX_CONTENT_BYTES", 1000)
    refuse(make_tar(("bad", bytes(1001)), kind="tar"), "more than 1000 bytes")
    refuse(make_zip(("bad", bytes(1001)), method=zipfile.ZIP_STORED), "more than 1000 bytes")


def test_many_names_for_one_content(make_zip, refuse, monkeypatch):
    """A list whose members all lead to the same kilobytes: no ratio of one member shows it."""
    monkeypatch.setattr(archive, "CONTENT_SLACK_BYTES", 1 << 20)
    kernel = random.Random(0).randbytes(4000) + bytes(400_000)
    path = make_zip(("0000", kernel))
    content = path.read_bytes()
    start, end = content.index(b"PK\1\2"), content.index(b"PK\5\6")
    entries = [content[start:end].replace(b"0000", b"%04d" % n) for n in range(90)]
    tail = bytearray(content[end:])
    tail[8:12] = (len(entries)).to_bytes(2, "little") * 2
    tail[12:16] = sum(map(len, entries)).to_bytes(4, "little")
    path.write_bytes(content[:start] + b"".join(entries) + tail)
    refuse(path, "unpacks to more than")


def test_a_zip_that_swells_more_than_it_says(make_zip, refuse):
    """No more is unpacked than the list says, and the checksum does not fit."""
    path = make_zip(("bad", bytes(1 << 20)))
    content = bytearray(path.read_bytes())
    for signature, place in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        at = content.rindex(signature) + place
        content[at : at + 4] = (100).to_bytes(4, "little")
    path.write_bytes(content)
    refuse(path, "CRC")
    for signature, place in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        at = content.rindex(signature) + place
        content[at : at + 4] = ((1 << 20) + 1).to_bytes(4, "little")
    path.write_bytes(content)
    refuse(path, "1 bytes are missing")


def test_a_header_that_swells(tmp_path, refuse):
    """A name of a quarter of a gigabyte would be held in memory."""
    for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE):
        info = tarfile.TarInfo("long")
        info.type = kind
        info.size = 1 << 28
        path = tmp_path / "bad.tar.gz"
        packer = zlib.compressobj(wbits=31)
        content = packer.compress(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(256):
            content += packer.compress(b"1" * (1 << 20))
        path.write_bytes(content + packer.flush())
        tracemalloc.start()
        refuse(path, "bytes outside files")
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
        tracemalloc.stop()


def test_more_behind_the_end(tmp_path, refuse):
    path = tmp_path / "bad.tar.gz"
    path.write_bytes(gzip.compress(tar(("good", b"1")) + bytes(4 << 20)))
    refuse(path, "bytes outside files")


def test_no_room_on_the_disk(make_zip, make_tar, refuse, monkeypatch):
    free = shutil.disk_usage("/")._replace(free=5000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    refuse(make_zip(("a", bytes(3000)), ("b", bytes(2001))), "5001 bytes to unpack, .* 5000 free")
    refuse(make_tar(("a", bytes(5001))), "5001 bytes to unpack, .* 5000 free")


# --- damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["zip", *COMPRESS])
def test_truncated(kind, make_zip, make_tar, refuse):
    members = (("a", random.Random(0).randbytes(3000)), ("b/c", b"2" * 700), ("d", b""))
    path = make_zip(*members) if kind == "zip" else make_tar(*members, kind=kind)
    content = path.read_bytes()
    end = len(content)
    if kind == "tar":  # behind its three headers and contents come many zeros
        end = 512 + 3072 + 512 + 1024 + 512 + 511
    for cut in {*range(0, end, 61), *range(end - 40, end)}:
        path.write_bytes(content[:cut])
        refuse(path)
        assert kind != "zip" or is_archive(path) == (cut > 30)


def test_flipped_bytes_of_a_real_one(tmp_path, refuse):
    """The checksum of gzip shows every flip but those in its own header."""
    content, rng, path = REAL.read_bytes(), random.Random(0), tmp_path / "flipped.tar.gz"
    for _ in range(50):
        place = rng.randrange(30, len(content))
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        refuse(path)


def test_a_damaged_header_is_not_the_end(make_tar, refuse):
    """tarfile stops there without a word."""
    path = make_tar(("a", b"1"), ("b", b"2"), ("c", b"3"), kind="tar")
    content = bytearray(path.read_bytes())
    content[1024 + 20] ^= 1
    path.write_bytes(content)
    refuse(path, "a header is damaged")


@pytest.mark.parametrize("size", [-1, -512, -(1 << 40), 1 << 40, 1 << 62])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_sizes_that_lie(size, kind, tmp_path, refuse):
    info = tarfile.TarInfo("bad")
    info.type = kind
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    head[124:136] = (size % (1 << 96)).to_bytes(12, "big")
    head[124] |= 0x80
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    path = tmp_path / "bad.tar"
    path.write_bytes(tar(("good", b"1"))[:1024] + head + bytes(20_000))
    refuse(path)


def test_pax_headers_that_lie(make_tar, refuse):
    for key, value in (
        *(("size", "-5"), ("size", "9" * 5000), ("size", "x"), ("size", str(1 << 50))),
        *(("path", "../out"), ("path", ""), ("path", "a\0b"), ("GNU.sparse.map", "1,2,x")),
        ("GNU.sparse.size", "9" * 9000),
    ):
        info = tarfile.TarInfo("bad")
        info.pax_headers = {key: value}
        refuse(make_tar((info, b"1" * 700), kind="tar", form=tarfile.PAX_FORMAT))


def test_headers_on_headers(tmp_path, refuse):
    """tarfile calls itself for each header that goes before another."""
    info = tarfile.TarInfo("long")
    info.type = tarfile.GNUTYPE_LONGNAME
    info.size = 4
    one = info.tobuf(tarfile.GNU_FORMAT) + b"abc\0".ljust(512, b"\0")
    for count in (900, 5000):
        path = tmp_path / "bad.tar"
        path.write_bytes(one * count + tar(("good", b"1")))
        refuse(path)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(edits=EDITS, kind=st.sampled_from(["zip", "tar", "gz"]))
def test_fuzz(edits, kind, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "fuzz"
    into = folder / "here" / "into"
    into.mkdir(parents=True, exist_ok=True)
    members = [("top/a", b"1" * 600), ("top/b", b"2"), ("top/c", b"")]
    if kind == "zip":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
            for name, text in members:
                out.writestr(name, text)
        content = file.getvalue()
    else:
        content = tar(*members)[:4096]
    content = edited(content, edits)
    path = folder / "fuzz.archive"
    path.write_bytes(gzip.compress(content) if kind == "gz" else content)
    is_archive(path)
    try:
        open_archive(path, into)
    except InputError as error:
        assert "\n" not in str(error)
        assert list(into.iterdir()) == []
    for made in into.iterdir():
        shutil.rmtree(made)
    assert sorted(p.name for p in folder.iterdir()) == ["fuzz.archive", "here"]
    assert sorted(p.name for p in into.parent.iterdir()) == ["into"]
