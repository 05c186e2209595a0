"""Archives that are damaged or far larger than they look: refused with nothing left behind."""

import gzip
import random
import shutil
import tarfile
import tracemalloc
import zipfile
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_bert_impl.conversion.readers import archive
from hf_bert_impl.conversion.readers.archive import is_archive, open_archive
from hf_bert_impl.errors import InputError
from tests.conversion.cases import COMPRESS, EDITS, FIXTURES, edited, tar, zipped

REAL = FIXTURES / "pytorch_pretrained_bert" / "bert-tiny.tar.gz"

# --- limits ----------------------------------------------------------------------------------


def test_too_many_members(make_zip, make_tar, refuse_archive, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_MEMBERS", 20)
    members = [(f"{number}", b"1") for number in range(21)]
    refuse_archive(make_zip(*members), "more than 20 members")
    refuse_archive(make_tar(*members), "more than 20 members")
    assert len(list(open_archive(make_tar(*members[1:]), tmp_path).iterdir())) == 20


def test_bombs(make_zip, make_tar, refuse_archive, monkeypatch):
    """Zeros shrink to a thousandth; xz and bzip2 make far more of it."""
    monkeypatch.setattr(archive, "CONTENT_SLACK_BYTES", 1 << 20)
    zeros = bytes(16 << 20)
    refuse_archive(make_zip(("bad", zeros)), "unpacks to more than")
    for kind in ("gz", "bz2", "xz"):
        refuse_archive(make_tar(("bad", zeros), kind=kind), "unpacks to more than")
    small = [(f"{number}", bytes(1 << 19)) for number in range(32)]
    refuse_archive(make_zip(*small), "unpacks to more than")
    for kind in ("gz", "bz2", "xz"):
        refuse_archive(make_tar(*small, kind=kind), "unpacks to more than")
    refuse_archive(make_tar(("._bad", zeros), ("good", b"1")), "unpacks to more than")
    monkeypatch.setattr(archive, "MAX_CONTENT_BYTES", 1000)
    refuse_archive(make_tar(("bad", bytes(1001)), kind="tar"), "more than 1000 bytes")
    refuse_archive(
        make_zip(("bad", bytes(1001)), method=zipfile.ZIP_STORED), "more than 1000 bytes"
    )


def test_many_names_for_one_content(make_zip, refuse_archive, monkeypatch):
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
    refuse_archive(path, "unpacks to more than")


def test_a_zip_that_swells_more_than_it_says(make_zip, refuse_archive):
    """No more is unpacked than the list says, and the checksum does not fit."""
    path = make_zip(("bad", bytes(1 << 20)))
    content = bytearray(path.read_bytes())
    for signature, place in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        at = content.rindex(signature) + place
        content[at : at + 4] = (100).to_bytes(4, "little")
    path.write_bytes(content)
    refuse_archive(path, "CRC")
    for signature, place in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        at = content.rindex(signature) + place
        content[at : at + 4] = ((1 << 20) + 1).to_bytes(4, "little")
    path.write_bytes(content)
    refuse_archive(path, "1 bytes are missing")


def test_a_header_that_swells(tmp_path, refuse_archive):
    """A name of 64 megabytes would be held in memory."""
    for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE):
        info = tarfile.TarInfo("long")
        info.type = kind
        info.size = 1 << 26
        path = tmp_path / "bad.tar.gz"
        packer = zlib.compressobj(wbits=31)
        content = packer.compress(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(64):
            content += packer.compress(b"1" * (1 << 20))
        path.write_bytes(content + packer.flush())
        tracemalloc.start()
        refuse_archive(path, "bytes outside files")
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
        tracemalloc.stop()


def test_more_behind_the_end(tmp_path, refuse_archive):
    path = tmp_path / "bad.tar.gz"
    path.write_bytes(gzip.compress(tar(("good", b"1")) + bytes(4 << 20)))
    refuse_archive(path, "bytes outside files")


def test_no_room_on_the_disk(make_zip, make_tar, refuse_archive, monkeypatch):
    free = shutil.disk_usage("/")._replace(free=5000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    refuse_archive(
        make_zip(("a", bytes(3000)), ("b", bytes(2001))), "5001 bytes to unpack, .* 5000 free"
    )
    refuse_archive(make_tar(("a", bytes(5001))), "5001 bytes to unpack, .* 5000 free")


# --- damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["zip", *COMPRESS])
def test_truncated(kind, make_zip, make_tar, refuse_archive):
    members = (("a", random.Random(0).randbytes(3000)), ("b/c", b"2" * 700), ("d", b""))
    path = make_zip(*members) if kind == "zip" else make_tar(*members, kind=kind)
    content = path.read_bytes()
    end = len(content)
    if kind == "tar":  # behind its three headers and contents come many zeros
        end = 512 + 3072 + 512 + 1024 + 512 + 511
    for cut in {*range(0, end, 61), *range(end - 40, end)}:
        path.write_bytes(content[:cut])
        refuse_archive(path)
        assert kind != "zip" or is_archive(path) == (cut > 30)


def test_flipped_bytes_of_a_real_one(tmp_path, refuse_archive):
    """The checksum of gzip shows every flip but those in its own header."""
    content, rng, path = REAL.read_bytes(), random.Random(0), tmp_path / "flipped.tar.gz"
    for _ in range(50):
        place = rng.randrange(30, len(content))
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        refuse_archive(path)


def test_a_damaged_header_is_not_the_end(make_tar, refuse_archive):
    """tarfile stops there without a word."""
    path = make_tar(("a", b"1"), ("b", b"2"), ("c", b"3"), kind="tar")
    content = bytearray(path.read_bytes())
    content[1024 + 20] ^= 1
    path.write_bytes(content)
    refuse_archive(path, "a header is damaged")


@pytest.mark.parametrize("size", [-1, -512, -(1 << 40), 1 << 40, 1 << 62])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_sizes_that_lie(size, kind, tmp_path, refuse_archive):
    info = tarfile.TarInfo("bad")
    info.type = kind
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    head[124:136] = (size % (1 << 96)).to_bytes(12, "big")
    head[124] |= 0x80
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    path = tmp_path / "bad.tar"
    path.write_bytes(tar(("good", b"1"))[:1024] + head + bytes(20_000))
    refuse_archive(path)


def test_pax_headers_that_lie(make_tar, refuse_archive):
    for key, value in (
        *(("size", "-5"), ("size", "9" * 5000), ("size", "x"), ("size", str(1 << 50))),
        *(("path", "../out"), ("path", ""), ("path", "a\0b"), ("GNU.sparse.map", "1,2,x")),
        ("GNU.sparse.size", "9" * 9000),
    ):
        info = tarfile.TarInfo("bad")
        info.pax_headers = {key: value}
        refuse_archive(make_tar((info, b"1" * 700), kind="tar", form=tarfile.PAX_FORMAT))


def test_headers_on_headers(tmp_path, refuse_archive):
    """tarfile calls itself for each header that goes before another."""
    info = tarfile.TarInfo("long")
    info.type = tarfile.GNUTYPE_LONGNAME
    info.size = 4
    one = info.tobuf(tarfile.GNU_FORMAT) + b"abc\0".ljust(512, b"\0")
    for count in (900, 5000):
        path = tmp_path / "bad.tar"
        path.write_bytes(one * count + tar(("good", b"1")))
        refuse_archive(path)


@settings(deadline=None, max_examples=200)
@given(edits=EDITS, kind=st.sampled_from(["zip", "tar", "gz"]))
def test_fuzz(edits, kind, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "fuzz"
    into = folder / "here" / "into"
    into.mkdir(parents=True, exist_ok=True)
    members = [("top/a", b"1" * 600), ("top/b", b"2"), ("top/c", b"")]
    content = zipped(*members) if kind == "zip" else tar(*members)[:4096]
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
