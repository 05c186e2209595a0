"""What is in a checkpoint of any format, and what would become of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hf_bert_impl.errors import InputError

from .architecture import infer
from .source import open_source
from .tensors import dtype_name


def list_tensors(src: Path) -> dict[str, Any]:
    """Lists the tensors of a checkpoint, and what each would become.

    Args:
        src: A folder, a TensorFlow prefix, a file, an archive, or a hub id.

    Returns:
        JSON types: `path`, `format`, `software`, `container`, `class`, `files` with their bytes,
        how many `numbers` there are, `tensors`, and as `problem` why it cannot be converted.

    Raises:
        InputError: It is no checkpoint.
    """
    becomes: dict[str, str] = {}
    software = class_name = problem = None
    with open_source(src) as source:
        found = source.checkpoint
        try:
            software = source.plan.table.software
            ignored = {name: f"({reason})" for name, reason in source.plan.ignored.items()}
            becomes = {**source.plan.becomes, **ignored}
            class_name = infer(source.plan, {}).class_name
        except InputError as error:
            problem = str(error)  # the tensors are listed all the same: they may show what is wrong
        return {
            "path": source.hub_id or str(source.given),
            "format": found.format,
            "software": software,
            "container": found.software,
            "class": class_name,
            "problem": problem,
            "files": [{"name": file.name, "bytes": file.stat().st_size} for file in found.files],
            "numbers": sum(math.prod(tensor.shape) for tensor in found.tensors.values()),
            "tensors": [
                {
                    "name": name,
                    "shape": list(tensor.shape),
                    "dtype": dtype_name(tensor),
                    "becomes": becomes.get(name),
                }
                for name, tensor in found.tensors.items()
            ],
        }
