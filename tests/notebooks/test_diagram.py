"""notebooks/lessons/diagram.py: where arrows meet boxes, and what is written."""

import pytest

pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def without_a_screen():
    import matplotlib

    matplotlib.use("Agg")


def texts(diagram):
    return [text.get_text() for text in diagram.figure.axes[0].texts if text.get_text()]


def test_arrows_meet_the_sides_that_face_each_other():
    from lessons.diagram import Box

    low, high, beside = Box(1, 1, 2, 1), Box(3, 4, 1, 0.5), Box(5, 1.2, 1, 1)
    assert low.edge(high) == (1, 1.5)
    assert high.edge(low) == (3, 3.75)
    assert low.edge(beside) == (2, 1)
    assert beside.edge(low) == (4.5, 1.2)
    assert low.edge(high, sideways=True) == (2, 1)


def test_a_drawing_has_what_was_asked_for(monkeypatch, tmp_path):
    from lessons import figures
    from lessons.diagram import Diagram

    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    drawing = Diagram(2.5, "A title")
    box = drawing.box(1, 0.5, "read", width=1.2, fill="green")
    table = drawing.matrix(4, 1.5, [[0.126, 2], [3, 4], [5, -6]], "Q, (3, 2)")
    drawing.arrow(box, table)
    drawing.path([(0.1, 0.1), (0.1, 2), (2, 2)])
    assert (table.width, table.height) == (pytest.approx(0.92), pytest.approx(0.9))
    numbers = ["0.13", "2.00", "3.00", "4.00", "5.00", "-6.00"]
    assert texts(drawing) == ["read", *numbers, "Q, (3, 2)"]
    figures.save(drawing.figure, "00_drawing")
    assert (tmp_path / "00_drawing.png").is_file()


def test_an_unknown_fill_is_refused():
    from lessons.diagram import Diagram

    with pytest.raises(KeyError):
        Diagram(1, "A title").box(1, 0.5, "read", fill="pink")


def test_a_chain_has_an_arrow_from_each_box_to_the_next(monkeypatch):
    from lessons.diagram import Diagram

    drawing, drawn = Diagram(3.0, "A title"), []
    monkeypatch.setattr(drawing, "arrow", lambda begin, end: drawn.append((begin, end)))
    one, two, three = (drawing.box(1, y, "", width=1) for y in (0.5, 1.5, 2.5))
    drawing.chain([one, two, three])
    assert drawn == [(one, two), (two, three)]
