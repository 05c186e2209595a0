"""Code that comes with a checkpoint is not run, and no prompt is shown."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hf_bert_impl
from hf_bert_impl.conversion import convert
from tests.support.damage import fields

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
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        receiver, _, name = ast.unparse(node.func).rpartition(".")
        reads = name == "from_pretrained" and not PLAIN.fullmatch(receiver)
        reads |= name == "from_config" and "Auto" in receiver
        # A variable may have the name of a loader.
        reads |= name in LOADERS and bool(receiver or re.search(rf"import .*\b{name}\b", text))
        reads &= not (node.args and ast.unparse(node.args[0]) == "None")  # weights in memory
        explicit = any(keyword.arg == "trust_remote_code" for keyword in node.keywords)
        runs = name in FORBIDDEN and (not receiver or name == "get_class_from_dynamic_module")
        if runs or (reads and not explicit):
            yield f"line {node.lineno}: {name}"


def test_trust_is_said_by_name():
    found = {path: [*complaints(path.read_text("utf-8"))] for path in FILES}
    assert {path: lines for path, lines in found.items() if lines} == {}


MODULE = """
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast
open({marker!r}, "w").close()
class Config(BertConfig):
    model_type = "hf_bert_impl"
class Model(BertForMaskedLM):
    config_class = Config
class Words(PreTrainedTokenizerFast):
    pass
"""
MODEL = dict.fromkeys(
    ("AutoModel", "AutoModelForMaskedLM", "AutoModelForQuestionAnswering"), "own.Model"
)
OWN = {"AutoConfig": "own.Config", "AutoTokenizer": ["own.Words", None]}
MAP = {"auto_map": OWN | MODEL}


def with_code(folder, marker, model_type, tokenizer_class):
    """A model gets code of its own, which its config names for every Auto class."""
    hf_bert_impl.BertTokenizer.from_pretrained(folder).save_pretrained(folder)
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    settings = {"tokenizer_class": tokenizer_class, "model_input_names": inputs}
    fields("tokenizer_config.json", **settings, **MAP)(folder)
    fields("config.json", model_type=model_type, **MAP)(folder)
    (folder / "own.py").write_text(MODULE.format(marker=str(marker)))
    return folder


#: Runs commands, and says how each ended and what was left on standard input.
RUN = """
import json, sys
from hf_bert_impl.cli import main
for arguments in json.loads(sys.argv[1]):
    print("status", main([*map(str, arguments)]), file=sys.stderr)
print(sys.stdin.read(), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "tokenizer_class", "statuses"),
    [
        # `inspect` needs no tokenizer, and `convert` copies its files.
        ("hf_bert_impl", "MyTokenizer", [0, 0, 2, 2, 2, 2, 2]),
        (None, "PreTrainedTokenizerFast", [0, 0, 0, 0, 0, 0, 2]),
    ],
)
def test_no_command_runs_it_or_asks(
    save_tiny, write, tmp_path, model_type, tokenizer_class, statuses
):
    marker = tmp_path / "the-code-ran"
    lm, qa = (
        with_code(save_tiny(f"BertFor{head}"), marker, model_type, tokenizer_class)
        for head in ("MaskedLM", "QuestionAnswering")
    )
    texts = write("texts.txt", "the river rose over night .\nnice to meet you .\n" * 20)
    options = f"--output {tmp_path}/trained --max-steps 2 --objective mlm --max-length 16"
    commands = [
        ["inspect", lm],
        ["convert", lm, "-o", tmp_path / "converted"],
        ["fill-mask", lm, "the [MASK] rose"],
        ["answer", qa, "--question", "nice?", "--context", "the river rose over"],
        ["evaluate", "masked-lm", lm, texts, "--limit", "3"],
        ["pretrain", texts, "--model", lm, "--batch-size", "4", *options.split()],
        ["embed", lm, texts, "-o", tmp_path / "vectors.npy"],
    ]
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    # In a process of its own, where it could be asked for consent by other ways than `sys.stdin`.
    told = [sys.executable, "-c", RUN, json.dumps(commands, default=str)]
    pipes = {"capture_output": True, "text": True, "env": environment}
    done = subprocess.run(told, input="yes\n" * 50, check=True, **pipes)
    assert not marker.exists()
    assert done.stderr.endswith("yes\n" * 50 + "\n")  # none was read
    assert [*map(int, re.findall(r"^status (\d)$", done.stderr, re.MULTILINE))] == statuses
    errors = re.findall(r"^error: .*", done.stderr, re.MULTILINE)
    assert len(errors) == sum(map(bool, statuses)), done.stderr
    for error in errors:
        assert re.search("(code of its own|custom code).*, which is not run", error)


def test_a_config_names_no_code_of_the_hub(save_tiny):
    folder = save_tiny("BertModel")
    fields("config.json", _attn_implementation="somebody/kernel")(folder)
    with pytest.raises(ValueError, match="'somebody/kernel', a kernel of the hub, which is code"):
        hf_bert_impl.BertModel.from_pretrained(folder)
    convert(folder, folder.parent / "converted")
    assert hf_bert_impl.load_any(folder).config._attn_implementation == "sdpa"
    assert "somebody" not in (folder.parent / "converted/config.json").read_text()
