"""Archives of checkpoints are unpacked whole; files that only look like archives are left alone."""

import io
import os
import tarfile
import warnings

import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers import archive
from hf_bert_impl.conversion.readers.archive import is_archive, open_archive
from hf_bert_impl.errors import InputError
from tests.conversion.cases import FIXTURES, TARS, pack

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
        with tarfile.open(path, "w", format=form) as out:
            member = tarfile.TarInfo(name)
            member.size = 5
            out.addfile(member, io.BytesIO(b"12345"))
        assert tree(open_archive(path, tmp_path)) == {name.split("/")[1]: b"12345"}


def test_permissions_are_not_taken(tmp_path):
    path = tmp_path / "m.tar"
    with tarfile.open(path, "w") as out:
        member = tarfile.TarInfo("config.json")
        member.mode = 0o4777
        out.addfile(member)
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
        with archive._COMPRESSIONS[{"gz": b"\x1f\x8b", "bz2": b"BZh", "xz": b"\xfd7zXZ\x00"}[kind]](
            tmp_path / f"vocab.{kind}", "wb"
        ) as out:
            out.write(b"word\n" * 1000)
    paths = [*tmp_path.iterdir(), tmp_path, tmp_path / "nothing", tmp_path / ("x" * 5000)]
    assert [path.name for path in paths if is_archive(path)] == []


def test_no_archive(tmp_path):
    (tmp_path / "into").mkdir()
    (tmp_path / "text").write_text("words\n" * 500)
    for name in ("text", "nothing", "into"):
        with pytest.raises(InputError, match="cannot be unpacked"):
            open_archive(tmp_path / name, tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []
