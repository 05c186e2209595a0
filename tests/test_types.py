"""mypy on programs that use the installed package."""

import os
import re
import subprocess
import sys

import pytest

PROGRAM = """
from typing import Any, assert_type
import numpy as np
from torch import Tensor
import hf_bert_impl as b

info = b.BertForMaskedLM.from_pretrained("x", output_loading_info=True)
assert_type(info, tuple[b.BertForMaskedLM, dict[str, Any]])
assert_type(b.BertModel.from_pretrained("x").config, b.BertConfig)
assert_type(b.BertTokenizer.from_pretrained("x"), b.BertTokenizer)
encoder = b.TextEncoder.from_pretrained("folder", truncate_dim=7, revision="main")
texts = ["a", "b"]
assert_type(encoder.encode_query(texts), np.ndarray)
assert_type(encoder.encode_query(texts, convert_to_tensor=True), Tensor)
assert_type(encoder.similarity(encoder.encode(texts), encoder.encode(texts)), Tensor)
encoder.encode_query(texts, 32)
b.load_any()
"""
#: mypy does not read these: they are most of its time, and none of our types depends on them.
UNREAD = """[mypy]
[mypy-ray.*,peft.*,torch._dynamo.*,torch._inductor.*,torch.distributed.*,torch.fx.*,torch.onnx.*]
follow_imports = skip
[mypy-transformers.generation.*,transformers.integrations.*,transformers.models.*]
follow_imports = skip
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_only_the_last_lines_are_wrong(tmp_path):
    if any("editable" in getattr(finder, "__name__", "").lower() for finder in sys.meta_path):
        # As `pip install -e .` made it before: type checkers do not run import hooks.
        pytest.skip("the package is installed by an import hook; run `pip install -e .` again")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(UNREAD)
    # Nothing but the installation may say where the package is.
    environment = {k: v for k, v in os.environ.items() if k not in ("MYPYPATH", "PYTHONPATH")}
    command = [sys.executable, "-m", "mypy", "--cache-dir", os.devnull, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    found = {int(line) for line in re.findall(r"\bprogram\.py:(\d+): error", done.stdout)}
    lines = len(PROGRAM.splitlines())
    assert found == {lines - 1, lines}, done.stdout + done.stderr
