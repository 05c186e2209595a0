"""Checks of a checkpoint's files before they are loaded."""

import os
from collections.abc import Mapping
from typing import Any

from transformers.utils import CONFIG_NAME

from hf_bert_impl.files.json_files import check_text, parse_json, read_json
from hf_bert_impl.model.loading import (
    TOKENIZER_FILE,
    TOKENIZER_FILES,
    WEIGHT_FILES,
    check_exists,
    check_tokenizer,
    find_file,
    with_variant,
)

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


def check_folder(path: Any, options: dict[str, Any]) -> None:
    """Checks a local folder before anything is read; other names are the hub's.

    Raises:
        OSError: The path does not exist or is a file, config or weights are missing, or a
            safetensors file is truncated.
    """
    if path is None:
        return
    path = os.fspath(path)
    check_exists(path)
    if os.path.isfile(path):
        raise NotADirectoryError(f"{path} is a file. Give the folder that save_pretrained wrote.")
    if not os.path.isdir(path) or options.get("gguf_file") or options.get("subfolder"):
        return
    if options.get("config") is None and not os.path.isfile(os.path.join(path, CONFIG_NAME)):
        raise OSError(
            f"{path} has no {CONFIG_NAME}. Give the folder that save_pretrained wrote, or "
            "pass config=BertConfig(...)."
        )
    variant = options.get("variant")
    names = [with_variant(name, variant) for name in WEIGHT_FILES]
    has_adapter = os.path.isfile(os.path.join(path, "adapter_config.json"))
    present = [name for name in names if os.path.isfile(os.path.join(path, name))]
    if not present and not has_adapter:
        raise OSError(
            f"{path} has no weights ({', '.join(names)}). Convert TensorFlow or Flax "
            f"weights first: hf-bert convert {path} NEW_FOLDER"
        )
    if present and options.get("use_safetensors") is not False:
        # transformers tries the names in this order.
        for file in weight_files(path, present[0]):
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


def check_tokenizer_files(path: Any, options: Mapping[str, Any]) -> None:
    """Checks a tokenizer's files and their fields.

    Args:
        path: A folder or a hub id.
        options: Further arguments of `from_pretrained`.

    Raises:
        ValueError: A file is not a JSON object, or a field has a wrong type.
    """
    check_tokenizer(path, options)
    for name in TOKENIZER_FILES:
        file = find_file(path, name, options)
        if file is None:
            continue
        fields = read_json(file)
        check_text(fields, file)
        for field, value in fields.items() if name != TOKENIZER_FILE else ():
            kinds = _token_kinds(field)
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


def _token_kinds(field: str) -> tuple[type, ...] | None:
    """The allowed types of a tokenizer config's field; None for any."""
    return _FIELD_KINDS.get(field, _TOKEN if field.endswith("_token") else None)
