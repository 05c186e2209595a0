"""Loads a repository where hf_bert_impl is not installed; `load_check.py` runs this file.

It reads one JSON file: the repository, the classes to load, a batch for each, and texts. It writes
what each class gave: its module, the weights that were missing, and the outputs.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

#: What loading raises where transformers refuses, or where code or files are broken.
ERRORS = (ValueError, OSError, RuntimeError, ImportError, AttributeError, KeyError, TypeError)


def load(
    repository: str, auto_name: str, *, trusted: bool, new_head: bool
) -> tuple[Any, dict[str, Any]]:
    """Load a model by an Auto class; the second value describes it, or says why not."""
    loader = getattr(transformers, auto_name)
    options: dict[str, Any] = {"dtype": torch.float32, "output_loading_info": True}
    if new_head:
        # Every class takes 2 labels. A classifier of another size is drawn at random.
        options |= {"num_labels": 2, "ignore_mismatched_sizes": True}
    try:
        model, info = loader.from_pretrained(repository, trust_remote_code=trusted, **options)
    except ERRORS as error:
        return None, refusal(error)
    missing = sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})
    return model.eval(), describe(model) | {
        "config": type(model.config).__module__,
        "missing": missing,
    }


def refusal(error: Exception) -> dict[str, Any]:
    """Why something could not be loaded."""
    return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}


def describe(loaded: Any) -> dict[str, Any]:
    """Class and module of an object."""
    return {"name": type(loaded).__name__, "module": type(loaded).__module__}


def outputs(model: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """The tensors that a model gives."""
    with torch.no_grad():
        output = model(**batch, return_dict=True)
    return {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}


def check(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Load everything once as it is and once trusted."""
    repository, sides = task["repository"], task["sides"]
    batches = torch.load(folder / "batches.pt")
    results: dict[str, Any] = {"models": {}, "tokenizers": {}}
    for auto_name, name in task["models"].items():
        row = results["models"][auto_name] = {}
        drawn = None
        for side in sides:
            model, row[side] = load(
                repository,
                auto_name,
                trusted=side == "trusted",
                # transformers must be able to refuse what it should, also for its sizes.
                new_head=name != task["own"] and (side == "trusted" or not task["refused"]),
            )
            if model is None:
                continue
            # A head that the checkpoint lacks is drawn at random: both sides get the same one.
            if drawn is None:
                state = model.state_dict()
                drawn = {key: state[key] for key in row[side]["missing"]}
            else:
                model.load_state_dict(drawn, strict=False)
            torch.save(outputs(model, batches[name]), folder / f"{auto_name}.{side}.pt")
    if task["texts"]:
        for side in sides:
            try:
                tokenizer = transformers.AutoTokenizer.from_pretrained(
                    repository, trust_remote_code=side == "trusted"
                )
            except ERRORS as error:
                results["tokenizers"][side] = refusal(error)
                continue
            encoded = [tokenizer(text, verbose=False)["input_ids"] for text in task["texts"]]
            results["tokenizers"][side] = describe(tokenizer) | {"ids": encoded}
    return results


if __name__ == "__main__":
    # None makes every import of the package fail, as if it were not there.
    sys.modules["hf_bert_impl"] = None  # type: ignore[assignment]
    work = Path(sys.argv[1])
    given = json.loads((work / "task.json").read_text(encoding="utf-8"))
    (work / "results.json").write_text(json.dumps(check(given, work)), encoding="utf-8")
    gc.freeze()  # else the end would look for garbage among all that was imported, for a second
