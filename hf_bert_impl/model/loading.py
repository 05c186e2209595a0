"""Errors of `from_pretrained` for files that cannot be loaded: one line with a remedy.

`path` and `options` are its first argument and its keyword arguments. Files are checked only after
a load has failed. torch is imported where weights are read, so that a command can reject a model's
name without that wait.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer
from transformers.utils import (
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    cached_file,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

#: A model has at most `NUMBERS_PER_BYTE` numbers for each byte of its weights, and `SPARE_NUMBERS`
#: more. That allows weights of few bits, a larger vocabulary, more layers, a new head.
NUMBERS_PER_BYTE = 4
SPARE_NUMBERS = 2**28
WEIGHT_FILES = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = (
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    TOKENIZER_FILE,
)
#: The arguments of `from_pretrained` that `cached_file` takes.
_PLACE = ("cache_dir", "revision", "subfolder")


class CheckpointMismatch(RuntimeError, ValueError):
    """Tensors have other sizes than the config's.

    transformers raises RuntimeError for it. It is a ValueError as well, by which the command line
    reports a fault of the input.
    """


@contextlib.contextmanager
def explained(check: Callable[..., None], path: Any, options: Mapping[str, Any]) -> Iterator[None]:
    """Checks the files if loading fails, and raises what is wrong with them instead.

    A damaged file can raise anything in transformers (RecursionError, KeyError, Exception). Files
    are read a second time only after a failure.

    Args:
        check: Raises an error that says what is wrong: `check_tokenizer`, `check_model`.

    Raises:
        ValueError, OSError: By the check, or the path does not exist. If nothing is found, what was
            raised inside.
    """
    try:
        yield
    except Exception as error:
        try:
            check_exists(path)
            check(path, options)
        except (ValueError, OSError) as found:
            raise found from error
        raise


def check_model(path: Any, options: Mapping[str, Any]) -> None:
    """Reads everything that a model is made of.

    Raises:
        ValueError: A config is no JSON object.
        OSError: A weight file cannot be read.
    """
    check_config_file(path, options)
    file = find_file(path, GENERATION_CONFIG_NAME, options)
    if file is not None:
        read_json(file)
    for name in WEIGHT_FILES:
        file = find_file(path, with_variant(name, options.get("variant")), options)
        if file is None:
            continue
        shards = [os.path.basename(file)]
        if name.endswith(".json"):
            shards = list(read_json(file).get("weight_map", {}).values())
        for shard in dict.fromkeys(shards):
            read_weights(os.path.join(os.path.dirname(file), shard), "meta")
        break  # transformers takes the first in this order


def check_tokenizer(path: Any, options: Mapping[str, Any]) -> None:
    """Reads everything that a tokenizer is made of, except its vocab.txt.

    Raises:
        ValueError: A file is no JSON object, or tokenizer.json is no tokenizer.
    """
    for name in TOKENIZER_FILES:
        file = find_file(path, name, options)
        if file is None:
            continue
        read_json(file)
        if name == TOKENIZER_FILE:
            try:
                Tokenizer.from_file(file)
            except Exception as error:  # the library has no class of its own
                raise ValueError(
                    f"{file} is no tokenizer ({' '.join(str(error).split())[:200]}); copy it from "
                    "the checkpoint that it comes from"
                ) from error


def check_size(model: nn.Module, held: int, source: Any) -> None:
    """Checks that a config does not ask for memory out of all proportion to its weights.

    Args:
        model: The model of the config, on the meta device.
        held: The bytes of the weights.
        source: The checkpoint's name in the message.

    Raises:
        ValueError: The model is far larger.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    needed = sum(tensor.numel() for tensor in tensors.values())
    most = SPARE_NUMBERS + NUMBERS_PER_BYTE * held
    if needed > most:
        name = max(tensors, key=lambda name: tensors[name].numel())
        raise ValueError(
            f"the config of {source} makes a model of {needed} numbers ({name} is "
            f"{tuple(tensors[name].shape)}). Its weights have {held} bytes, which allow at most "
            f"{most}. Use the config that belongs to these weights."
        )


def mismatch_message(path: Any, mismatched: Any) -> str:
    """One line that names the tensors whose sizes differ between checkpoint and config.

    Args:
        path: Where the checkpoint is.
        mismatched: (name, shape in the checkpoint, shape in the model) each.
    """
    rows = [f"{name} is {tuple(old)}, the model has {tuple(new)}" for name, old, new in mismatched]
    shown = "; ".join(sorted(rows)[:3]) + (f"; and {len(rows) - 3} more" if len(rows) > 3 else "")
    return (
        f"the checkpoint {path} does not fit the config: {shown}. Use its own config, or "
        "ignore_mismatched_sizes=True to initialise these tensors (for example a new head)."
    )


def is_path(name: str) -> bool:
    """Whether this cannot be an id of the hub, which has one slash at most, between two names."""
    begins_so = os.path.isabs(name) or name.startswith((".", "~"))
    return begins_so or name.endswith("/") or name.count("/") > 1


def check_exists(path: Any) -> None:
    """Raises OSError if something that cannot be a name on the hub does not exist here."""
    path = os.fspath(path)
    if is_path(path) and not os.path.exists(path):
        raise OSError(
            f"{path} does not exist. Use the folder of a checkpoint, or its name on the hub."
        )


def check_config_file(path: Any, options: Mapping[str, Any]) -> None:
    """Raises ValueError if the config of a checkpoint is no JSON object."""
    file = find_file(path, CONFIG_NAME, options)
    if file is not None:
        read_json(file)


def find_file(path: Any, name: str, options: Mapping[str, Any]) -> str | None:
    """The file of this name of a checkpoint, in a folder or in the hub's cache, or None.

    For a config, `path` may be the file itself.
    """
    path = os.fspath(path)
    if os.path.isfile(path):
        return path if name == CONFIG_NAME else None
    if os.path.isdir(path):
        file = os.path.join(path, options.get("subfolder") or "", name)
        return file if os.path.exists(file) else None
    place = {key: options[key] for key in _PLACE if options.get(key) is not None}
    try:
        found: str | None = cached_file(
            path, name, local_files_only=True, _raise_exceptions_for_missing_entries=False, **place
        )
    except (OSError, ValueError):  # no such repository, or none of its files here
        return None
    return found


def with_variant(name: str, variant: str | None) -> str:
    """model.safetensors to model.fp16.safetensors, as transformers names variants."""
    if variant is None:
        return name
    stem, extension = name.rsplit(".", 1)
    return f"{stem}.{variant}.{extension}"


def read_weights(path: str, device: str = "cpu") -> dict[str, Tensor]:
    """Reads a file of weights: safetensors, or a pickle from which no code is run.

    Args:
        path: The file.
        device: Where the tensors are to be; "meta" reads names and shapes alone.

    Raises:
        OSError: It cannot be read, or holds something else.
    """
    from transformers.modeling_utils import load_state_dict  # heavy, and few ask for it

    weights: Any = None
    try:
        weights = load_state_dict(path, map_location=device)
        reason = "" if _is_table(weights) else "it holds no table of names and tensors"
    except Exception as error:  # what torch and safetensors raise depends on the damage
        # The first sentence says what is wrong; the rest of torch's is advice to trust the file.
        reason = " ".join(str(error).split()).partition(". ")[0][:200] or type(error).__name__
    if reason:
        raise OSError(f"{path} cannot be read ({reason}). Copy or download it again.")
    return dict(weights)


def _is_table(weights: Any) -> bool:
    from torch import Tensor

    return isinstance(weights, Mapping) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    )


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        ValueError: The file holds something else.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            value = json.load(file)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{os.fspath(path)} is not JSON ({reason}). Restore the file: it is a JSON object."
        ) from error
    if not isinstance(value, dict):
        raise ValueError(
            f"{os.fspath(path)} holds a {type(value).__name__}. Restore the file: it is a JSON "
            "object."
        )
    return value
