"""The curves that grow while a model is pre-trained."""

import pytest

pytest.importorskip("IPython")  # of the extra `notebooks`

from lessons import live_curves

LOG = [{"step": 5, "mlm_loss": 7.0}]


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
    callback = live_curves.LiveCurves({"loss (nats)": {"by frequency": 6.25}})
    callback.on_log(None, State, None)
    callback.on_log(None, State, None)  # too soon
    callback.on_train_end(None, State, None)
    assert len(shown) == 2
