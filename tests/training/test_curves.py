"""The picture of a pre-training run."""

import pytest

pytest.importorskip("matplotlib", reason="pip install -e '.[train]'")

from hf_bert_impl.training.curves import curves_figure

LOG = [
    {"step": 5, "mlm_loss": 7.0, "mlm_accuracy": 0.25, "nsp_loss": 0.7, "nsp_accuracy": 0.5},
    {"step": 9, "eval_mlm_loss": 6.5, "eval_mlm_accuracy": 0.5},
    {"step": 10, "mlm_loss": 6.0, "mlm_accuracy": 0.5, "nsp_loss": 0.6, "nsp_accuracy": 0.75},
]
LEVELS = {"loss (nats)": {"by frequency": 6.25}}


def test_curves():
    losses, accuracies = curves_figure(LOG, LEVELS, "A run").axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in losses.lines}
    assert drawn["masked words, training"] == [[5, 7.0], [10, 6.0]]
    assert drawn["masked words, held out"] == [[9, 6.5]]
    assert {6.25} == {y for _, y in drawn["by frequency"]}
    drawn = {line.get_label(): line.get_xydata().tolist() for line in accuracies.lines}
    assert drawn["next sentence, training"] == [[5, 50], [10, 75]]
