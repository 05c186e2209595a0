"""notebooks/lessons/regularisation.py against torch's label smoothing and the paper's schedule."""

import pytest
import torch
from torch.nn import functional as F

from lessons.regularisation import label_smoothing, warm_up
from lessons.training import token_loss
from lessons.vocabulary import PAD


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_label_smoothing_is_torchs(smoothing):
    torch.manual_seed(0)
    logits, targets = torch.randn(2, 5, 7), torch.randint(1, 7, (2, 5))
    targets[1, 3:] = PAD
    expected = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=smoothing
    )
    torch.testing.assert_close(label_smoothing(smoothing)(logits, targets), expected)
    if not smoothing:
        torch.testing.assert_close(token_loss(logits, targets), expected)


def test_the_rate_rises_in_a_line_and_falls_by_the_root():
    rate = warm_up(512, 4000)
    assert rate(2000) == pytest.approx(rate(4000) / 2)
    assert rate(16000) == pytest.approx(rate(4000) / 2)
    assert max(range(1, 9000), key=rate) == 4000
    assert rate(4000) == pytest.approx(512**-0.5 * 4000**-0.5)
