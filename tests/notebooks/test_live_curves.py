"""The curves that grow while a model is pre-trained."""

import matplotlib.pyplot as plt
import pytest

pytest.importorskip("IPython")  # of the extra `notebooks`

from lessons import live_curves

LOG = [
    {"step": 5, "mlm_loss": 7.0, "mlm_accuracy": 0.25, "nsp_loss": 0.7, "nsp_accuracy": 0.5},
    {"step": 9, "eval_mlm_loss": 6.5, "eval_mlm_accuracy": 0.5},
    {"step": 10, "mlm_loss": 6.0, "mlm_accuracy": 0.5, "nsp_loss": 0.6, "nsp_accuracy": 0.75},
]
LEVELS = {"loss (nats)": {"by frequency": 6.25}}


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_curves():
    losses, accuracies = live_curves.draw(LOG, LEVELS, "A run").axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in losses.lines}
    assert drawn["masked words, training"] == [[5, 7.0], [10, 6.0]]
    assert drawn["masked words, held out"] == [[9, 6.5]]
    assert {6.25} == {y for _, y in drawn["by frequency"]}
    drawn = {line.get_label(): line.get_xydata().tolist() for line in accuracies.lines}
    assert drawn["next sentence, training"] == [[5, 50], [10, 75]]


def test_they_are_shown_in_one_place(monkeypatch):
    shown = []

    class Handle:
        def update(self, figure):
            shown.append(figure)

    def display(figure, display_id):
        shown.append(figure)
        return Handle()

    class State:
        log_history = LOG

    monkeypatch.setattr(live_curves, "display", display)
    callback = live_curves.LiveCurves(LEVELS)
    callback.on_log(None, State, None)
    callback.on_log(None, State, None)  # too soon
    callback.on_train_end(None, State, None)
    assert len(shown) == 2
    assert not plt.get_fignums()
