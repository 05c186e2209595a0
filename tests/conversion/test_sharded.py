"""The index of a checkpoint in several files. test_damages has what is refused."""

import json

import pytest

from hf_bert_impl.conversion.readers.sharded import read_shard_index, shards_of
from tests.conversion.cases import refused


@pytest.fixture
def folder(tmp_path):
    """Two shards and a secret: `inside/{one,two}.bin` and `outside.bin`."""
    (tmp_path / "inside").mkdir()
    for name in ("inside/one.bin", "inside/two.bin", "outside.bin"):
        (tmp_path / name).write_bytes(b"1")
    return tmp_path / "inside"


def test_files_once_by_name(folder):
    (folder / "link.bin").symlink_to("one.bin")
    weight_map = {"b": "two.bin", "a": "one.bin", "c": "two.bin", "d": "link.bin"}
    index = folder / "model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    found = read_shard_index(index)
    assert found == {name: folder / file for name, file in weight_map.items()}
    assert list(found) == ["b", "a", "c", "d"]


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
    refused(lambda: shards_of(revision / "model.bin.index.json"), "is a link to another folder")
