"""The index of a checkpoint in several files names files of its folder, or is refused."""

import json
import os

import pytest

from hf_bert_impl.conversion.readers.sharded import read_shard_index, shards_of
from tests.conversion.cases import refused


@pytest.fixture
def folder(tmp_path):
    """Two shards and a secret: `inside/{one,two}.bin` and `outside.bin`."""
    (tmp_path / "inside" / "folder").mkdir(parents=True)
    (tmp_path / "inside" / "one.bin").write_bytes(b"1")
    (tmp_path / "inside" / "two.bin").write_bytes(b"2")
    (tmp_path / "inside" / "away.bin").symlink_to(tmp_path / "outside.bin")
    (tmp_path / "inside" / "circle").symlink_to("circle")
    os.mkfifo(tmp_path / "inside" / "pipe")
    (tmp_path / "outside.bin").write_bytes(b"secret")
    return tmp_path / "inside"


def write(folder, content):
    path = folder / "model.bin.index.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def refuse(path, match):
    line = refused(lambda: read_shard_index(path), match)
    assert path.name in line or path.parent.name in line


def test_files_once_by_name(folder):
    (folder / "link.bin").symlink_to("one.bin")
    weight_map = {"b": "two.bin", "a": "one.bin", "c": "two.bin", "d": "link.bin"}
    found = read_shard_index(write(folder, {"weight_map": weight_map}))
    assert found == {name: folder / file for name, file in weight_map.items()}
    assert list(found) == ["b", "a", "c", "d"]


NAMES = {
    "which is no plain name": (
        *("", "..", "../outside.bin", "/etc/passwd", "a/one.bin", "./one.bin", "..\\one.bin"),
        *("C:one.bin", "one.bin\0", "one.bin\n"),
    ),
    "which does not exist": ("three.bin", "x" * 5000, "\udc80.bin", "folder", "pipe", "circle"),
    "is a link to another folder": ("away.bin",),
}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"\xff\xfe{}", "a damaged"),
        (b"[" * 200_000, "a damaged"),
        (b'{"metadata": {"total_size": ' + b"9" * 6000 + b"}}", "a damaged"),
        (b'{"weight_map": {"a": "one.bin", "a": "two.bin"}}', "'a' twice"),
        (b'{"weight_map": {"a": "one.bin"}, "weight_map": {}}', "'weight_map' twice"),
        ([], "no weight_map"),
        ({"weight_map": {}}, "no weight_map"),
        ({"weight_map": ["one.bin"]}, "no weight_map"),
        ({"weight_map": {"a": 5}}, "maps 'a' to 5"),
        *(
            ({"weight_map": {"a": "one.bin", "b": name}}, match)
            for match, names in NAMES.items()
            for name in names
        ),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_what_is_refused(folder, content, match):
    refuse(write(folder, content), match)


def test_hub_cache(folder):
    """There every file of a revision is a link into blobs/, the index too."""
    blobs, revision = folder / "blobs", folder / "snapshots" / "0a1b"
    blobs.mkdir()
    revision.mkdir(parents=True)
    (blobs / "5e").write_bytes(b"1")
    (blobs / "6f").write_text(json.dumps({"weight_map": {"a": "one.bin"}}))
    (revision / "one.bin").symlink_to("../../blobs/5e")
    (revision / "model.bin.index.json").symlink_to("../../blobs/6f")
    assert shards_of(revision / "model.bin.index.json") == [revision / "one.bin"]
    (revision / "one.bin").unlink()
    (revision / "one.bin").symlink_to(folder.parent / "outside.bin")
    refuse(revision / "model.bin.index.json", "is a link to another folder")
