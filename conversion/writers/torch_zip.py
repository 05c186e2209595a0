"""PyTorch's own files: a state dict by `torch.save`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from hf_bert_impl.errors import InputError

from ..tensors import TensorInfo
from .checked import Read, read_announced


def write_torch(path: Path, tensors: Mapping[str, TensorInfo], read: Read) -> tuple[Path, ...]:
    """The `Writer` of PyTorch, whose file `torch.load(path, weights_only=True)` reads.

    All of it is held in memory: `torch.save` wants it at once.
    """
    state: OrderedDict[str, Tensor] = OrderedDict()
    for name, info in tensors.items():
        # A copy: of a view torch.save would write all that it is a view of.
        tensor = read_announced(info, read)
        state[name] = tensor.clone(memory_format=torch.contiguous_format)
    try:
        with path.open("wb") as file:  # a name given to torch.save would be in the bytes
            torch.save(state, file)
    except (OSError, RuntimeError) as error:  # RuntimeError: torch's own writer
        raise InputError(
            f"{path} cannot be written ({error})",
            "a folder that can be written to, with room for the result",
            "free some space, or give another folder",
        ) from None
    return (path,)
