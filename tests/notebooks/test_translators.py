"""The translators of lessons 1 to 3: torch's layers, the papers' formulas, masks and search."""

import itertools

import pytest
import torch
from torch import nn

from lessons.attention import AdditiveScores, MultiHeadAttention, causal_mask
from lessons.bahdanau import RecurrentTranslator
from lessons.positions import sinusoids
from lessons.regularisation import warm_up
from lessons.search import beam_search, greedy, penalty
from lessons.transformer import Block, Sizes, Transformer
from lessons.vocabulary import BEGIN, END, PAD

SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 5, 2, PAD, PAD]])


def copy_attention(theirs, ours):
    parts = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
    theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def scatter(module):
    """Random norms and biases too, so that a missing one is seen."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("cross", [True, False])
@torch.no_grad()
def test_a_block_is_torchs_layer(norm_first, cross):
    torch.manual_seed(0)
    sizes = Sizes(size=12, heads=3, hidden=20, norm_first=norm_first, dropout=0.0)
    ours = Block(sizes, cross=cross).eval()
    scatter(ours)
    layer = nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer
    theirs = layer(12, 3, 20, dropout=0.0, batch_first=True, norm_first=norm_first)
    theirs.train()  # Without dropout the same numbers, and not the fused path.
    copy_attention(theirs.self_attn, ours.attention)
    theirs.linear1.load_state_dict(ours.feed_forward[0].state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward[2].state_dict())
    norms = [ours.around_attention, ours.around_feed_forward]
    if cross:
        copy_attention(theirs.multihead_attn, ours.cross)
        norms.insert(1, ours.around_cross)
    for number, residual in enumerate(norms, 1):
        getattr(theirs, f"norm{number}").load_state_dict(residual.norm.state_dict())
    states, memory = torch.randn(2, 6, 12), torch.randn(2, 5, 12)
    mask = causal_mask(6)
    if cross:
        expected = theirs(states, memory, tgt_mask=~mask)
        got = ours(states, mask, memory, torch.ones(2, 1, 5, dtype=torch.bool))
    else:
        expected, got = theirs(states, src_mask=~mask), ours(states, mask)
    torch.testing.assert_close(got, expected)


def test_additive_scores_are_the_papers_formula():
    torch.manual_seed(0)
    score = AdditiveScores(query_size=3, key_size=5, hidden_size=4)
    queries, keys = torch.randn(2, 6, 3), torch.randn(2, 7, 5)
    scores = score(queries, score.project(keys))
    assert scores.shape == (2, 6, 7)
    w, u, v = score.from_query.weight, score.from_key.weight, score.to_score.weight[0]
    one = v @ torch.tanh(w @ queries[1, 2] + u @ keys[1, 3])
    torch.testing.assert_close(scores[1, 2, 3], one)


def test_each_head_adds_a_number_for_each_distance():
    torch.manual_seed(0)
    layer, plain = MultiHeadAttention(12, 3, reach=2), MultiHeadAttention(12, 3)
    plain.load_state_dict(layer.state_dict(), strict=False)
    states, places = torch.randn(2, 7, 12), torch.arange(7)
    for each in (layer, plain):
        each(states, states)
    added = layer.distances[:, (places - places[:, None]).clamp(-2, 2) + 2]
    torch.testing.assert_close(layer.weights, (plain.weights.log() + added).softmax(-1))


def recurrent(attention):
    return RecurrentTranslator(10, 13, embedding=6, size=4, attention=attention, dropout=0.0)


TRANSLATORS = {
    "pre-norm": lambda: Transformer(10, 13, Sizes(12, 3, 20, 2, True, 0.0)),
    "post-norm": lambda: Transformer(10, 13, Sizes(12, 3, 20, 2, False, 0.0)),
    "attention": lambda: recurrent(attention=True),
    "summary": lambda: recurrent(attention=False),
}


@pytest.fixture(params=TRANSLATORS)
def translator(request):
    torch.manual_seed(0)
    model = TRANSLATORS[request.param]().eval()
    if isinstance(model, Transformer):
        nn.init.normal_(model.target.tokens.weight)
    return model


def test_no_step_sees_a_later_token_or_padding(translator):
    forced = torch.randint(4, 13, (2, 7))
    changed = forced.clone()
    changed[:, 4] = (changed[:, 4] - 3) % 9 + 4
    before, after = translator(SOURCE, forced)[0], translator(SOURCE, changed)[0]
    assert before.shape == (2, 7, 13)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert (before[:, 5:] - after[:, 5:]).abs().amax(-1).min() > 1e-6
    alone = translator(SOURCE[1:, :3], forced[1:])[0]
    torch.testing.assert_close(before[1:], alone)


def test_searching_and_teacher_forcing_are_the_same_network(translator):
    written = greedy(translator, SOURCE, 6)
    forced = torch.cat([torch.full((2, 1), BEGIN), written[:, :-1]], dim=1)
    best = translator(SOURCE, forced)[0].argmax(-1)
    real = written != PAD
    assert best[real].tolist() == written[real].tolist()
    state = translator.select(translator.start(SOURCE), torch.tensor([1, 1, 0]))
    scores, _ = translator.next(state, torch.tensor([5, 5, 5]))
    plain, _ = translator.next(translator.start(SOURCE), torch.tensor([5, 5]))
    torch.testing.assert_close(scores, plain[[1, 1, 0]])


def test_positions_are_the_papers_formula():
    angles = torch.arange(50.0)[:, None] / 10_000 ** (torch.arange(0, 12, 2) / 12)
    expected = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    torch.testing.assert_close(sinusoids(50, 12), expected, atol=1e-5, rtol=0)


def test_the_rate_rises_in_a_line_and_falls_by_the_root():
    rate = warm_up(512, 4000)
    assert [rate(2000), rate(16000)] == pytest.approx([rate(4000) / 2] * 2)
    assert max(range(1, 9000), key=rate) == 4000
    assert rate(4000) == pytest.approx(512**-0.5 * 4000**-0.5)


# --- the search of a toy model ----------------------------------------------------------------

WORDS = 7
LONGEST = 4


class Table:
    """The next token depends on the last two; states are the token before."""

    def __init__(self, seed):
        scores = torch.randn(WORDS, WORDS, WORDS, generator=torch.Generator().manual_seed(seed))
        scores[..., [PAD, BEGIN]] = -torch.inf
        self.table = (2 * scores).log_softmax(-1)

    def start(self, source):
        return source[:, 0]

    def next(self, state, tokens):
        return self.table[state, tokens], tokens

    def select(self, state, rows):
        return state[rows]


def best_of_all(model, first, alpha):
    """The best sentence of at most LONGEST tokens, by trying them all."""
    found = []
    for sentence in itertools.product(range(WORDS), repeat=LONGEST):
        if END in sentence:
            sentence = sentence[: sentence.index(END) + 1]
        before = zip((first, BEGIN, *sentence), (BEGIN, *sentence), sentence, strict=False)
        total = sum(model.table[place].item() for place in before)
        found.append((total / penalty(torch.tensor(len(sentence)), alpha).item(), sentence))
    return max(found)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_best_sentence(seed, alpha):
    model = Table(seed)
    source = torch.tensor([[3, 4], [5, 5], [6, 4]])
    rows, scores = beam_search(model, source, LONGEST, beams=WORDS**2, alpha=alpha)
    firsts = source[:, 0].tolist()
    for row, score, first in zip(rows.tolist(), scores.tolist(), firsts, strict=True):
        expected, sentence = best_of_all(model, first, alpha)
        assert score == pytest.approx(expected, rel=1e-5)
        assert tuple(row[: len(sentence)]) == sentence
        assert not any(row[len(sentence) :])
