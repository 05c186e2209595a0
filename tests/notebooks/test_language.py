"""notebooks/lessons/language.py: what a GPT and a BERT are given, and how a GPT writes."""

import math

import pytest
import torch

from lessons.language import (
    hidden_tokens,
    next_token,
    sample,
    train_token_model,
    unigram_loss,
)
from lessons.transformer import Sizes, TokenModel
from lessons.vocabulary import BEGIN, END, PAD, UNKNOWN

SIZES = Sizes(size=12, heads=3, hidden=20, blocks=1, dropout=0.0)
TOKENS = torch.tensor([[5, 6, 7, 8, END], [9, 5, END, PAD, PAD]])


def test_a_gpt_reads_one_place_behind():
    inputs, mask, targets = next_token(TOKENS)
    assert inputs.tolist() == [[BEGIN, 5, 6, 7, 8], [BEGIN, 9, 5, END, PAD]]
    assert mask.tolist() == torch.ones(5, 5).tril().bool().tolist()
    assert targets is TOKENS


def test_a_bert_predicts_what_is_hidden_and_nothing_else():
    torch.manual_seed(0)
    hidden_of_second = set()
    for _ in range(60):
        shown, mask, targets = hidden_tokens(TOKENS)
        hidden = shown == UNKNOWN
        assert targets[hidden].tolist() == TOKENS[hidden].tolist()
        assert not targets[~hidden].any()
        assert shown[~hidden].tolist() == TOKENS[~hidden].tolist()
        assert hidden.any(dim=1).all() and not hidden[1, 3:].any()
        assert mask.squeeze(1).tolist() == (TOKENS != PAD).tolist()
        hidden_of_second |= set(hidden[1].nonzero().flatten().tolist())
    assert hidden_of_second == {0, 1, 2}


def test_a_language_of_one_sentence_is_learned_and_written():
    torch.manual_seed(0)
    model = TokenModel(10, SIZES)
    row = [5, 9, 6, 8, END]
    losses = train_token_model(
        model, [row] * 64, next_token, epochs=20, batch_size=16, learning_rate=0.01
    )
    assert losses[-1] < 0.1 < losses[0]
    assert sample(model, [], count=2, longest=5, temperature=0.01).tolist() == [row, row]
    assert sample(model, [5, 9], count=1, longest=3, best=1).tolist() == [row[2:]]


def test_sampling_draws_from_the_likeliest():
    torch.manual_seed(0)
    model = TokenModel(10, SIZES).eval()
    drawn = sample(model, [], count=200, longest=1, best=2, temperature=5.0)
    assert len(drawn.unique()) == 2
    everything = sample(model, [], count=500, longest=1, temperature=5.0).unique().tolist()
    assert PAD not in everything and BEGIN not in everything and len(everything) > 5


def test_guessing_by_frequency():
    # Each count is raised by one: a has 3, b 2 and END 2, of 7 in all.
    expected = -(math.log(3 / 7) + math.log(2 / 7)) / 2
    assert unigram_loss([[4, 5, END], [4]], [[4, END]]) == pytest.approx(expected)
