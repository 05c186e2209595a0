"""Tables are not truncated, and their texts are not markup."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from hf_bert_impl.tables import console, print_table

ROWS = [("[bold]x", "1.234 [0.8–1.9]", Text("12", "red")), ("y" * 31, "5", "6")]


@pytest.mark.parametrize("width", [100, 30, 7])
def test_narrow_windows_break_names_and_no_figure(width):
    out = Console(width=width, file=io.StringIO())
    header = ("name", "times", "")
    print_table(out, "what was measured, at length", header, ROWS, note="as it is")
    text = out.file.getvalue()
    assert all(figure in text for figure in ("1.234", "[0.8–1.9]", "12", "5", "6", "times"))
    assert "…" not in text
    assert text.count("y") == 31
    assert text.split()[-3:] == ["as", "it", "is"]
    if width == 100:  # words stand on the left, and figures on the right
        first, second = (line for line in text.splitlines() if "1.2" in line or "y" in line)
        assert "[bold]x " in first and first.rstrip().endswith("12")
        assert len(first.rstrip()) == len(second.rstrip())


def test_lines_in_a_file_stay_whole(capsys):
    print_table(console(), "", ("",), [("long words " * 20,)])
    assert "long words " * 20 in capsys.readouterr().out
