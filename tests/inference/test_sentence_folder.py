"""Copies of the files that make a BERT a sentence-transformers model."""

import json

import pytest

from hf_bert_impl.inference.sentence_folder import copy_sentence_modules
from tests.inference.encoder_cases import names


def modules(*paths):
    return json.dumps([{"type": f"x.Kind{n}", "path": path} for n, path in enumerate(paths)])


@pytest.fixture
def source(tmp_path):
    source = tmp_path / "source"
    for path in (source / "1_Pooling", source / "heads/2_Dense", source / ".git"):
        path.mkdir(parents=True)
        (path / "config.json").write_text("{}")
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
    (source / "notes.txt").write_text("private")
    (tmp_path / "folder").mkdir()
    return source


def test_modules_come_along(source, tmp_path):
    folder = tmp_path / "folder"
    assert copy_sentence_modules(source, folder) == []
    paths = ("", "1_Pooling", "heads/2_Dense/", "3_Normalize", ".git")
    (source / "modules.json").write_text(modules(*paths))
    copied = copy_sentence_modules(source, folder)
    assert copied == ["modules.json", "sentence_bert_config.json", "1_Pooling/", "heads/2_Dense/"]
    # Neither other files nor hidden folders are copied.
    assert names(folder) == {
        *("modules.json", "sentence_bert_config.json"),
        *("1_Pooling/config.json", "heads/2_Dense/config.json"),
    }
    assert (folder / "modules.json").read_text() == modules(*paths)


@pytest.mark.parametrize("path", ["../folder", "/etc", "1_Pooling/../../folder"])
def test_what_lies_outside_is_refused(source, tmp_path, path):
    (source / "modules.json").write_text(modules("", path))
    with pytest.raises(ValueError, match="outside that folder"):
        copy_sentence_modules(source, tmp_path / "folder")
    assert names(tmp_path / "folder") == set()
