"""notebooks/lessons: unreadable pictures are refused, and small runs change nothing in git."""

from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"

pytest.importorskip("matplotlib")


@pytest.fixture
def figures(monkeypatch, tmp_path):
    import matplotlib

    matplotlib.use("Agg")
    from lessons import figures

    monkeypatch.setattr(figures, "FOLDER", tmp_path / "pictures")
    return figures


def picture(title="", x="", y=""):
    from matplotlib.figure import Figure

    figure = Figure()
    axis = figure.subplots()
    axis.set(title=title, xlabel=x, ylabel=y)
    return figure


def test_a_full_picture_is_saved(figures):
    figures.save(picture("loss", "step", "nats"), "00_loss")
    assert (figures.FOLDER / "00_loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("missing", [{"title": ""}, {"x": ""}, {"y": ""}])
def test_what_is_not_named_is_refused(figures, missing):
    with pytest.raises(ValueError, match=r"has no title|without a name"):
        figures.save(picture(**({"title": "t", "x": "x", "y": "y"} | missing)), "00_loss")
    assert not figures.FOLDER.exists()


def test_a_letter_without_a_font_is_refused(figures):
    with pytest.raises(ValueError, match="empty box"):
        figures.save(picture("\U0001f9a9", "step", "nats"), "00_loss")


def test_a_title_that_does_not_fit_is_refused(figures):
    with pytest.raises(ValueError, match="cuts off"):
        figures.save(picture("how the loss fell " * 9, "step", "nats"), "00_loss")
    from matplotlib.figure import Figure

    figure = Figure()
    for axis in figure.subplots(1, 2):
        axis.set(title="how the loss fell in " * 2, xlabel="step", ylabel="nats")
    with pytest.raises(ValueError, match=r"run into each other|cuts off"):
        figures.save(figure, "00_loss")
    assert not figures.FOLDER.exists()


def test_chinese_is_drawn(figures):
    pytest.importorskip("pylopdf_fonts_zh_cn")
    figures.save(picture("他们在学校", "step", "nats"), "00_loss")
    assert (figures.FOLDER / "00_loss.png").is_file()


def test_only_full_runs_on_real_data_write_into_git(figures, monkeypatch):
    from lessons import settings

    monkeypatch.setattr(settings, "SMALL", False)
    monkeypatch.setenv("HF_BERT_DATA", "/data")
    assert figures.folder() == NOTEBOOKS / "figures"
    monkeypatch.setattr(settings, "SMALL", True)
    assert not figures.folder().is_relative_to(NOTEBOOKS)
    monkeypatch.setattr(settings, "SMALL", False)
    monkeypatch.setenv("HF_BERT_DATA", "")
    assert not figures.folder().is_relative_to(NOTEBOOKS)


def test_the_size_of_a_run_is_one_of_two(monkeypatch):
    from lessons import settings

    for named, small in (("small", True), ("full", False), ("", False)):
        monkeypatch.setenv("HF_BERT_NOTEBOOKS", named)
        assert settings.is_small() is small
    monkeypatch.setenv("HF_BERT_NOTEBOOKS", "tiny")
    with pytest.raises(ValueError, match="expected 'small' or 'full'"):
        settings.is_small()
    monkeypatch.setattr(settings, "SMALL", True)
    assert settings.choose(full=1, small=2) == 2
