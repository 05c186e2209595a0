"""Code that comes with a checkpoint is not run, and nobody is asked on standard input."""

import ast
import io
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import hf_bert_impl
from hf_bert_impl.cli import main
from hf_bert_impl.conversion import convert
from hf_bert_impl.text_encoder import TextEncoder
from tests.commands import run_commands

ROOT = Path(__file__).parent.parent
FILES = sorted(
    path
    for folder in ("hf_bert_impl", "conversion", "notebooks/lessons", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)
#: Classes that never run a checkpoint's own code.
PLAIN = re.compile(
    r"(hf_bert_impl\.)?(Bert\w+|TextEncoder|QuestionAnsweringPipeline|PreTrained(TokenizerFast|"
    r"Config))|_SentenceBert|cls|super\(\)|model_class|type\(model\)|reference_class\(name\)"
)
#: Functions and classes that load what a folder names, its own code too.
LOADERS = {"pipeline", "SentenceTransformer", "CrossEncoder", "SparseEncoder"}
FORBIDDEN = {"input", "get_class_from_dynamic_module", "eval", "exec"}


def complaints(text):
    """The calls that could run a checkpoint's code, or ask on standard input, unasked."""
    found, nodes = [], [*ast.walk(ast.parse(text))]
    loaders = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] != "hf_bert_impl"
        for alias in node.names
        if alias.name in LOADERS
    }
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        is_method = isinstance(node.func, ast.Attribute)
        name = node.func.attr if is_method else node.func.id
        receiver = ast.unparse(node.func.value) if is_method else ""
        reads = name == "from_pretrained" and not PLAIN.fullmatch(receiver)
        reads |= name == "from_config" and "Auto" in receiver
        loads = name in (LOADERS if is_method else loaders)
        explicit = any(keyword.arg == "trust_remote_code" for keyword in node.keywords)
        if name in FORBIDDEN and (not is_method or name == "get_class_from_dynamic_module"):
            found.append(f"line {node.lineno}: {name}")
        elif (reads or loads) and not explicit:
            found.append(f"line {node.lineno}: {name} without trust_remote_code")
    return found


def test_trust_is_said_by_name():
    found = {str(path.relative_to(ROOT)): complaints(path.read_text("utf-8")) for path in FILES}
    assert {path: lines for path, lines in found.items() if lines} == {}


MODULE = """
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast
with open({marker!r}, "a") as file:
    file.write("ran")
class Config(BertConfig):
    model_type = "hf_bert_impl"
class Model(BertForMaskedLM):
    config_class = Config
class Words(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "the-code-ran"


@pytest.fixture
def with_code(save_tiny, marker):
    """Saves a model with code of its own, which its config names for every Auto class."""

    def save(name, model_type, tokenizer_class):
        folder = save_tiny(name)
        hf_bert_impl.BertTokenizer.from_pretrained(folder).save_pretrained(folder)
        autos = ("AutoModel", "AutoModelForMaskedLM", "AutoModelForQuestionAnswering")
        auto_map = {"AutoConfig": "own.Config", "AutoTokenizer": ["own.Words", None]}
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
        words = {"tokenizer_class": tokenizer_class, "model_input_names": inputs}
        edits = {"config.json": {"model_type": model_type}, "tokenizer_config.json": words}
        for file, fields in edits.items():
            held = json.loads((folder / file).read_text())
            held |= {**fields, "auto_map": auto_map | dict.fromkeys(autos, "own.Model")}
            held = {key: value for key, value in held.items() if value is not None}
            (folder / file).write_text(json.dumps(held))
        (folder / "own.py").write_text(MODULE.format(marker=str(marker)))
        return folder

    return save


CONSENT = ["yes"] * 50


def commands(lm, qa, tmp_path):
    """Commands that take a model and read its tokenizer in ways of their own."""
    texts = tmp_path / "texts.txt"
    texts.write_text("the river rose over night .\nnice to meet you .\n" * 20)
    out = tmp_path / "trained"
    return {
        "inspect": ["inspect", lm],
        "convert": ["convert", lm, tmp_path / "converted"],
        "fill-mask": ["fill-mask", lm, "the [MASK] rose"],
        "answer": ["answer", qa, "--question", "nice?", "--context", "the river rose over"],
        "evaluate": ["evaluate", "masked-lm", lm, "--data", texts, "--limit", "3"],
        "pretrain": [
            *("pretrain", texts, "--model", lm, "--output", out, "--max-steps", "2"),
            *("--objective", "mlm", "--max-length", "16", "--batch-size", "4"),
        ],
    }


#: Commands that need no tokenizer, or copy its files without running them.
OWN_TOKENIZER = {"inspect", "convert"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "tokenizer_class"),
    [("hf_bert_impl", "MyTokenizer"), (None, "PreTrainedTokenizerFast")],
)
def test_no_command_runs_it_or_asks(with_code, marker, tmp_path, model_type, tokenizer_class):
    pytest.importorskip("datasets", reason="pip install -e '.[train]'")
    lm = with_code("BertForMaskedLM", model_type, tokenizer_class)
    qa = with_code("BertForQuestionAnswering", model_type, tokenizer_class)
    every = commands(lm, qa, tmp_path)
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    # In a process of its own, where it could be asked for consent by other ways than `sys.stdin`.
    results, left = run_commands(every.values(), environment, lines=CONSENT)
    assert not marker.exists()
    assert left == CONSENT
    for name, (status, _, said) in zip(every, results, strict=True):
        assert status in (0, 2)
        if status:
            is_code = tokenizer_class == "MyTokenizer" and name not in OWN_TOKENIZER
            assert is_code or name == "embed", (name, said)
            assert re.search(r"code of its own.*, which is not run", said), said
            assert said.count("error: ") == 1


@pytest.mark.parametrize(
    ("model_type", "tokenizer_class", "works"),
    [
        ("hf_bert_impl", "MyTokenizer", False),
        ("bert", "MyTokenizer", False),
        ("bert", "PreTrainedTokenizerFast", True),
        (None, "PreTrainedTokenizerFast", False),  # the config's class is code too
    ],
)
def test_every_line_is_a_text(
    with_code, marker, monkeypatch, capsys, tmp_path, model_type, tokenizer_class, works
):
    folder = with_code("BertModel", model_type, tokenizer_class)
    texts = ["yes", "y", "you and the river", "nice"]
    output = tmp_path / "vectors.npy"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
    status, said = main(["embed", str(folder), "-", "-o", str(output)]), capsys.readouterr()
    assert not marker.exists()
    if not works:
        assert status == 2
        assert re.search(r"^error: .* code of its own, which is not run", said.err, re.MULTILINE)
        assert "[y/N]" not in said.out + said.err
        return
    assert status == 0, said.err
    expected = TextEncoder.from_pretrained(folder).encode(texts)
    assert expected.shape == (4, 30)
    assert np.allclose(np.load(output), expected, atol=1e-6)


def test_a_config_names_no_code_of_the_hub(save_tiny, field="_attn_implementation"):
    folder = save_tiny("BertModel")
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | {field: "somebody/kernel"}))
    with pytest.raises(ValueError, match="'somebody/kernel', a kernel of the hub, which is code"):
        hf_bert_impl.BertModel.from_pretrained(folder)
    convert(folder, folder.parent / "converted")
    assert hf_bert_impl.load_any(folder).config._attn_implementation == "sdpa"
    assert "somebody" not in (folder.parent / "converted/config.json").read_text()
