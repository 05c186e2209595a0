"""Checks that a folder loads as a hub repository where this package is not installed.

Another process loads it offline with the Auto class of its model, as it is and with its code
trusted. Both are compared with the model that this package loads. tests/hub tests all Auto classes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.utils import ModelOutput

from hf_bert_impl.auto import MODEL_CLASSES
from hf_bert_impl.hub import load_check_child
from hf_bert_impl.hub.saving import loads_in_stock
from hf_bert_impl.parity import ParityReport, ParityRow, attended_positions, compare_outputs
from hf_bert_impl.parity.batches import (
    parity_batches,
    random_tokens,
    token_ids,
    tokenizer_texts,
)
from hf_bert_impl.tokenizer_files import brings_code

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Different lengths create padding; four rows are two questions with two choices.
_LENGTHS = (5, 23, 9, 14)
#: The package of the classes on each side, and the case of a report's rows.
_PACKAGES = {"stock": "transformers", "trusted": "transformers_modules"}
_CASES = {"stock": "as it is", "trusted": "code trusted"}


def check_loading(
    folder: Path, model: PreTrainedModel, tokenizer: Any = None, *, code: bool = True
) -> ParityReport:
    """Loads a folder in another process as users of the hub do, and compares with the model.

    Args:
        folder: A folder written by `save_with_code`.
        model: The saved model.
        tokenizer: The saved tokenizer.
        code: Whether the code was saved.

    Returns:
        Rows of the cases `as it is` and `code trusted`: the class or its refusal, each output, and
        the token ids.

    Raises:
        OSError: The other process failed.
    """
    name = type(model).__name__
    has_pooler = name != "BertModel" or model.pooler is not None
    options = {} if has_pooler else {"add_pooling_layer": False}
    # In float32, as the other process loads it.
    saved = type(model).from_pretrained(folder, dtype=torch.float32, **options).eval()
    choices = 2 if name == "BertForMultipleChoice" else 0
    tokens = random_tokens(saved.config, _LENGTHS)
    batch = parity_batches(tokens, saved.config, choices=choices)["padded right"]
    texts = [] if tokenizer is None else tokenizer_texts(tokenizer)
    task = {
        "folder": str(folder.resolve()),
        "loader": next(auto for auto, cls in MODEL_CLASSES.items() if cls == name),
        "sides": ["stock", "trusted"] if code else ["stock"],
        "batch": batch,
        "texts": texts,
    }
    results = _run(task)
    report = ParityReport(title=f"loaded without hf_bert_impl by {task['loader']}")
    with torch.no_grad():
        own = saved(**batch, return_dict=True)
    for side, result in results["model"].items():
        refused = side == "stock" and not loads_in_stock(saved.config)
        row_name = "refusal" if refused else "class"
        report.rows.append(_row(side, row_name, _fault(side, result, refused)))
        if "error" in result:
            continue
        # transformers adds a random pooler where the model has none.
        given = {name: value for name, value in result["outputs"].items() if name in own}
        ours = ModelOutput(**{name: own[name] for name in given})
        mask = attended_positions(batch)
        report.extend(compare_outputs(ours, ModelOutput(**given), mask, case=_CASES[side]))
    weights = saved.state_dict()
    for name, tensor in model.state_dict().items():
        if name not in weights or not torch.equal(tensor.detach().cpu().float(), weights[name]):
            report.rows.append(ParityRow.failure("file", name, "it is not the model's"))
    for side, result in results["tokenizer"].items() if texts else ():
        if side == "stock" and brings_code(tokenizer):
            continue  # transformers may lack its class
        fault = result.get("error", "")
        if not fault and result["ids"] != token_ids(tokenizer, texts):
            fault = f"{result['module']} gives other ids than the tokenizer"
        report.rows.append(_row(side, "token ids", fault))
    return report


def _fault(side: str, result: Mapping[str, Any], refused: bool) -> str:
    """The fault of a side's result; empty for none."""
    if "error" in result:
        return "" if refused else f"it is refused: {result['error']}"
    if refused:
        return "transformers loads it, and would compute something else"
    module = str(result["module"])
    return "" if module.partition(".")[0] == _PACKAGES[side] else f"it gives a class of {module}"


def _row(side: str, name: str, fault: str) -> ParityRow:
    if fault:
        return ParityRow.failure(_CASES[side], name, fault)
    return ParityRow(_CASES[side], name, 0.0, 0.0, 0.0, 0.0, True)


def _run(task: dict[str, Any]) -> dict[str, Any]:
    """Runs the other process."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        torch.save(task, work / "task.pt")
        ended = subprocess.run(
            # -P keeps the script's folder, whose names would shadow others, out of sys.path.
            [sys.executable, "-P", load_check_child.__file__, scratch],
            env=os.environ
            | {"HF_HOME": scratch, "HF_MODULES_CACHE": scratch, "HF_HUB_OFFLINE": "1"},
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise OSError(
                f"The process that loads the repository ended with status {ended.returncode} "
                f"({last}). Nothing was published. Free some memory and run it again."
            )
        results: dict[str, Any] = torch.load(work / "results.pt")
        return results
