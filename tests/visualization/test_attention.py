"""The attention that is shown: its numbers, the page without a browser, and the pictures."""

import base64
import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

import hf_bert_impl
from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.inference import loading
from hf_bert_impl.parity import reference_model
from hf_bert_impl.visualization import AttentionPage, LayerMaps, attention_maps, draw_attention
from hf_bert_impl.visualization.attention_maps import load_maps
from hf_bert_impl.visualization.attention_page import UNIT
from hf_bert_impl.visualization.heat_maps import attention_figure
from tests.support.checkpoints import SPECIAL_TOKENS

WORDS = (
    *SPECIAL_TOKENS,
    *("the", "cat", "sat", "nap", "##s", "was", "tired", ".", "<", ">", "/", '"', "&", "$", "b"),
)
TOLERANCE = 1e-5


@pytest.fixture
def tiny(save_tiny):
    """A random model and its tokenizer."""
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 5, "max_position_embeddings": 23}
    folder = save_tiny("BertModel", words=WORDS, seed=3, initializer_range=0.5, **sizes)
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder)
    return hf_bert_impl.BertModel.from_pretrained(folder), tokenizer


@pytest.mark.parametrize(
    "text, pair", [("The cat sat.", None), ("The cat naps, naps, naps.", "It was tired.")]
)
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_equals_transformers(tiny, backend, text, pair):
    model, tokenizer = tiny
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
    for layer in attention_maps(model.bfloat16(), tokenizer, text, pair).layers:
        assert np.abs(layer.weights.sum(axis=-1, dtype=np.float64) - 1).max() < TOLERANCE


def test_pruned_heads_keep_their_numbers(tiny):
    model, tokenizer = tiny
    before = attention_maps(model, tokenizer, "the cat sat .")
    model.prune_heads({0: [0, 3], 2: [1]})
    maps = attention_maps(model, tokenizer, "the cat sat .")
    assert [layer.heads for layer in maps.layers] == [(1, 2, 4), (0, 1, 2, 3, 4), (0, 2, 3, 4)]
    # The first layer's own probabilities do not depend on what was pruned.
    assert np.allclose(maps.layers[0].weights, before.layers[0].weights[[1, 2, 4]], atol=1e-6)
    panels = attention_figure(maps).axes[:15]
    empty = [panel.get_title() for panel in panels if not panel.get_images()]
    assert empty == ["layer 0, head 0", "layer 0, head 3", "layer 2, head 1"]
    chosen = attention_maps(model, tokenizer, "the cat sat .", heads=[1, 2])
    assert [layer.heads for layer in chosen.layers] == [(1, 2), (1, 2), (2,)]
    with pytest.raises(ValueError, match=r"Heads 0, 3 of layer 0 were pruned. Choose among 1, 2"):
        attention_maps(model, tokenizer, "the cat sat .", heads=[0, 3])


def test_arguments_are_checked_before_the_weights_are_loaded(save_tiny, monkeypatch):
    monkeypatch.setattr(loading, "load_whole", lambda *_, **__: pytest.fail("loaded"))
    for text, options, message in (
        ("the river", {"layers": [7]}, "`layers` has 7"),
        ("the", {"heads": [-1]}, "`heads` has -1. Choose among 0 to 4"),
        ("the \udcff", {}, "not valid Unicode"),
    ):
        with pytest.raises(ValueError, match=message):
            load_maps(open_checkpoint(str(save_tiny())), text, **options)


# --- the page ------------------------------------------------------------------------------------

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!-- <script> ]]> &lt; \" ' ` ${x} \\ \u2028 \u2029 %s {0} $title $$",
)


class Elements(HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def embedded(page):
    return json.loads(re.search(r'id="attention-data">(.*?)</script>', page, re.DOTALL)[1])


def test_chosen_layers_and_heads_on_the_page(tiny):
    model, tokenizer = tiny
    texts = ["the cat naps .", "it was tired"]
    whole = attention_maps(model, tokenizer, *texts)
    maps = attention_maps(model, tokenizer, *texts, layers=[2, 0, 2], heads=[4, 1])
    assert maps.heads == (1, 4)
    data = embedded(AttentionPage(maps).html)
    assert data["tokens"] == list(maps.tokens)
    assert data["segments"] == list(maps.segments)
    assert data["texts"] == texts
    assert [layer["layer"] for layer in data["layers"]] == [0, 2]
    for layer, chosen in zip(data["layers"], maps.layers, strict=True):
        assert layer["heads"] == [1, 4]
        assert np.array_equal(chosen.weights, whole.layers[layer["layer"]].weights[[1, 4]])
        numbers = np.frombuffer(base64.b64decode(layer["weights"]), "<u2")
        weights = numbers.reshape(chosen.weights.shape) / data["unit"]
        assert np.abs(weights.sum(axis=-1) - 1).max() < 1e-12
        assert np.abs(weights - chosen.weights).max() <= 1 / UNIT


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_cannot_break_the_page(tiny, text):
    model, tokenizer = tiny
    tokenizer.add_tokens(["</script>", "<!--"])
    model.resize_token_embeddings(len(tokenizer))
    maps = attention_maps(model, tokenizer, "the </script>", "<!-- $cat")
    maps = dataclasses.replace(maps, model=f"{text}</title>", texts=(text, text))
    page = AttentionPage(maps).html
    assert page.count("</script>") == 2
    assert page.count("</title>") == 1
    assert sum(tag == "h1" for tag, _ in Elements(page).found) == 1
    data = embedded(page)
    assert (data["texts"], data["model"]) == ([text, text], f"{text}</title>")
    assert "</script>" in data["tokens"]
    assert json.dumps(text)[1:-1].replace("<", r"\u003c") in page  # in ASCII


def test_nothing_outside_is_referred_to(tiny):
    page = AttentionPage(attention_maps(*tiny, 'the "cat" & </iframe>'))
    found = Elements(page.html).found
    for tag, attributes in found:
        assert tag not in ("link", "img", "iframe", "object", "base")
        assert not {"src", "href", "action", "data", "style"} & attributes.keys()
    for word in ("http:", "https:", "//cdn", "@import", "url(", "fetch(", "XMLHttp", "import("):
        assert word not in page.html
    (policy,) = [attributes["content"] for _, attributes in found if "http-equiv" in attributes]
    assert policy.startswith("default-src 'none'")
    ((tag, attributes),) = Elements(page._repr_html_()).found  # in a notebook
    assert (tag, attributes["sandbox"]) == ("iframe", "allow-scripts")
    assert attributes["srcdoc"] == page.html


def test_a_page_too_large_to_open(tiny):
    maps = attention_maps(*tiny, "the cat", layers=[0], heads=[0])
    layer = LayerMaps(0, tuple(range(40)), np.broadcast_to(np.float32(1 / 512), (40, 512, 512)))
    large = dataclasses.replace(maps, tokens=("the",) * 512, layers=(layer,))
    with pytest.raises(ValueError, match=r"10,485,760 weights.* 38 heads of 512 tokens"):
        AttentionPage(large)


# --- the pictures --------------------------------------------------------------------------------


def labels(ticks):
    return [label.get_text() for label in ticks]


def test_a_map_for_each_head(tiny, tmp_path):
    maps = attention_maps(*tiny, "the $cat$ naps .", "it was tired", layers=[0, 2], heads=[1, 3])
    figure = attention_figure(maps)
    *panels, bar = figure.axes
    places = [(0, 1), (0, 3), (2, 1), (2, 3)]
    assert [panel.get_title() for panel in panels] == [f"layer {x}, head {y}" for x, y in places]
    for panel, layer, slot in zip(panels, (0, 0, 1, 1), (0, 1, 0, 1), strict=True):
        (image,) = panel.get_images()
        assert np.array_equal(image.get_array(), maps.layers[layer].weights[slot])
    # From top to bottom as the rows are.
    assert panels[0].get_ylim() == (len(maps.tokens) - 0.5, -0.5)
    assert labels(panels[0].get_yticklabels()) == list(maps.tokens)
    assert labels(panels[3].get_xticklabels()) == list(maps.tokens)
    assert not any(label.get_parse_math() for label in panels[0].get_yticklabels())
    assert figure.get_supxlabel() == "to (key)"
    assert figure.get_supylabel() == "from (query)"
    assert figure.get_suptitle().endswith("the $cat$ naps . / it was tired")
    assert bar.get_ylabel() == "attention weight"
    draw_attention(tmp_path / "map.svg", maps)
    assert b"<svg" in (tmp_path / "map.svg").read_bytes()
