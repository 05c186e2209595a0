"""notebooks/lessons/attention.py against torch's own attention, and its masks."""

import torch
from torch.nn import functional as F

from lessons.attention import (
    AdditiveScores,
    MultiHeadAttention,
    causal_mask,
    dot_product_scores,
    padding_mask,
    soft_address,
)


def test_scaled_dot_product_is_torchs():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, s, 5, generator=generator) for s in (4, 7, 7))
    mask = torch.rand(2, 1, 4, 7, generator=generator) > 0.4
    mask[..., 0] = True
    ours, weights = soft_address(dot_product_scores(q, k), v, mask)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 4))
    assert weights[~mask.expand_as(weights)].abs().max() == 0


def test_additive_scores_are_the_papers_formula():
    torch.manual_seed(0)
    score = AdditiveScores(query_size=3, key_size=5, hidden_size=4)
    queries, keys = torch.randn(2, 6, 3), torch.randn(2, 7, 5)
    scores = score(queries, score.project(keys))
    assert scores.shape == (2, 6, 7)
    w, u, v = score.from_query.weight, score.from_key.weight, score.to_score.weight[0]
    one = v @ torch.tanh(w @ queries[1, 2] + u @ keys[1, 3])
    torch.testing.assert_close(scores[1, 2, 3], one)


def test_masks():
    assert padding_mask(torch.tensor([[5, 6, 0]])).tolist() == [[[True, True, False]]]
    assert causal_mask(3).tolist() == [[True, False, False], [True, True, False], [True] * 3]


def test_each_head_adds_a_number_for_each_distance():
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 3, reach=2)
    states = torch.randn(2, 7, 12)
    layer(states, states)
    with_distances = layer.weights
    plain = MultiHeadAttention(12, 3)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "distances"})
    plain(states, states)
    ratio = (with_distances / plain.weights).log()  # the number, less a constant for each query
    for query, key in ((3, 0), (3, 2), (3, 5), (0, 6)):
        place = min(max(key - query, -2), 2) + 2
        expected = layer.distances[:, place] - layer.distances[:, 2]
        found = ratio[:, :, query, key] - ratio[:, :, query, query]
        torch.testing.assert_close(found, expected.detach().expand(2, 3), atol=1e-4, rtol=0)
