"""The attention that is shown: transformers' own probabilities, rightly named."""

import numpy as np
import pytest
import torch

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.inference import loading
from hf_bert_impl.parity import reference_model
from hf_bert_impl.visualization import attention_maps
from hf_bert_impl.visualization.attention_maps import load_maps

TOLERANCE = 1e-5
TEXTS = [
    ("The cat sat.", None),
    ("The cat naps, naps, naps.", "It was tired."),
]


@pytest.mark.parametrize("text, pair", TEXTS)
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_equals_transformers(tiny, backend, text, pair):
    model, tokenizer = tiny()
    model.set_attn_implementation(backend)
    maps = attention_maps(model, tokenizer, text, pair)
    reference = reference_model(model)
    reference.set_attn_implementation("eager")
    encoded = tokenizer(text, pair, return_tensors="pt")
    with torch.no_grad():
        attentions = reference(**encoded, output_attentions=True).attentions
    for layer, theirs in zip(maps.layers, attentions, strict=True):
        assert layer.weights.dtype == np.float32
        assert np.abs(layer.weights - theirs[0].numpy()).max() < TOLERANCE
        assert np.abs(layer.weights.sum(axis=-1, dtype=np.float64) - 1).max() < TOLERANCE
    assert maps.segments == tuple(encoded["token_type_ids"][0].tolist())
    assert maps.tokens == tuple(tokenizer.convert_ids_to_tokens(encoded["input_ids"][0]))
    assert maps.texts == ((text,) if pair is None else (text, pair))
    assert maps.heads == (0, 1, 2, 3, 4)
    assert len(attention_maps(model, tokenizer, "the " * 21).tokens) == 23  # the longest that fits


def test_rows_sum_to_1_in_bfloat16_too(tiny):
    model, tokenizer = tiny()
    for layer in attention_maps(model.bfloat16(), tokenizer, "the cat sat .").layers:
        assert np.abs(layer.weights.sum(axis=-1, dtype=np.float64) - 1).max() < TOLERANCE


def test_chosen_layers_and_heads(tiny):
    model, tokenizer = tiny()
    whole = attention_maps(model, tokenizer, "the cat sat .")
    maps = attention_maps(model, tokenizer, "the cat sat .", layers=[2, 0, 2], heads=[4, 1])
    assert [layer.layer for layer in maps.layers] == [0, 2]
    assert maps.heads == (1, 4)
    for layer in maps.layers:
        assert layer.heads == (1, 4)
        assert np.array_equal(layer.weights, whole.layers[layer.layer].weights[[1, 4]])


def test_pruned_heads_keep_their_numbers(tiny):
    model, tokenizer = tiny()
    before = attention_maps(model, tokenizer, "the cat sat .")
    model.prune_heads({0: [0, 3], 2: [1]})
    maps = attention_maps(model, tokenizer, "the cat sat .")
    assert [layer.heads for layer in maps.layers] == [(1, 2, 4), (0, 1, 2, 3, 4), (0, 2, 3, 4)]
    # The first layer's own probabilities do not depend on what was pruned.
    assert np.allclose(maps.layers[0].weights, before.layers[0].weights[[1, 2, 4]], atol=1e-6)
    chosen = attention_maps(model, tokenizer, "the cat sat .", heads=[1, 2])
    assert [layer.heads for layer in chosen.layers] == [(1, 2), (1, 2), (2,)]
    with pytest.raises(ValueError, match=r"Heads 0, 3 of layer 0 were pruned. Choose among 1, 2"):
        attention_maps(model, tokenizer, "the cat sat .", heads=[0, 3])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"text": "the \udcff"}, "not valid Unicode"),
        ({"text": "the", "heads": [-1]}, "`heads` has -1. Choose among 0 to 4"),
    ],
)
def test_bad_input(tiny, arguments, message):
    with pytest.raises(ValueError, match=message):
        attention_maps(*tiny(), **arguments)


def test_arguments_are_checked_before_the_weights_are_loaded(save_tiny, monkeypatch):
    monkeypatch.setattr(loading, "load_whole", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(ValueError, match="`layers` has 7"):
        load_maps(open_checkpoint(str(save_tiny())), "the river", layers=[7])
