"""The bar of long commands: on a terminal alone, and gone at the end."""

import io
import sys
import time

import pytest

from hf_bert_impl.progress import text_progress

#: The bar is drawn at most every 0.1 s.
SECONDS = 0.2


@pytest.mark.parametrize(("is_terminal", "show"), [(True, True), (True, False), (False, True)])
def test_a_bar_is_shown_on_a_terminal(is_terminal, show, monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stderr", stream)
    with text_progress(show, 8, start=3) as advance:
        time.sleep(SECONDS)
        advance(5, 40)
    shown = stream.getvalue()
    assert bool(shown) == (is_terminal and show)
    if shown:
        assert "100%" in shown and "8 texts, " in shown and "tokens)" in shown
        assert shown.endswith("\r")
