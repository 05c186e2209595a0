"""The page without a browser: its data, its structure, and that it is self-contained."""

import base64
import dataclasses
import json
from html.parser import HTMLParser

import numpy as np
import pytest

from hf_bert_impl.visualization import AttentionPage, LayerMaps, attention_maps
from hf_bert_impl.visualization.attention_page import UNIT, whole_numbers

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!-- <script> ]]> &lt; \" ' ` ${x} \\ \u2028 \u2029 %s {0} $title $$",
)


class Elements(HTMLParser):
    """Elements with their attributes, and the text in scripts."""

    def __init__(self, text):
        super().__init__()
        self.found, self.scripts = [], []
        self._in_script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._in_script = False

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1] += data


def embedded(page):
    return json.loads(Elements(page).scripts[0])


def test_weights_are_those_of_the_maps(tiny):
    maps = attention_maps(*tiny(), "the cat naps .", "it was tired", layers=[0, 2], heads=[1, 2, 4])
    data = embedded(AttentionPage(maps).html)
    assert data["tokens"] == list(maps.tokens)
    assert data["segments"] == list(maps.segments)
    assert data["texts"] == ["the cat naps .", "it was tired"]
    assert [layer["layer"] for layer in data["layers"]] == [0, 2]
    assert [layer["heads"] for layer in data["layers"]] == [[1, 2, 4], [1, 2, 4]]
    for layer, expected in zip(data["layers"], maps.layers, strict=True):
        numbers = np.frombuffer(base64.b64decode(layer["weights"]), "<u2")
        weights = numbers.reshape(3, len(maps.tokens), len(maps.tokens)) / data["unit"]
        assert np.abs(weights.sum(axis=-1) - 1).max() < 1e-12
        assert np.abs(weights - expected.weights).max() <= 1 / UNIT


def test_rows_of_any_kind_sum_to_one():
    rows = np.random.default_rng(0).dirichlet(np.full(37, 0.05), size=(3, 41)).astype(np.float32)
    rows[0, 0] = 0
    rows[0, 0, 36] = 1.0000001  # all on one token, and rounded up
    rows[0, 1] = np.float32(1 / 37)
    rows[0, 2] *= 0.999999
    numbers = whole_numbers(rows)
    assert (numbers.sum(axis=-1, dtype=np.int64) == UNIT).all()
    assert np.abs(numbers / UNIT - rows).max() < 1.1 / UNIT
    assert set(numbers[0, 1]) == {UNIT // 37, UNIT // 37 + 1}


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_cannot_break_the_page(tiny, text):
    model, tokenizer = tiny()
    tokenizer.add_tokens(["</script>", "<!--"])
    model.resize_token_embeddings(len(tokenizer))
    maps = attention_maps(model, tokenizer, "the </script>", "<!-- $cat")
    maps = dataclasses.replace(maps, model=f"{text}</title>", texts=(text, text))
    page = AttentionPage(maps).html
    elements = Elements(page)
    assert page.count("</script>") == 2
    assert elements.scripts[0].isascii()
    data = embedded(page)
    assert data["texts"] == [text, text]
    assert "</script>" in data["tokens"]
    assert data["model"] == f"{text}</title>"
    assert sum(tag == "h1" for tag, _ in elements.found) == 1
    assert page.count("</title>") == 1


def test_nothing_outside_is_referred_to(tiny):
    page = AttentionPage(attention_maps(*tiny(), "the cat")).html
    for tag, attributes in Elements(page).found:
        assert tag not in ("link", "img", "iframe", "object", "base")
        assert not {"src", "href", "action", "data", "style"} & attributes.keys()
    for word in ("http:", "https:", "//cdn", "@import", "url(", "fetch(", "XMLHttp", "import("):
        assert word not in page
    policy = [a["content"] for tag, a in Elements(page).found if "http-equiv" in a]
    assert policy[0].startswith("default-src 'none'")


def test_in_a_notebook_and_as_a_file(tiny, tmp_path):
    page = AttentionPage(attention_maps(*tiny(), 'the "cat" & </iframe>'))
    ((tag, attributes),) = Elements(page._repr_html_()).found
    assert (tag, attributes["srcdoc"]) == ("iframe", page.html)
    assert attributes["sandbox"] == "allow-scripts"
    assert attributes["title"]
    (tmp_path / "page.html").write_text("old")
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page.html


def test_a_page_too_large_to_open(tiny):
    maps = attention_maps(*tiny(), "the cat", layers=[0], heads=[0])
    size = 512
    weights = np.broadcast_to(np.float32(1 / size), (40, size, size))
    large = dataclasses.replace(
        maps, tokens=("the",) * size, layers=(LayerMaps(0, tuple(range(40)), weights),)
    )
    with pytest.raises(ValueError, match=r"10,485,760 weights.* 38 heads of 512 tokens"):
        AttentionPage(large)
