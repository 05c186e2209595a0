"""The bar of long commands: on a terminal alone, and gone at the end."""

import io
import sys
import time

import pytest

from hf_bert_impl.progress import text_progress

#: The bar is drawn at most every 0.1 s.
SECONDS = 0.2


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "show", "is_shown"),
    [(Terminal, True, True), (Terminal, False, False), (io.StringIO, True, False)],
)
def test_a_bar_is_shown_on_a_terminal(stream, show, is_shown, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream())
    with text_progress(show, 8, start=3) as advance:
        time.sleep(SECONDS)
        advance(5, 40)
    shown = sys.stderr.getvalue()
    assert bool(shown) == is_shown
    assert not is_shown or ("100%" in shown and "8 texts, " in shown and "tokens)" in shown)
    assert not is_shown or shown.endswith("\r")
