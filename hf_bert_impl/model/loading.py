"""What `from_pretrained` says when files cannot be loaded: one line, and what to do.

`path` and `options` are its first argument and its keyword arguments.
"""

import math
import os
from collections.abc import Mapping
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers.utils import (
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)

from .json_files import (
    check_config_file,
    check_exists,
    check_text,
    find_file,
    parse_json,
    read_json,
)

#: A model has at most `NUMBERS_PER_BYTE` numbers for each byte of its weights, and `SPARE_NUMBERS`
#: more. That leaves room for weights of few bits, a larger vocabulary, more layers, a new head.
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

    transformers raises RuntimeError for it; that it is a wrong value as well tells the command line
    that the input is at fault.
    """


def check_folder(path: Any, options: dict[str, Any]) -> None:
    """Checks a local folder before anything is read. A name that is no folder is the hub's.

    Raises:
        OSError: It is a path that does not exist, it lacks a config or weights, or a safetensors
            file is cut short.
    """
    if path is None:
        return
    path = os.fspath(path)
    check_exists(path)
    if not os.path.isdir(path) or options.get("gguf_file") or options.get("subfolder"):
        return
    if options.get("config") is None and not os.path.isfile(os.path.join(path, CONFIG_NAME)):
        raise OSError(
            f"{path} has no {CONFIG_NAME}; give the folder that save_pretrained wrote, or pass "
            "config=BertConfig(...) with the sizes of the model"
        )
    variant = options.get("variant")
    names = [with_variant(name, variant) for name in WEIGHT_FILES]
    has_adapter = os.path.isfile(os.path.join(path, "adapter_config.json"))
    present = [name for name in names if os.path.isfile(os.path.join(path, name))]
    if not present and not has_adapter:
        raise OSError(
            f"{path} has a config but no weights; one of {', '.join(names)} is expected. "
            "Checkpoints of TensorFlow or Flax have to be converted first"
        )
    if present and options.get("use_safetensors") is not False:
        # transformers looks for the names in this order.
        for file in weight_files(path, present[0]):
            if file.endswith(".safetensors"):
                _check_safetensors(os.path.join(path, file))


def weight_files(folder: str, name: str) -> list[str]:
    """The weight files behind `name`: itself, or what an index lists."""
    if not name.endswith(".json"):
        return [name]
    try:
        index = read_json(os.path.join(folder, name), "an index of weights", remedy="copy it again")
    except ValueError as error:
        raise OSError(str(error)) from error
    # transformers reads both fields, whatever the first one holds.
    for field in ("metadata", "weight_map"):
        if not isinstance(index.get(field), dict) or (field == "weight_map" and not index[field]):
            raise OSError(
                f"{folder}/{name} is no index of weights ({field!r} is "
                f"{index.get(field, 'missing')!r:.40}); expected objects 'metadata' and "
                "'weight_map'; copy it again"
            )
    for shard in index["weight_map"].values():
        # transformers would follow an index out of the folder.
        if not isinstance(shard, str) or os.path.basename(shard) != shard:
            raise OSError(f"{folder}/{name} names {shard!r}, which is not a file of its folder")
        if not os.path.isfile(os.path.join(folder, shard)):
            raise OSError(f"{folder} lacks {shard}, which {name} names; copy it there")
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
        raise OSError(
            f"{path} cannot be read: it is cut short or no safetensors file ({size} bytes); copy "
            "or download it again"
        )


def check_size(model: nn.Module, held: int, source: Any) -> None:
    """Checks that a config does not ask for memory out of all proportion to its weights.

    Args:
        model: What the config makes, on the meta device.
        held: The bytes of the weights.
        source: What the message calls the checkpoint.

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
            f"{tuple(tensors[name].shape)}), and its weights have {held} bytes; expected at most "
            f"{most} numbers beside them; give the config that belongs to these weights"
        )


@torch.no_grad()
def not_finite(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers with a NaN or an infinity, by name; if sharded, this process's."""
    found = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if hasattr(tensor, "to_local"):  # sharded among processes
            tensor = tensor.to_local()
        if not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
            continue
        # A NaN becomes both ends. This takes a tenth of the time of a look at every number.
        if not all(math.isfinite(end.item()) for end in torch.aminmax(tensor)):
            found[name] = tensor
    return found


def check_finite(module: nn.Module, name: Any) -> None:
    """Checks the weights of a model that was loaded to be used, in one pass over them.

    `from_pretrained` itself takes such weights, as upstream does: somebody may want to look.

    Args:
        module: The model.
        name: Where it comes from, for the message.

    Raises:
        ValueError: A weight is NaN or infinite; every output would be.
    """
    odd = not_finite(module)
    if not odd:
        return
    first, tensor = next(iter(odd.items()))
    nan, total = int(tensor.isnan().sum()), tensor.numel()
    what = f"{nan} NaN" if nan else f"{int(tensor.isinf().sum())} infinities"
    more = f", and {len(odd) - 1} more tensors likewise" if len(odd) > 1 else ""
    wide = "load it in float32, " if tensor.dtype == torch.float16 and not nan else ""
    raise ValueError(
        f"{name} has weights that are no finite numbers: {what} among the {total} of "
        f"{first}{more}; expected finite ones; {wide}take a checkpoint from before its training "
        "failed, or restore its files"
    )


class NotFinite(ValueError):
    """A model has computed NaN or infinities."""


def check_numbers(numbers: Any, model: Any) -> None:
    """Checks what a model has computed: finite weights can still exceed the range of its dtype.

    Args:
        numbers: A tensor or an array.
        model: The model, whose dtype the message names.

    Raises:
        NotFinite: A number is NaN or infinite.
    """
    if bool(torch.as_tensor(numbers).isfinite().all()):
        return
    kind = str(model.dtype).removeprefix("torch.")
    wide = model.dtype in (torch.float32, torch.float64)
    advice = "take a checkpoint with smaller weights" if wide else "use `dtype='float32'`"
    raise NotFinite(
        f"the model's outputs in {kind} are NaN or infinite; expected numbers below "
        f"{torch.finfo(model.dtype).max:.3g}, in every layer; {advice}"
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
        f"the checkpoint {path} does not fit the config: {shown}; give the config that belongs to "
        "it, or ignore_mismatched_sizes=True to start these tensors anew (a new head, say)"
    )


def with_variant(name: str, variant: str | None) -> str:
    """model.safetensors to model.fp16.safetensors, as transformers names variants."""
    if variant is None:
        return name
    stem, extension = name.rsplit(".", 1)
    return f"{stem}.{variant}.{extension}"


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
        for shard in weight_files(os.path.dirname(file), os.path.basename(file)):
            read_weights(os.path.join(os.path.dirname(file), shard), "meta")
        break  # transformers takes the first in this order


def check_tokenizer(path: Any, options: Mapping[str, Any]) -> None:
    """Reads everything that a tokenizer is made of, except its vocab.txt.

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
    from transformers.modeling_utils import load_state_dict  # heavy, and few ask for it

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
