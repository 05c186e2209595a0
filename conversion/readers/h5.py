"""Keras weights: `tf_model.h5` of transformers' TFBert classes.

Names are the full paths of the datasets, `bert/tf_bert_for_pre_training/bert/embeddings/…:0`. In
shards the first two parts are missing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from torch import Tensor

from hf_bert_impl.extras import require

from ..tensors import DTYPES, Checkpoint, Unread
from .mapped import byte_size, map_file, most_bytes, read_at, reading, tensor_at

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: The signature may follow a user block of 512 bytes or a larger power of two.
_SIGNATURE_PLACES = (0, *(1 << power for power in range(9, 21)))
_PROGRAM = Path(__file__).with_name("hdf5_process.py")
#: Timeout in seconds, plus the time for the file's bytes.
_SECONDS, _BYTES_PER_SECOND = 60, 5 << 20


def read_h5(path: Path) -> Checkpoint:
    """Read an HDF5 file by h5py, in a process of its own.

    Raises:
        InputError: The file is damaged, has links or numbers in other files, or h5py is missing.
    """
    require("h5py", "convert", "a Keras checkpoint")
    with (
        reading("HDF5", path),
        tempfile.TemporaryDirectory(prefix="hf-bert-h5-", ignore_cleanup_errors=True) as folder,
    ):
        out, most = Path(folder, "numbers"), most_bytes(path)
        seconds = _SECONDS + path.stat().st_size // _BYTES_PER_SECOND
        # -P: the program's folder is not searched for modules.
        command = [sys.executable, "-P", str(_PROGRAM), str(path), str(out), str(most)]
        try:
            run = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            raise ValueError(f"HDF5's library takes more than {seconds} seconds") from None
        if run.returncode or not run.stdout:
            raise ValueError(f"HDF5's library ends with status {run.returncode}")
        answer = json.loads(run.stdout)
        if "error" in answer:
            raise ValueError(answer["error"])
        data = map_file(out)
        tensors: dict[str, Tensor | Unread] = {}
        at = 0
        for name, shape, dtype in answer["tensors"]:
            if dtype not in DTYPES:
                tensors[name] = Unread(tuple(shape), dtype)
                continue
            tensors[name] = tensor_at(data, at, shape, dtype)
            at += byte_size(shape, dtype)
    return Checkpoint(tensors, answer["software"])


def is_h5(path: Path) -> bool:
    """Whether a file is HDF5, by its signature."""
    return any(read_at(path, place, len(_SIGNATURE)) == _SIGNATURE for place in _SIGNATURE_PLACES)
