"""A model is in eval mode for a while, and then in the mode that it was in."""

import pytest
from torch import nn

from hf_bert_impl.inference.eval_mode import eval_mode


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_comes_back_also_after_an_error(training):
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)).train(training)
    with pytest.raises(KeyError), eval_mode(model):
        assert not any(module.training for module in model.modules())
        raise KeyError
    assert all(module.training is training for module in model.modules())
