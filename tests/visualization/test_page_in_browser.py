"""The page in headless Chromium, by real mouse and key events."""

import dataclasses
import re

import numpy as np
import pytest

from hf_bert_impl.visualization import AttentionPage, attention_maps
from tests.visualization.browser import find_chromium, started

pytestmark = pytest.mark.slow
HOSTILE = "the </script><b>\"$cat\" & '.' <!-- 猫 ##s -->"
PAIR = ("The cat sat on the mat.", "It was tired of chasing mice.")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find_chromium()
    if program is None:
        pytest.skip("needs Chromium (Debian's package chromium)")
    with started(program, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def show(browser, tmp_path):
    """Opens a page of these maps."""

    def open_page(maps):
        AttentionPage(maps).save(tmp_path / "page.html")
        browser.open(tmp_path / "page.html")
        return browser

    yield open_page
    assert browser.complaints() == []


@pytest.fixture(scope="module")
def pair(minilm):
    return attention_maps(*minilm, *PAIR)


def texts(browser, selector):
    return browser.value(f"[...document.querySelectorAll('{selector}')].map(e => e.textContent)")


def told(browser):
    """The weights that the page tells, by token."""
    names, weights = texts(browser, "#weights td:first-child"), texts(browser, "#weights td + td")
    return dict(zip(names, map(float, weights), strict=True))


def ink(browser, canvas="#lines"):
    """How much is drawn on a canvas: the sum of its opacities."""
    return browser.value(
        f"(() => {{ const c = document.querySelector('{canvas}');"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "let sum = 0; for (let i = 3; i < d.length; i += 4) sum += d[i]; return sum / 255; })()"
    )


def heads_on(browser):
    found = browser.value(
        "[...document.querySelectorAll('#heads [aria-pressed=true]')].map(e => e.textContent)"
    )
    return [int(head) for head in found]


def shown_layer(browser):
    return browser.value("document.querySelector('#layer').selectedOptions[0].textContent")


def focused(browser):
    return browser.value("document.activeElement.getAttribute('aria-label')")


def test_tokens_and_texts_are_shown_as_they_are(tiny, show):
    model, tokenizer = tiny()
    maps = attention_maps(model, tokenizer, "the cat naps")
    tokens = ("[CLS]", "</script>", '"$', "猫", "<b>")
    assert len(maps.tokens) == 6
    maps = dataclasses.replace(maps, tokens=(*tokens, "[SEP]"), texts=(HOSTILE,), model=HOSTILE)
    browser = show(maps)
    assert texts(browser, "#from .token") == [*tokens, "[SEP]"]
    assert texts(browser, "#to .token") == [*tokens, "[SEP]"]
    assert texts(browser, "dd") == [HOSTILE]
    assert texts(browser, "h1") == [f"Attention of {HOSTILE}"]
    assert browser.value("document.querySelector('#filter-label').hidden")
    assert ink(browser) > 100


def test_everything_by_keyboard(pair, show):
    browser = show(pair)
    browser.value("document.querySelector('#from li').focus()")
    browser.press("ArrowDown", "ArrowDown")
    assert focused(browser) == f"{pair.tokens[2]}, token 2, sentence A"
    browser.press("PageDown", "PageDown")
    assert shown_layer(browser) == "2"
    mean = pair.layers[2].weights.mean(axis=0)
    for name, weight in told(browser).items():
        assert weight == pytest.approx(mean[2, int(re.search(r"\((\d+)\)", name)[1])], abs=6e-4)
    browser.press("PageUp", "End", "ArrowRight", "ArrowUp")
    assert shown_layer(browser) == "1"
    assert focused(browser).startswith(f"{pair.tokens[-2]}, token {len(pair.tokens) - 2}")
    assert "To " in texts(browser, "#weights p")[0]
    browser.press("Enter")
    assert texts(browser, "#to [aria-selected=true] .token") == [pair.tokens[-2]]
    browser.press("Escape")
    assert texts(browser, "[aria-selected=true] .token") == []

    browser.value("document.querySelector('#heads button').focus()")
    browser.press(" ", "ArrowRight", "ArrowRight", "Enter", "End", "Home", "ArrowLeft")
    assert heads_on(browser) == [1, *range(3, 12)]
    assert focused(browser) == "head 0"

    browser.value("document.querySelector('#layer').focus()")
    browser.press("ArrowDown", "ArrowDown")
    assert shown_layer(browser) == "3"

    browser.value("document.querySelector('#tab-heads').focus()")
    browser.press("ArrowRight", "Tab", "Tab")
    assert focused(browser) == "layer 0, head 0"
    browser.press("ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight")
    assert "Layer 1, head 3: on average most goes to" in texts(browser, "#cell-note")[0]
    browser.press("Enter")
    assert (shown_layer(browser), heads_on(browser)) == ("1", [3])


@pytest.mark.parametrize("filtered, sides", [("AB", (0, 1)), ("BB", (1, 1))])
def test_sentences_of_a_pair(pair, show, filtered, sides):
    browser = show(pair)
    browser.value(
        f"(() => {{ const s = document.querySelector('#filter'); s.value = '{filtered}';"
        "s.dispatchEvent(new Event('change')); })()"
    )
    for side, segment in zip(("from", "to"), sides, strict=True):
        expected = [t for t, s in zip(pair.tokens, pair.segments, strict=True) if s == segment]
        assert texts(browser, f"#{side} .token") == expected
    browser.point("#from li:nth-child(2)")
    columns = [n for n, segment in enumerate(pair.segments) if segment == sides[1]]
    row = [n for n, segment in enumerate(pair.segments) if segment == sides[0]][1]
    mean = pair.layers[0].weights.mean(axis=0)
    best = max(columns, key=lambda n: mean[row, n])
    found = told(browser)
    assert next(iter(found)) == f"{pair.tokens[best]} ({best})"
    total = float(re.search(r"all shown: ([0-9.]+)", texts(browser, "#weights p")[0])[1])
    assert total == pytest.approx(mean[row, columns].sum(), abs=6e-4)
    browser.point("#tab-model", click=True)
    size = browser.value("(c => [c.height, c.width])(document.querySelector('#cells canvas'))")
    assert size == [pair.segments.count(sides[0]), pair.segments.count(sides[1])]


def test_the_whole_model(pair, show):
    browser = show(pair)
    browser.point("#tab-model", click=True)
    assert browser.value("document.querySelectorAll('#cells canvas').length") == 72
    assert browser.value("document.querySelector('#head-view').hidden")
    # A cell's opacities are the square roots of the weights.
    expected = np.sqrt(pair.layers[4].weights[9]).sum()
    found = ink(browser, '[aria-label="layer 4, head 9"] canvas'.replace('"', '\\"'))
    assert found == pytest.approx(expected, rel=0.01)
    browser.point('[aria-label="layer 4, head 9"]', click=True)
    assert (shown_layer(browser), heads_on(browser)) == ("4", [9])
    assert not browser.value("document.querySelector('#head-view').hidden")
