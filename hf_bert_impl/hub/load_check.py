"""Whether a folder, as a hub repository, loads where this package is not installed.

The folder is put into an empty cache of the hub under the repository's name, and another process
loads it from there without a network, by every Auto class: as it is, and with its code trusted.
That is the way that a user's process takes, which copies the code files one by one.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.file_download import repo_folder_name
from rich.text import Text
from torch import Tensor
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
_COMMIT = f"{1:040x}"
_STOCK_MODELS = "transformers.models.bert.modeling_bert"
#: Where transformers puts code from a repository.
_REMOTE = "transformers_modules."


class LoadingFailed(RuntimeError):
    """A folder does not load elsewhere as it should."""

    def __init__(self, report: LoadingReport) -> None:
        failures = [f"{row.loader}: {row.note}" for row in report.rows if not row.passed]
        super().__init__("; ".join(failures[:3]))
        self.report = report


@dataclasses.dataclass(frozen=True)
class LoadingRow:
    """One Auto class."""

    loader: str
    """The Auto class."""
    name: str
    """The class that it is to find."""
    stock: str
    """What it gave as it is: `transformers`, `refused`, or what went wrong."""
    trusted: str | None
    """What it gave with the code trusted: `this code`, or what went wrong; None without code."""
    max_error: float | None
    """Largest relative difference between the two, and from the model itself where it is its own
    class; None where there was nothing to compare."""
    passed: bool
    note: str = ""
    """Why it failed."""


@dataclasses.dataclass
class LoadingReport:
    """What every Auto class gave."""

    rows: list[LoadingRow]
    versions: dict[str, str]

    @property
    def passed(self) -> bool:
        """Whether every Auto class gave what it should."""
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
    folder: Path,
    repo_id: str,
    model: PreTrainedModel,
    tokenizer: Any = None,
    *,
    code: bool = True,
) -> LoadingReport:
    """Load a folder as a hub repository in another process, and compare with the model.

    Args:
        folder: What `save_with_code` wrote.
        repo_id: The repository's name.
        model: The model that was saved there.
        tokenizer: The tokenizer that was saved there.
        code: Whether code was saved there.

    Returns:
        A row for each Auto class, and one for AutoTokenizer.

    Raises:
        OSError: The other process ended early.
    """
    sides = ["stock", "trusted"] if code else ["stock"]
    # Read from the file in float32, as everybody who loads it does.
    saved = type(model).from_pretrained(folder, dtype=torch.float32, **_options(model)).eval()
    batches = {name: _batch(name, saved.config) for name in dict.fromkeys(MODEL_CLASSES.values())}
    texts = [] if tokenizer is None else tokenizer_texts(tokenizer)
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        _lay_out(work / "hub", repo_id, folder)
        torch.save(batches, work / "batches.pt")
        task = {
            "repository": repo_id,
            "sides": sides,
            "models": MODEL_CLASSES,
            "own": type(model).__name__,
            "refused": not loads_in_stock(saved.config),
            "texts": texts,
        }
        (work / "task.json").write_text(json.dumps(task), encoding="utf-8")
        _run(work)
        results = json.loads((work / "results.json").read_text(encoding="utf-8"))
        rows = [
            _row(auto_name, results["models"][auto_name], work, saved, batches[name])
            for auto_name, name in MODEL_CLASSES.items()
        ]
    if texts:
        rows.append(_tokenizer_row(tokenizer, results["tokenizers"], token_ids(tokenizer, texts)))
    wrong = _different_weights(model, saved)
    if wrong:
        note = f"{len(wrong)} weights are not those of the model, {wrong[0]} among them"
        rows.append(LoadingRow("weights", type(model).__name__, "other", None, None, False, note))
    return LoadingReport(rows, versions())


def _options(model: PreTrainedModel) -> dict[str, Any]:
    has_pooler = type(model).__name__ != "BertModel" or model.pooler is not None
    return {} if has_pooler else {"add_pooling_layer": False}


def _batch(name: str, config: Any) -> dict[str, Tensor]:
    choices = 2 if name == "BertForMultipleChoice" else 0
    tokens = random_tokens(config, _LENGTHS)
    return parity_batches(tokens, config, choices=choices)["padded right"]


def _lay_out(cache: Path, repo_id: str, folder: Path) -> None:
    """A cache of the hub that holds the folder as the newest commit of a repository."""
    root = cache / repo_folder_name(repo_id=repo_id, repo_type="model")
    (root / "snapshots").mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(_COMMIT, encoding="utf-8")
    snapshot = root / "snapshots" / _COMMIT
    try:
        snapshot.symlink_to(folder.resolve(), target_is_directory=True)
    except OSError:  # Windows grants links to administrators
        shutil.copytree(folder, snapshot)


def _run(work: Path) -> None:
    environment = os.environ | {
        "HF_HOME": str(work / "home"),
        "HF_HUB_CACHE": str(work / "hub"),
        "HF_MODULES_CACHE": str(work / "modules"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    ended = subprocess.run(
        # -P keeps the folder of the script, and with it our file names, out of the imports.
        [sys.executable, "-P", load_check_child.__file__, str(work)],
        env=environment,
        # In an empty folder: one with the repository's name would be loaded in place of it.
        cwd=work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise OSError(
            f"the process that loads the repository ended with status {ended.returncode} ({last}); "
            "expected it to load every class; nothing was published; look for a lack of memory, or "
            "for a transformers that the installed one replaced"
        )


def _row(
    auto_name: str,
    sides: Mapping[str, Any],
    work: Path,
    saved: PreTrainedModel,
    batch: dict[str, Tensor],
) -> LoadingRow:
    name = MODEL_CLASSES[auto_name]
    refusing = not loads_in_stock(saved.config)
    notes: list[str] = []
    stock = _stock_result(sides["stock"], name, refusing, notes)
    trusted = None
    if "trusted" in sides:
        trusted = _trusted_result(sides["trusted"], name, notes)
    loaded = [side for side in sides.values() if "error" not in side]
    is_own = type(saved).__name__ == name
    missing = [side["missing"] for side in loaded]
    if any(keys != missing[0] for keys in missing):
        notes.append(f"other weights are missing on the two sides: {missing}")
    lacking = [key for keys in missing for key in keys if is_own and not _may_lack(saved, key)]
    if lacking:
        notes.append(f"weights are missing: {', '.join(lacking[:3])}")
    outputs = {
        side: ModelOutput(**torch.load(work / f"{auto_name}.{side}.pt"))
        for side in sides
        if "error" not in sides[side]
    }
    if is_own:
        with torch.no_grad():
            outputs["model"] = saved(**batch, return_dict=True)
    max_error = _largest_error(outputs, batch, notes)
    return LoadingRow(auto_name, name, stock, trusted, max_error, not notes, "; ".join(notes))


def _stock_result(side: Mapping[str, Any], name: str, refusing: bool, notes: list[str]) -> str:
    if "error" in side:
        if not refusing:
            notes.append(f"transformers refuses it: {side['error']}")
        return "refused"
    if refusing:
        notes.append("transformers loads it, and would compute something else")
    if (side["name"], side["module"]) != (name, _STOCK_MODELS):
        notes.append(f"as it is it gives {side['module']}.{side['name']}")
        return f"{side['module']}.{side['name']}"
    return "transformers"


def _trusted_result(side: Mapping[str, Any], name: str, notes: list[str]) -> str:
    if "error" in side:
        notes.append(f"its code does not load: {side['error']}")
        return "refused"
    remote = all(side[part].startswith(_REMOTE) for part in ("module", "config"))
    if side["name"] != name or not remote:
        notes.append(f"trusted it gives {side['module']}.{side['name']} of {side['config']}")
        return f"{side['module']}.{side['name']}"
    return "this code"


def _may_lack(saved: PreTrainedModel, key: str) -> bool:
    """Whether the checkpoint lacks a weight because the model has none."""
    return key.startswith("pooler.") and key not in saved.state_dict()


def _largest_error(
    outputs: dict[str, ModelOutput], batch: dict[str, Tensor], notes: list[str]
) -> float | None:
    """The largest relative difference between any two; what only some give is left out."""
    largest = []
    for left, right in itertools.combinations(outputs, 2):
        common = [name for name in outputs[left] if name in outputs[right]]
        ours, theirs = (
            ModelOutput(**{name: outputs[side][name] for name in common}) for side in (right, left)
        )
        report = compare_outputs(ours, theirs, attended_positions(batch))
        largest.append(max(row.max_relative for row in report.rows))
        if not report.passed:
            notes.append(
                f"{left} and {right} differ by {largest[-1]:.1e} (at most {FP32_TOLERANCE:.0e})"
            )
    return max(largest, default=None)


def _tokenizer_row(tokenizer: Any, sides: Mapping[str, Any], own: list[list[int]]) -> LoadingRow:
    notes = []
    words = {}
    for side, result in sides.items():
        binding = side == "trusted" or not brings_code(tokenizer)
        if "error" in result:
            words[side] = "refused"
            if binding:
                notes.append(f"{side}: {result['error']}")
            continue
        words[side] = "this code" if result["module"].startswith(_REMOTE) else "transformers"
        if binding and result["ids"] != own:
            notes.append(f"{result['module']}.{result['name']} gives other ids than the tokenizer")
    return LoadingRow(
        "AutoTokenizer",
        type(tokenizer).__name__,
        words["stock"],
        words.get("trusted"),
        None,
        not notes,
        "; ".join(notes),
    )


def _different_weights(model: PreTrainedModel, saved: PreTrainedModel) -> list[str]:
    """The weights that are not what the model has, to the bit."""
    state = saved.state_dict()
    return [
        name
        for name, tensor in model.state_dict().items()
        if name not in state or not torch.equal(tensor.detach().cpu().float(), state[name])
    ]
