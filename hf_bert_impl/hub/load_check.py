"""Whether a folder, as a hub repository, loads where this package is not installed.

Another process loads it without a network by the Auto class of its model: as it is, and with its
code trusted. Both are compared with what this package loads from it. tests/hub loads a repository
by every Auto class.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.text import Text
from transformers.utils import ModelOutput

from hf_bert_impl.auto import MODEL_CLASSES
from hf_bert_impl.hub import load_check_child
from hf_bert_impl.hub.saving import loads_in_stock
from hf_bert_impl.inference.loading import brings_code
from hf_bert_impl.model_card import versions
from hf_bert_impl.parity import FP32_TOLERANCE, attended_positions, compare_outputs
from hf_bert_impl.parity.batches import (
    parity_batches,
    random_tokens,
    token_ids,
    tokenizer_texts,
)
from hf_bert_impl.tables import print_table

if TYPE_CHECKING:
    from rich.console import Console
    from transformers import PreTrainedModel

#: Lengths differ, so that there is padding; four rows make two questions of two choices.
_LENGTHS = (5, 23, 9, 14)
_STOCK, _REFUSED, _CODE = "transformers", "refused", "this code"


class LoadingFailed(RuntimeError):
    """A folder does not load elsewhere as it should."""

    def __init__(self, report: LoadingReport) -> None:
        failures = [f"{row.loader}: {row.note}" for row in report.rows if not row.passed]
        super().__init__("; ".join(failures))
        self.report = report


@dataclasses.dataclass(frozen=True)
class LoadingRow:
    """What one Auto class gave."""

    loader: str
    """The Auto class."""
    stock: str
    """What it gave as it is: `transformers`, `refused`, or the module of another class."""
    trusted: str | None
    """What it gave with the code trusted, as in `this code`; None without code."""
    max_error: float | None
    """Largest relative difference from this package's outputs; None where nothing was compared."""
    passed: bool
    note: str = ""
    """Why it failed."""


@dataclasses.dataclass
class LoadingReport:
    """What the Auto classes of the model and of its tokenizer gave."""

    rows: list[LoadingRow]
    versions: dict[str, str]

    @property
    def passed(self) -> bool:
        """Whether each Auto class gave what it should."""
        return all(row.passed for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        return {"passed": self.passed, **dataclasses.asdict(self)}

    def render(self, console: Console) -> None:
        """Print a line for each Auto class."""
        rows = [
            (
                row.loader,
                row.stock,
                row.trusted or "",
                "" if row.max_error is None else f"{row.max_error:.1e}",
                Text("ok", "green") if row.passed else Text("FAIL", "bold red"),
            )
            for row in self.rows
        ]
        columns = ("", "as it is", "code trusted", "difference", "")
        print_table(console, "loaded without hf_bert_impl", columns, rows, words=(0, 1, 2, 4))
        for row in self.rows:
            if not row.passed:
                console.print(f"{row.loader}: {row.note}", style="red", markup=False)


def check_loading(
    folder: Path, model: PreTrainedModel, tokenizer: Any = None, *, code: bool = True
) -> LoadingReport:
    """Load a folder in another process as users of the hub do, and compare with the model.

    Args:
        folder: What `save_with_code` wrote.
        model: The model that was saved there.
        tokenizer: The tokenizer that was saved there.
        code: Whether code was saved there.

    Returns:
        A row for the Auto class of the model, and one for AutoTokenizer.

    Raises:
        OSError: The other process ended early.
    """
    name = type(model).__name__
    has_pooler = name != "BertModel" or model.pooler is not None
    options = {} if has_pooler else {"add_pooling_layer": False}
    # Read from the file in float32, as everybody who loads it does.
    saved = type(model).from_pretrained(folder, dtype=torch.float32, **options).eval()
    choices = 2 if name == "BertForMultipleChoice" else 0
    tokens = random_tokens(saved.config, _LENGTHS)
    texts = [] if tokenizer is None else tokenizer_texts(tokenizer)
    task = {
        "folder": str(folder.resolve()),
        "loader": next(auto for auto, cls in MODEL_CLASSES.items() if cls == name),
        "sides": ["stock", "trusted"] if code else ["stock"],
        "batch": parity_batches(tokens, saved.config, choices=choices)["padded right"],
        "texts": texts,
    }
    results = _run(task)
    row = _model_row(task, saved, results["model"])
    weights = saved.state_dict()
    changed = [
        name
        for name, tensor in model.state_dict().items()
        if name not in weights or not torch.equal(tensor.detach().cpu().float(), weights[name])
    ]
    if changed:
        note = f"{len(changed)} weights are not the model's, {changed[0]} among them"
        row = dataclasses.replace(row, passed=False, note=f"{row.note}; {note}".lstrip("; "))
    rows = [row]
    if texts:
        rows.append(_tokenizer_row(results["tokenizer"], tokenizer, token_ids(tokenizer, texts)))
    return LoadingReport(rows, versions())


def _run(task: dict[str, Any]) -> dict[str, Any]:
    """What the other process gave."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        torch.save(task, work / "task.pt")
        ended = subprocess.run(
            # -P keeps the folder of the script, and with it our file names, out of the imports.
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
                f"the process that loads the repository ended with status {ended.returncode} "
                f"({last}); expected it to load the model; nothing was published; check for a lack "
                "of memory, or whether transformers was replaced meanwhile"
            )
        results: dict[str, Any] = torch.load(work / "results.pt")
        return results


def _model_row(
    task: dict[str, Any], saved: PreTrainedModel, sides: Mapping[str, Any]
) -> LoadingRow:
    stock = _STOCK if loads_in_stock(saved.config) else _REFUSED
    notes, errors = [], []
    with torch.no_grad():
        own = saved(**task["batch"], return_dict=True)
    for side, result in sides.items():
        gave, expected = _gave(result), stock if side == "stock" else _CODE
        if gave != expected:
            notes.append(f"{side}: {gave}, expected {expected} ({result.get('error', 'loaded')})")
        if "error" in result:
            continue
        # A pooler that the model has not is drawn at random.
        common = {name: value for name, value in result["outputs"].items() if name in own}
        ours = ModelOutput(**{name: own[name] for name in common})
        report = compare_outputs(ours, ModelOutput(**common), attended_positions(task["batch"]))
        errors.append(max(row.max_relative for row in report.rows))
        if not report.passed:
            notes.append(f"{side}: differs by {errors[-1]:.1e} (at most {FP32_TOLERANCE:.0e})")
    return _row(task["loader"], sides, max(errors, default=None), notes)


def _tokenizer_row(sides: Mapping[str, Any], tokenizer: Any, own: list[list[int]]) -> LoadingRow:
    # Stock transformers may lack the code of the tokenizer.
    binding = ["trusted"] if brings_code(tokenizer) else list(sides)
    notes = [
        f"{side}: {result.get('error', 'it gives other ids than the tokenizer')}"
        for side, result in sides.items()
        if side in binding and result.get("ids") != own
    ]
    return _row("AutoTokenizer", sides, None, notes)


def _row(
    loader: str, sides: Mapping[str, Any], error: float | None, notes: list[str]
) -> LoadingRow:
    trusted = _gave(sides["trusted"]) if "trusted" in sides else None
    return LoadingRow(loader, _gave(sides["stock"]), trusted, error, not notes, "; ".join(notes))


def _gave(result: Mapping[str, Any]) -> str:
    """Whose class was loaded, in a word."""
    if "error" in result:
        return _REFUSED
    package = str(result["module"]).partition(".")[0]
    return {"transformers_modules": _CODE}.get(package, package)
