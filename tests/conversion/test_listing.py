"""What is in a checkpoint, listed without loading it."""

import torch
from safetensors.torch import save_file

from hf_bert_impl.conversion.listing import list_tensors
from tests.conversion.cases import FIXTURES, pack, reader


def test_every_tensor_and_what_it_becomes():
    found = list_tensors(FIXTURES / "tf1")
    assert (found["path"], found["problem"]) == (str(FIXTURES / "tf1"), None)
    assert (found["class"], found["format"]) == ("BertForPreTraining", "tf1")
    assert "google-research" in found["software"]
    assert found["numbers"] > 1000
    for file in found["files"]:
        assert (FIXTURES / "tf1" / file["name"]).stat().st_size == file["bytes"]
    becomes = {row["name"]: row["becomes"] for row in found["tensors"]}
    assert becomes["global_step"].startswith("(") and "step" in becomes["global_step"]
    assert becomes["bert/embeddings/word_embeddings"] == "bert.embeddings.word_embeddings.weight"
    with reader("tf1") as source:
        listed = {row["name"]: (tuple(row["shape"]), row["dtype"]) for row in found["tensors"]}
        assert listed == {one.name: (one.shape, one.dtype) for one in source.tensors.values()}
        assert found["container"] == source.software


def test_what_cannot_be_converted_is_listed_with_the_problem(tmp_path):
    save_file({"roberta.x.weight": torch.ones(3, 5)}, tmp_path / "model.safetensors")
    found = list_tensors(tmp_path / "model.safetensors")
    row = {"name": "roberta.x.weight", "shape": [3, 5], "dtype": "float32", "becomes": None}
    assert found["tensors"] == [row]
    assert "roberta.x.weight" in found["problem"]
    assert found["class"] is None


def test_an_archive_is_listed_with_the_sizes_of_its_files(tmp_path):
    content = (FIXTURES / "hf_safetensors/model.safetensors").read_bytes()
    archive = pack(tmp_path / "whole.zip", {"model.safetensors": content})
    found = list_tensors(archive)
    assert found["files"] == [{"name": "model.safetensors", "bytes": len(content)}]
    assert found["path"] == str(archive)
