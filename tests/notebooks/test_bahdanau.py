"""notebooks/lessons/bahdanau.py: shapes, masks, and the search's way through it."""

import pytest
import torch

from lessons.bahdanau import Encoder, RecurrentTranslator
from lessons.search import greedy
from lessons.vocabulary import BEGIN, PAD

SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 5, 2, PAD, PAD]])


def translator(attention=True):
    torch.manual_seed(0)
    return RecurrentTranslator(10, 13, embedding=6, size=4, attention=attention, dropout=0.0).eval()


@pytest.mark.parametrize("attention", [True, False])
def test_shapes(attention):
    forced = torch.randint(4, 13, (2, 7))
    logits, weights = translator(attention)(SOURCE, forced)
    assert logits.shape == (2, 7, 13)
    assert weights.shape == (2, 7, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 7))
    assert weights[1, :, 3:].abs().max() == 0


@pytest.mark.parametrize("attention", [True, False])
def test_padding_changes_nothing(attention):
    model, forced = translator(attention), torch.randint(4, 13, (1, 6))
    alone = model(SOURCE[1:, :3], forced)[0]
    torch.testing.assert_close(model(SOURCE[1:], forced)[0], alone)


def test_the_backward_direction_starts_at_the_last_token():
    torch.manual_seed(0)
    encoder = Encoder(10, 6, 4, dropout=0.0).eval()
    annotations, summary = encoder(SOURCE)
    assert annotations.shape == (2, 5, 8)
    torch.testing.assert_close(annotations[1, 0, 4:], summary[1, 4:])
    torch.testing.assert_close(annotations[1, 2, :4], summary[1, :4])


@pytest.mark.parametrize("attention", [True, False])
def test_no_step_sees_a_later_token(attention):
    model, forced = translator(attention), torch.randint(4, 13, (2, 7))
    changed = forced.clone()
    changed[:, 4:] = 4
    before, after = model(SOURCE, forced)[0], model(SOURCE, changed)[0]
    torch.testing.assert_close(before[:, :4], after[:, :4])


def test_without_attention_the_weights_do_not_depend_on_the_step():
    _, weights = translator(False)(SOURCE, torch.randint(4, 13, (2, 7)))
    assert weights[1, 5].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0, 0])


def test_searching_and_teacher_forcing_are_the_same_network():
    model = translator()
    written = greedy(model, SOURCE, 6)
    forced = torch.cat([torch.full((2, 1), BEGIN), written[:, :-1]], dim=1)
    best = model(SOURCE, forced)[0].argmax(-1)
    real = written != PAD
    assert best[real].tolist() == written[real].tolist()


def test_a_search_may_reorder_its_rows():
    model = translator()
    state = model.select(model.start(SOURCE), torch.tensor([1, 1, 0]))
    scores, _ = model.next(state, torch.tensor([5, 5, 5]))
    plain, _ = model.next(model.start(SOURCE), torch.tensor([5, 5]))
    torch.testing.assert_close(scores, plain[[1, 1, 0]])
