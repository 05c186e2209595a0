"""The cells that ask the hub, run with a small server on this machine in its place.

A run without a network leaves them out, so nothing else would see them fail.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from tests.checkpoints import SPECIAL_TOKENS, save_checkpoint
from tests.hub_server import HubServer

pytestmark = pytest.mark.slow

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CASED = "google-bert/bert-base-cased"
WORDS = (
    *(*SPECIAL_TOKENS, "nice", "to", "you", "hello", "i", "'", "m", "a", "model", "."),
    *("this", "is", "an", "input", "example"),
)
#: The published figures are those of weights that are not here. The served model gets its own,
#: which transformers computed; all else of the cells runs as it stands.
BEFORE = """
import json, sys
from hf_bert_impl.parity import published

figures = json.loads(sys.argv[1])
published.ENCODED_IDS = tuple(figures["ids"])
published.ENCODED_SHAPES = {name: tuple(shape) for name, shape in figures["shapes"].items()}
published.MASKED = {text: dict(best) for text, best in figures["masked"]}
display = print
"""


def cells(name):
    notebook = json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def figures_of(folder):
    """What transformers' own BERT gives, as the published figures are written."""
    tokenizer = transformers.BertTokenizerFast.from_pretrained(folder)
    inputs = tokenizer("This is an input example", return_tensors="pt")
    with torch.no_grad():
        body = transformers.BertModel.from_pretrained(folder).eval()(**inputs)
        shapes = {
            "last_hidden_state": body.last_hidden_state.shape,
            "pooler_output": body.pooler_output.shape,
        }
        masked = []
        model = transformers.BertForMaskedLM.from_pretrained(folder).eval()
        for text in ("Nice to [MASK] you", "Hello I'm a [MASK] model."):
            encoded = tokenizer(text, return_tensors="pt")
            here = encoded["input_ids"] == tokenizer.mask_token_id
            best = model(**encoded).logits[here][0].softmax(dim=-1).topk(4)
            tokens = tokenizer.convert_ids_to_tokens(best.indices.tolist())
            masked.append((text, list(zip(tokens, best.values.tolist(), strict=True))))
    return {"ids": inputs["input_ids"][0].tolist(), "shapes": shapes, "masked": masked}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A masked LM whose folder has the pooler's weights too, as that of bert-base-cased has."""
    folder = tmp_path_factory.mktemp("hub") / "cased"
    return save_checkpoint(folder, "BertForPreTraining", words=WORDS, library=transformers)


def test_notebook_05_checks_the_published_figures(folder, tmp_path):
    code = cells("05_bert_in_practice.ipynb")
    asking = [cell for cell in code if "CASED" in cell]
    assert len(asking) == 2 and "check_encoding" in asking[1]
    start = [BEFORE, code[0], "hf_bert_impl.register()", line_of_imports(code)]
    source = "\n".join([*start, *asking])
    with HubServer() as server:
        server.add(CASED, folder)
        done = subprocess.run(
            [sys.executable, "-c", source, json.dumps(figures_of(folder))],
            env=server.environment(tmp_path / "home") | {"MPLBACKEND": "agg"},
            cwd=NOTEBOOKS,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nok  ") == 3 + 2 * 5
    assert "\nNO  " not in done.stdout
    assert f"GET /{CASED}/resolve/main/config.json" in server.requests


def line_of_imports(code):
    """The lines of transformers' names that stand in the cell which loads MiniLM."""
    lines = [line for cell in code for line in cell.splitlines()]
    return next(line for line in lines if line.startswith("from transformers import AutoModel"))


def test_no_other_notebook_asks_the_hub():
    """A cell that does belongs into a test of this file."""
    for file in sorted(NOTEBOOKS.glob("*.ipynb")):
        asks = any("hub.has(" in cell for cell in cells(file.name))
        assert asks == (file.stem == "05_bert_in_practice"), file.name
