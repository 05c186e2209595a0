"""Loads a folder as if hf_bert_impl were not installed; `load_check.py` runs this file.

It writes the outputs of model and tokenizer for each side, or the error of loading them.
"""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

#: Errors of loading, for refused models and for broken code or files.
ERRORS = (ValueError, OSError, RuntimeError, ImportError, AttributeError, KeyError, TypeError)


def load_model(task: dict[str, Any], trusted: bool) -> dict[str, Any]:
    """The module of the model's class, and the outputs."""
    loader = getattr(transformers, task["loader"])
    model = loader.from_pretrained(
        task["folder"], trust_remote_code=trusted, dtype=torch.float32
    ).eval()
    with torch.no_grad():
        output = model(**task["batch"], return_dict=True)
    tensors = {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}
    return {"module": type(model).__module__, "outputs": tensors}


def load_tokenizer(task: dict[str, Any], trusted: bool) -> dict[str, Any]:
    """The module of the tokenizer's class, and the ids of the texts."""
    loader = transformers.AutoTokenizer
    tokenizer = loader.from_pretrained(task["folder"], trust_remote_code=trusted)
    ids = [list(tokenizer(text, verbose=False)["input_ids"]) for text in task["texts"]]
    return {"module": type(tokenizer).__module__, "ids": ids}


def attempt(load: Callable[..., Any], task: dict[str, Any]) -> dict[str, Any]:
    """The results of loading on each side, or the error."""
    results = {}
    for side in task["sides"]:
        try:
            results[side] = load(task, side == "trusted")
        except ERRORS as error:
            reason = " ".join(str(error).split())[:500]
            results[side] = {"error": f"{type(error).__name__}: {reason}"}
    return results


if __name__ == "__main__":
    # None makes imports of the package fail.
    sys.modules["hf_bert_impl"] = None  # type: ignore[assignment]
    work = Path(sys.argv[1])
    task = torch.load(work / "task.pt")
    results = {"model": attempt(load_model, task), "tokenizer": attempt(load_tokenizer, task)}
    torch.save(results, work / "results.pt")
    gc.freeze()  # a collection at exit would take a second
