"""`hf-bert demo`: runs offline on the installed weights."""

import re

from transformers import AutoModel
from transformers.models.bert import modeling_bert

from hf_bert_impl.cli import demo
from hf_bert_impl.cli.reports import show_speed
from hf_bert_impl.measuring.beside import Timed


def test_demo_shows_parity_similarity_and_speed(hf_bert, hasty, minilm_path):
    result = hf_bert("demo")
    assert (result.status, result.err) == (0, "")
    assert re.search(r"\d comparisons passed; the worst is ", result.out)
    assert "gave hf_bert_impl.BertModel" in result.out
    assert all(sentence.split()[0] in result.out for sentence in demo.SENTENCES)
    assert re.search(r"8 sequences, \d+ tokens, [1-9]\d?% padding .* ms +\d\.\d\d", result.out)
    # transformers is left as it was found.
    assert type(AutoModel.from_pretrained(minilm_path)) is modeling_bert.BertModel


def test_rounds_that_differ_much_are_called_those_of_a_busy_machine(capsys):
    quiet, busy = (
        Timed("short", 8, 221, 0.4, 5.0, 10.0, 2.0, least, 1.86) for least in (1.5, 0.56)
    )
    show_speed([quiet])
    assert "busy" not in capsys.readouterr().out
    show_speed([quiet, busy])
    said = " ".join(capsys.readouterr().out.split())
    assert "The machine is busy: the speed-up of a round was 0.56 to 1.86." in said
