"""The tensors of a checkpoint of any format, and their names in this package."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hf_bert_impl.errors import InputError

from .architecture import infer
from .source import open_source
from .tensors import dtype_name


def list_tensors(src: Path | str) -> dict[str, Any]:
    """List the tensors of a checkpoint, and the name that each would get.

    Args:
        src: A folder, a TensorFlow prefix, a file, an archive, or a hub id.

    Returns:
        JSON types: `path`, `format`, `software`, `container`, `class`, `files` with their bytes,
        the count of `numbers`, `tensors`, and as `problem` why it cannot be converted.

    Raises:
        InputError: It is no checkpoint.
    """
    becomes: dict[str, str] = {}
    software = class_name = problem = None
    with open_source(src) as source:
        checkpoint = source.checkpoint
        try:
            software = source.plan.table.software
            ignored = {name: f"({reason})" for name, reason in source.plan.ignored.items()}
            becomes = {**source.plan.becomes, **ignored}
            class_name = infer(source.plan, {}).class_name
        except InputError as error:
            problem = str(error)  # the list may show the cause
        return {
            "path": source.hub_id or str(source.given),
            "format": checkpoint.format,
            "software": software,
            "container": checkpoint.software,
            "class": class_name,
            "problem": problem,
            "files": [{"name": f.name, "bytes": f.stat().st_size} for f in checkpoint.files],
            "numbers": sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values()),
            "tensors": [
                {
                    "name": name,
                    "shape": list(tensor.shape),
                    "dtype": dtype_name(tensor),
                    "becomes": becomes.get(name),
                }
                for name, tensor in checkpoint.tensors.items()
            ],
        }
