"""Fixtures of the tests of `hf-bert embed`."""

import pytest

from tests.cli.embed.cases import LINES


@pytest.fixture
def model(save_tiny):
    return save_tiny("BertModel")


@pytest.fixture
def lines(tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def output(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "vectors.npy"
