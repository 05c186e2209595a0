"""Pictures: refused before any work where they cannot be drawn, and whole where they appear."""

import sys

import pytest

from hf_bert_impl import figures
from hf_bert_impl.errors import InputError

pytest.importorskip("matplotlib", reason="pip install -e '.[train]'")


def test_pictures_that_cannot_be(tmp_path, monkeypatch):
    for name, words in (("a.gif", "a.gif. End its name"), ("none/a.png", "There is no folder")):
        with pytest.raises(InputError, match=words):
            figures.check_picture(tmp_path / name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"matplotlib.*pip install -e '\.\[train\]'"):
        figures.check_picture("a.svg")


@pytest.mark.parametrize(("ending", "signature"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_a_figure_in_every_format(tmp_path, ending, signature):
    figure, axes = figures.new_figure(3, 2, "costs $5 and $_6$", 2, 3)
    figures.plain(axes[1, 2])
    file = tmp_path / f"a.{ending}"
    figures.save(figure, file)
    assert file.read_bytes().startswith(signature)
    assert [*tmp_path.iterdir()] == [file]
