"""What is wrong with the files of a model or a tokenizer that could not be loaded."""

import os
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor
from transformers.modeling_utils import load_state_dict
from transformers.utils import GENERATION_CONFIG_NAME

from .json_files import check_config_file, check_text, find_file, read_json
from .loading import WEIGHT_FILES, weight_files, with_variant

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = (
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    TOKENIZER_FILE,
)


def check_model(path: Any, options: Mapping[str, Any]) -> None:
    """Reads everything that a model is made of.

    Args:
        path: First argument of `from_pretrained`.
        options: Its keyword arguments.

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
        for shard in weight_files(os.path.dirname(file), os.path.basename(file)):
            read_weights(os.path.join(os.path.dirname(file), shard), "meta")
        break  # transformers takes the first in this order


def check_tokenizer(path: Any, options: Mapping[str, Any]) -> None:
    """Reads everything that a tokenizer is made of, but its vocab.txt.

    Args:
        path: First argument of `from_pretrained`.
        options: Its keyword arguments.

    Raises:
        ValueError: A file is no JSON object, a field is of a wrong type, or tokenizer.json is none.
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
            kinds = _token_kinds(field)
            if kinds is not None and not isinstance(value, kinds):
                raise ValueError(
                    f"{file} has {field}={value!r:.60}; expected "
                    f"{' or '.join(_KINDS[kind] for kind in kinds)}; restore the file"
                )
        decoder = fields.get("added_tokens_decoder") or {}
        wrong = [number for number, token in decoder.items() if not isinstance(token, dict)]
        if wrong:
            raise ValueError(
                f"{file} has {decoder[wrong[0]]!r:.60} as token {wrong[0]!r:.60} of "
                "added_tokens_decoder; expected an object; restore the file"
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


def _token_kinds(field: str) -> tuple[type, ...] | None:
    """The types that a field of a tokenizer's config may have; None if any."""
    return _FIELD_KINDS.get(field, _TOKEN if field.endswith("_token") else None)


def read_weights(path: str, device: str = "cpu") -> dict[str, Tensor]:
    """Reads a file of weights: safetensors, or a pickle from which no code is run.

    Args:
        path: The file.
        device: Where the tensors are to be; "meta" reads names and shapes alone.

    Raises:
        OSError: It cannot be read, or holds something else.
    """
    weights: Any = None
    try:
        weights = load_state_dict(path, map_location=device)
        reason = "" if _is_table(weights) else "it holds no table of names and tensors"
    except Exception as error:  # what torch and safetensors raise depends on the damage
        # The first sentence says what is wrong; the rest of torch's is advice to trust the file.
        reason = " ".join(str(error).split()).partition(". ")[0][:200] or type(error).__name__
    if reason:
        raise OSError(f"{path} cannot be read ({reason}); copy or download it again")
    return dict(weights)


def _is_table(weights: Any) -> bool:
    return isinstance(weights, Mapping) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    )
