"""Dropout by 16 bits an element: its rate, its mean, its gradient, and where torch's own stays."""

import math

import pytest
import torch

from hf_bert_impl.model.attention import VALUES, drop
from tests.model.cases import NO_DROPOUT, outputs, random_config, random_model


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.93, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rate_and_mean(probability, dtype):
    torch.manual_seed(0)
    shape = (1013, 997)  # no multiple of four
    found = drop(torch.ones(shape, dtype=dtype), probability)
    assert found.dtype == dtype and found.shape == shape
    zeros, count = int((found == 0).sum()), found.numel()
    bound = 5 * math.sqrt(count * probability * (1 - probability)) + count / VALUES
    assert abs(zeros - count * probability) < bound
    kept = found[found != 0]
    assert kept.unique().numel() == 1
    rounding = 4e-3 if dtype == torch.bfloat16 else 1e-3
    assert kept[0].item() == pytest.approx(1 / (1 - probability), rel=rounding)
    # The four elements of a draw are independent, and so are rows and columns.
    dropped = (found == 0).double().flatten()
    for lag in (1, 2, 3, 4, 997):
        together = (dropped[:-lag] * dropped[lag:]).sum().item()
        expected = (count - lag) * probability**2
        assert abs(together - expected) < 6 * math.sqrt(expected + 1) + 4 * bound * probability


def test_gradient_is_that_of_the_kept():
    assert torch.equal(drop(torch.ones(7, 5), 0.0), torch.ones(7, 5))
    assert not drop(torch.ones(7, 5), 1.0).any()
    torch.manual_seed(1)
    states = torch.randn(31, 17, requires_grad=True)
    found = drop(states, 0.3)
    (found * 3).sum().backward()
    expected = torch.where(found == 0, 0.0, 3 * VALUES / (VALUES - round(0.3 * VALUES)))
    torch.testing.assert_close(states.grad, expected)


def test_a_packed_model_in_training():
    """Attention with dropout has the mean of attention without; the seed decides what it drops."""
    config = random_config(5, num_hidden_layers=1, max_position_embeddings=40, **NO_DROPOUT)
    config.attention_probs_dropout_prob = 0.2
    model = random_model("BertModel", config, std=0.3)
    attention = model.encoder.layer[0].attention
    contexts = []
    attention.self.register_forward_hook(lambda module, given, output: contexts.append(output[0]))
    mask = torch.arange(40) < torch.tensor([40, 33, 3])[:, None]
    ids = torch.randint(5, config.vocab_size, (3, 40), generator=torch.Generator().manual_seed(0))
    model.train()
    for seed in (*range(200), 3):
        torch.manual_seed(seed)
        outputs(model, {"input_ids": ids, "attention_mask": mask})
    again = contexts.pop()
    assert torch.equal(contexts[3], again) and not torch.equal(contexts[4], again)
    trained = torch.stack(contexts)
    contexts.clear()
    outputs(model.eval(), {"input_ids": ids, "attention_mask": mask})
    error = (trained.mean(0) - contexts[0]).abs()
    spread = trained.std(0) / 200**0.5
    assert (trained.std(0) > 0).all()
    assert (error > 5 * spread + 1e-6).float().mean() < 1e-3
