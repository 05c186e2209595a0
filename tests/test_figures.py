"""Pictures appear whole, in every format."""

import pytest

from hf_bert_impl import figures


@pytest.mark.parametrize(("ending", "signature"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_a_figure_in_every_format(tmp_path, ending, signature):
    figure, axes = figures.new_figure(3, 2, "costs $_{$", 2, 3)
    figures.plain(axes[1, 2])
    file = tmp_path / f"a.{ending}"
    figures.save(figure, file)
    assert file.read_bytes().startswith(signature)
    assert [*tmp_path.iterdir()] == [file]
