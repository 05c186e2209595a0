"""What is in a checkpoint of any format, and what would become of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_bert_impl.errors import InputError

from .architecture import infer
from .maps.tables import detect
from .planning import plan
from .source import open_files


def list_tensors(src: Path) -> dict[str, Any]:
    """Lists the tensors of a checkpoint, and what each would become, without loading them.

    Args:
        src: A folder, a TensorFlow prefix, a file, an archive, or a hub id.

    Returns:
        JSON types: `path`, `format`, `software`, `container`, `class`, `files` with their bytes,
        how many `numbers` there are, `tensors`, and as `problem` why it cannot be converted.

    Raises:
        InputError: It is no checkpoint.
    """
    targets: dict[str, str] = {}
    software = class_name = problem = None
    with open_files(src) as files:
        reader = files.reader
        try:
            whole = plan(detect(reader.tensors), reader.tensors)
            software = whole.table.software
            for name, step in whole.steps.items():
                targets |= dict.fromkeys(step.sources, name)
            targets |= {name: f"({reason})" for name, reason in whole.ignored.items()}
            class_name = infer(whole, {}).class_name
        except InputError as error:
            problem = str(error)  # the tensors are listed all the same: they may show what is wrong
        return {
            "path": files.hub_id or str(files.given),
            "format": reader.format,
            "software": software,
            "container": reader.software,
            "class": class_name,
            "problem": problem,
            "files": [{"name": file.name, "bytes": file.stat().st_size} for file in reader.files],
            "numbers": sum(info.size for info in reader.tensors.values()),
            "tensors": [
                {
                    "name": name,
                    "shape": list(info.shape),
                    "dtype": info.dtype,
                    "becomes": targets.get(name),
                }
                for name, info in reader.tensors.items()
            ],
        }
