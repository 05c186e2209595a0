"""Checks of a checkpoint's files, and errors of loading: one line with a remedy.

`path` and `options` are the first argument and the keyword arguments of `from_pretrained`. torch is
imported where weights are read, so that a command can reject a model's name without that wait.
"""

from __future__ import annotations

import contextlib
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

from hf_bert_impl.files.json_files import check_text, parse_json, read_json
from hf_bert_impl.head_names import check_name
from hf_bert_impl.tokenizer_files import TOKENIZER_FILE, TOKENIZER_FILES

if TYPE_CHECKING:
    from torch import Tensor

#: A model has at most `NUMBERS_PER_BYTE` numbers for each byte of its weights, and `SPARE_NUMBERS`
#: more. That allows weights of few bits, a larger vocabulary, more layers, a new head.
NUMBERS_PER_BYTE = 4
SPARE_NUMBERS = 2**28
WEIGHT_FILES = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
#: The arguments of `from_pretrained` that `cached_file` takes.
_PLACE = ("cache_dir", "revision", "subfolder")
_KINDS = {
    bool: "true or false",
    dict: "an object",
    float: "a number",
    int: "a number",
    list: "a list",
    str: "a text",
    type(None): "null",
}
_SWITCHES = ("do_lower_case", "tokenize_chinese_chars", "do_basic_tokenize", "strip_accents")
_TOKEN = (str, dict, type(None))
_FIELD_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_SWITCHES, (bool, type(None))),
    "added_tokens_decoder": (dict,),
    "additional_special_tokens": (list, type(None)),
    "auto_map": (dict, list, type(None)),
    "extra_special_tokens": (list, dict, type(None)),
    "model_max_length": (int, float, type(None)),
    "never_split": (list, str, type(None)),
    "tokenizer_class": (str, type(None)),
}


class CheckpointMismatch(RuntimeError, ValueError):
    """Tensors have other sizes than the config's.

    transformers raises RuntimeError for it. It is a ValueError as well, by which the command line
    reports a fault of the input.
    """


@contextlib.contextmanager
def explained(check: Callable[..., None], path: Any, *options: Mapping[str, Any]) -> Iterator[None]:
    """Checks the files if loading fails, and raises what is wrong with them instead.

    A damaged file can raise anything in transformers (RecursionError, KeyError, Exception). Files
    are read a second time only after a failure.

    Args:
        check: Raises an error that says what is wrong: `check_tokenizer`, `check_model`,
            `check_folder`; called with the further arguments.

    Raises:
        ValueError, OSError: By the check, or the path does not exist. If nothing is found, what was
            raised inside.
    """
    try:
        yield
    except Exception as error:
        try:
            check_name(os.fspath(path))
            check(path, *options)
        except (ValueError, OSError) as found:
            raise found from error
        raise


def check_model(path: Any, options: Mapping[str, Any]) -> None:
    """Reads everything that a model is made of.

    Raises:
        ValueError: A config is no JSON object.
        OSError: A weight file cannot be read.
    """
    for name in (CONFIG_NAME, GENERATION_CONFIG_NAME):
        file = find_file(path, name, options)
        if file is not None:
            read_json(file)
    for file in _weights(path, options):
        read_weights(file, "meta")


def _weights(path: Any, options: Mapping[str, Any]) -> list[str]:
    """The files of weights that transformers reads; none if they are not on this machine."""
    for name in WEIGHT_FILES:  # in transformers' order
        file = find_file(path, name, options)
        if file is not None:
            shards = (
                read_json(file).get("weight_map", {}).values() if name.endswith(".json") else ()
            )
            folder = os.path.dirname(file)
            return [os.path.join(folder, shard) for shard in dict.fromkeys(shards)] or [file]
    return []


def check_size(
    path: Any, options: Mapping[str, Any], config: Mapping[str, Any] | None = None
) -> None:
    """Checks a checkpoint's config by `check_model_size`, if its files are on this machine."""
    if config is None:
        file = find_file(path, CONFIG_NAME, options)
        config = {} if file is None else read_json(file)
    weights = _weights(path, options) if config else []
    if weights:
        check_model_size(config, sum(map(os.path.getsize, weights)), path)


def check_model_size(config: Mapping[str, Any], held: int, source: Any) -> None:
    """Checks that a config does not ask for memory out of all proportion to its weights.

    Args:
        config: The fields of a BERT.
        held: The bytes of the weights.
        source: The checkpoint's name in the message.

    Raises:
        ValueError: The model is far larger.
    """
    numbers = {name: value for name, value in config.items() if isinstance(value, int)}
    width = numbers.get("hidden_size", 0)
    tables = ("vocab_size", "max_position_embeddings", "type_vocab_size", "num_labels")
    sizes = {name: numbers.get(name, 0) * width for name in tables}
    layer = width * (4 * width + 2 * numbers.get("intermediate_size", 0))
    sizes["num_hidden_layers"] = numbers.get("num_hidden_layers", 0) * layer
    needed, most = sum(sizes.values()), SPARE_NUMBERS + NUMBERS_PER_BYTE * held
    if needed > most:
        name = max(sizes, key=sizes.__getitem__)
        raise ValueError(
            f"the config of {source} makes a model of {needed} numbers ({name}={numbers[name]}). "
            f"Its weights have {held} bytes, which allow at most {most}. Use the config that "
            "belongs to these weights."
        )


def check_mismatched(path: Any, info: Mapping[str, Any]) -> None:
    """Checks that the sizes of a checkpoint's tensors are the config's.

    Args:
        path: Where the checkpoint is.
        info: transformers' loading info.

    Raises:
        CheckpointMismatch: They are not.
    """
    mismatched = info["mismatched_keys"]
    if not mismatched:
        return
    rows = [f"{name} is {tuple(old)}, the model has {tuple(new)}" for name, old, new in mismatched]
    shown = "; ".join(sorted(rows)[:3]) + (f"; and {len(rows) - 3} more" if len(rows) > 3 else "")
    raise CheckpointMismatch(
        f"the checkpoint {path} does not fit the config: {shown}. Use its own config, or "
        "ignore_mismatched_sizes=True to initialise these tensors (for example a new head)."
    )


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


def read_weights(path: str, device: str = "cpu") -> dict[str, Tensor]:
    """Reads a file of weights: safetensors, or a pickle from which no code is run.

    Args:
        path: The file.
        device: Where the tensors are to be; "meta" reads names and shapes alone.

    Raises:
        OSError: It cannot be read, or holds something else.
    """
    from torch import Tensor
    from transformers.modeling_utils import load_state_dict  # heavy, and few ask for it

    weights: Any = None
    try:
        weights = load_state_dict(path, map_location=device)
        is_table = isinstance(weights, Mapping) and all(
            isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
        )
        reason = "" if is_table else "it holds no table of names and tensors"
    except Exception as error:  # what torch and safetensors raise depends on the damage
        # The first sentence says what is wrong; the rest of torch's is advice to trust the file.
        reason = " ".join(str(error).split()).partition(". ")[0][:200] or type(error).__name__
    if reason:
        raise OSError(f"{path} cannot be read ({reason}). Copy or download it again.")
    return dict(weights)


def check_folder(path: str) -> None:
    """Checks a local folder before anything is read; other names are the hub's.

    Raises:
        OSError: Config or weights are missing, or a safetensors file is truncated.
    """
    if not os.path.isdir(path):
        return
    if not os.path.isfile(os.path.join(path, CONFIG_NAME)):
        raise OSError(f"{path} has no {CONFIG_NAME}. Give the folder that save_pretrained wrote.")
    has_adapter = os.path.isfile(os.path.join(path, "adapter_config.json"))
    present = [name for name in WEIGHT_FILES if os.path.isfile(os.path.join(path, name))]
    if not present and not has_adapter:
        raise OSError(
            f"{path} has no weights ({', '.join(WEIGHT_FILES)}). Convert TensorFlow or Flax "
            f"weights first: hf-bert convert {path} -o NEW_FOLDER"
        )
    # transformers tries the names in this order.
    for file in weight_files(path, present[0]) if present else ():
        if file.endswith(".safetensors"):
            _check_safetensors(os.path.join(path, file))


def weight_files(folder: str, name: str) -> list[str]:
    """The weight files of `name`: itself, or the files of an index."""
    if not name.endswith(".json"):
        return [name]
    try:
        index = read_json(os.path.join(folder, name), "an index of weights", remedy="copy it again")
    except ValueError as error:
        raise OSError(str(error)) from error
    # transformers reads both fields.
    for field in ("metadata", "weight_map"):
        if not isinstance(index.get(field), dict) or (field == "weight_map" and not index[field]):
            raise OSError(
                f"{folder}/{name} is not an index of weights: {field!r} is "
                f"{index.get(field, 'missing')!r:.40}, not an object. Copy it again."
            )
    for shard in index["weight_map"].values():
        # transformers would follow an index out of the folder.
        if not isinstance(shard, str) or os.path.basename(shard) != shard:
            raise OSError(
                f"{folder}/{name} names {shard!r}, which is not a file of its folder. Copy the "
                "index again."
            )
        if not os.path.isfile(os.path.join(folder, shard)):
            raise OSError(f"{folder} has no {shard}, which {name} names. Copy it there.")
    return sorted(set(index["weight_map"].values()))


def _check_safetensors(path: str) -> None:
    """Raises OSError unless the file is as long as its header says.

    The format: eight bytes of header length (little-endian), the header in JSON with the offsets of
    every tensor, the tensors (https://github.com/huggingface/safetensors#format).
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if 8 + length <= size else b""
    try:
        tensors = {k: v for k, v in parse_json(header, path).items() if k != "__metadata__"}
        end = max((int(tensor["data_offsets"][1]) for tensor in tensors.values()), default=0)
    except (ValueError, KeyError, IndexError, AttributeError, TypeError):
        end = -1
    if end < 0 or 8 + length + end != size:
        raise OSError(f"{path} is cut short or no safetensors file ({size} bytes). Copy it again.")


def check_tokenizer(path: Any, options: Mapping[str, Any]) -> None:
    """Checks a tokenizer's files and their fields, except its vocab.txt.

    Args:
        path: A folder or a hub id.
        options: Further arguments of `from_pretrained`.

    Raises:
        ValueError: A file is not a JSON object, a field has a wrong type, or tokenizer.json is no
            tokenizer.
    """
    for name in TOKENIZER_FILES:
        file = find_file(path, name, options)
        if file is None:
            continue
        fields = read_json(file)
        check_text(fields, file)
        if name == TOKENIZER_FILE:
            try:
                Tokenizer.from_file(file)
            except Exception as error:  # the library has no class of its own
                raise ValueError(
                    f"{file} is no tokenizer ({' '.join(str(error).split())[:200]}); copy it from "
                    "the checkpoint that it comes from"
                ) from error
            continue
        for field, value in fields.items():
            kinds = _FIELD_KINDS.get(field, _TOKEN if field.endswith("_token") else None)
            if kinds is not None and not isinstance(value, kinds):
                raise ValueError(
                    f"{file} has {field}={value!r:.60}, not "
                    f"{' or '.join(_KINDS[kind] for kind in kinds)}. Restore the file."
                )
        decoder = fields.get("added_tokens_decoder") or {}
        wrong = [number for number, token in decoder.items() if not isinstance(token, dict)]
        if wrong:
            raise ValueError(
                f"{file} has {decoder[wrong[0]]!r:.60} as token {wrong[0]!r:.60} of "
                "added_tokens_decoder, not an object. Restore the file."
            )
