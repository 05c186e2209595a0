"""Load models and tokenizers, in a precision and on a device."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer
from transformers.models.auto.tokenization_auto import (
    TOKENIZER_MAPPING_NAMES,
    tokenizer_class_from_name,
)
from transformers.utils import CONFIG_NAME, cached_file

from hf_bert_impl.checkpoint_files import (
    check_mismatched,
    check_model,
    check_size,
    check_tokenizer,
    explained,
)
from hf_bert_impl.encoders.weights import adapt
from hf_bert_impl.errors import InputError, check_choice, check_whole, one_line
from hf_bert_impl.files.json_files import read_json
from hf_bert_impl.finite import check_finite
from hf_bert_impl.head_names import BERT_TYPES, in_family
from hf_bert_impl.model import modeling_bert
from hf_bert_impl.model.configuration_bert import BertConfig
from hf_bert_impl.model.kernels import DTYPES as FLOAT_DTYPES
from hf_bert_impl.model.modeling_bert import BertPreTrainedModel
from hf_bert_impl.tokenization_bert import BertTokenizer

#: Names of `dtype`, and the dtype of the loaded weights.
DTYPES = FLOAT_DTYPES | dict.fromkeys(("int8", "auto"), torch.float32)
#: Names of `dtype` that need a prepared model.
PREPARED_DTYPES = ("int8", "auto")
TOKENIZER_CONFIG = "tokenizer_config.json"
#: Names of BERT's tokenizer in transformers 4 and 5.
_OWN = ("BertTokenizer", "BertTokenizerFast")
#: The tokenizer code that `hf-bert push` uploads with a model.
_OWN_CODE = "tokenization_bert.BertTokenizer"
#: Tokenizer files of every class.
_COMMON_FILES = (
    TOKENIZER_CONFIG,
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
#: Files that belong to no tokenizer.
_NOT_TOKENIZER = re.compile(
    r"\..*|(bert_)?config\.json|generation_config\.json|.*\.index\.json|README\.md|modules\.json|"
    r"config_sentence_transformers\.json|sentence_bert_config\.json|conversion_report\.json|"
    r".*\.(safetensors|bin|pt|pth|ckpt|h5|msgpack|onnx|npz|npy|index|data-\d+-of-\d+)",
)


class UnusableTokenizer(InputError):
    """A tokenizer with custom code, or with a missing library."""


def class_to_load(path: str, name: str) -> Any:
    """The class to load a checkpoint: this package's, or transformers' for another family.

    Args:
        path: A folder or a hub id.
        name: The class for BERT, such as "BertForQuestionAnswering".

    Raises:
        InputError: The family has no such class.
    """
    return named_class(in_family(name, read_fields(path, CONFIG_NAME, {}).get("model_type")))


def named_class(name: str) -> Any:
    """The class of this package for BERT, or of transformers; InputError if there is none."""
    cls = getattr(modeling_bert, name, None) or getattr(transformers, name, None)
    if cls is None:
        raise InputError(f"There is no {name}. Choose another `head`.", "head")
    return cls


def load_config(path: str) -> Any:
    """The config of a checkpoint of BERT or of another family: a folder or a hub id."""
    kind = class_to_load(path, "BertModel").config_class
    return kind.from_pretrained(path, trust_remote_code=False)


def prepare_model(model: Any, dtype: str | torch.dtype | None) -> Any:
    """Prepares a model of this package or of another family for inference, in place."""
    is_ours = isinstance(model, BertPreTrainedModel)
    return model.prepare_for_inference(dtype) if is_ours else adapt(model, dtype)


def load_model(
    path: str, cls: Any, shown: object = None, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Loads a model, whose weights must be of the config's sizes and finite.

    Args:
        path: A folder or a hub id.
        cls: The class to load it with.
        shown: The source for messages; None for `path`.
        **options: Further arguments of `from_pretrained`.

    Returns:
        The model, in eval mode, and transformers' loading info.

    Raises:
        ValueError, OSError: The weights cannot be read, do not fit the config, or are not finite.
    """
    shown = path if shown is None else shown
    check_size(path, options)
    try:
        with explained(check_model, path, options):
            model, info = cls.from_pretrained(
                path, output_loading_info=True, ignore_mismatched_sizes=True, **options
            )
        check_mismatched(path, info)
    except RuntimeError as error:
        raise InputError(
            f"The weights of {shown} do not load as {cls.__name__} ({one_line(error)[:300]}). "
            "Restore the files, or choose another `head`.",
            "head",
        ) from error
    check_finite(model, shown)
    return model.eval(), info


def load_whole(
    path: str,
    cls: Any,
    shown: object = None,
    remedy: str = "use a checkpoint that has them",
    **options: Any,
) -> tuple[Any, list[str]]:
    """Loads a model as `load_model` does, and raises an error if weights are missing.

    Args:
        path: As in `load_model`, like `cls`, `shown` and `options`.
        cls: As there.
        shown: As there.
        remedy: The remedy for missing weights, for messages.
        **options: As there.

    Returns:
        The model in eval mode, without a pooler if the checkpoint has none; and the names of the
        checkpoint's tensors that the class does not use.

    Raises:
        InputError: Weights are missing.
    """
    model, info = load_model(path, cls, shown, **options)
    missing = info["missing_keys"]
    if missing and all(key.startswith("pooler.") for key in missing):
        model, info = load_model(path, cls, shown, add_pooling_layer=False, **options)
        missing = info["missing_keys"]
    check_whole(path if shown is None else shown, missing, cls.__name__, remedy)
    return model, sorted(info["unexpected_keys"])


def loading_options(dtype: str | torch.dtype | None, prepare: bool) -> dict[str, torch.dtype]:
    """The arguments of `from_pretrained` for a precision.

    They are empty for a model that will be prepared, since preparing converts it.

    Args:
        dtype: A name or value of `DTYPES`; None for the saved dtype.
        prepare: Whether the model will be prepared.

    Raises:
        ValueError: The dtype is unknown, or needs a prepared model.
    """
    if dtype is None:
        return {}
    if dtype not in DTYPES.values():
        check_choice("dtype", dtype, DTYPES)
    if prepare:
        return {}
    if dtype in PREPARED_DTYPES:
        raise InputError(f"dtype={dtype!r} needs a prepared model. Use prepare=True.", "dtype")
    return {"dtype": DTYPES[dtype] if isinstance(dtype, str) else dtype}


def find_device(device: str | int | torch.device | None) -> torch.device:
    """The device, with its index if it has one; None for an accelerator, or the CPU without one.

    Raises:
        ValueError: This machine has no such device.
    """
    if device is None:
        has_one = torch.accelerator.is_available()
        device = torch.accelerator.current_accelerator() if has_one else "cpu"
    if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
        raise InputError(f"device is {device!r:.60}. Use one device, such as 'cpu' or 'cuda:1'.")
    try:
        found = torch.empty(0, device=device).device
        if found.type == "meta":
            raise ValueError("meta holds no numbers")
    except (RuntimeError, AssertionError, ValueError) as error:  # depends on the build of torch
        reason = one_line(error).partition(". ")[0][:120]
        raise InputError(
            f"This machine has no device {str(device)!r} ({reason}). Use 'cpu', or another one."
        ) from error
    return torch.device("cpu") if found.type == "cpu" else found  # "cpu:0" is the same


@dataclasses.dataclass(frozen=True)
class TokenizerClass:
    """The class of a checkpoint's tokenizer."""

    name: str
    """The name for AutoTokenizer without trust."""
    code: str | None
    """Its name in the checkpoint's custom code, such as "own.Words"; None without custom code."""

    @property
    def is_own(self) -> bool:
        """Whether it is BERT's tokenizer, with and without trust."""
        return self.name in _OWN and self.code is None


def tokenizer_class(settings: Mapping[str, Any], config: Mapping[str, Any]) -> TokenizerClass:
    """Decide the class of a checkpoint's tokenizer, with AutoTokenizer's precedence.

    tokenizer_config.json precedes config.json. A model without either has the tokenizer of its
    `model_type`. A class in the checkpoint's custom code is used only with trust.

    Args:
        settings: The content of tokenizer_config.json.
        config: The content of config.json.
    """
    code = settings.get("auto_map")
    if isinstance(code, Mapping):
        code = code.get("AutoTokenizer")
    if isinstance(code, list | tuple):  # a slow and a fast class; the fast one precedes
        code = next(filter(None, reversed(code)), None)
    if code and code.rpartition("--")[2] == _OWN_CODE:
        code = None
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    if not named and not code and config.get("model_type") not in BERT_TYPES:
        named = TOKENIZER_MAPPING_NAMES.get(config["model_type"])
    return TokenizerClass(named or (code or _OWN_CODE).rpartition(".")[2], code or None)


def named_tokenizer(path: str, place: Mapping[str, Any]) -> TokenizerClass:
    """The class of the tokenizer of a folder or hub id; arguments as for `load_tokenizer`."""
    return tokenizer_class(
        read_fields(path, TOKENIZER_CONFIG, place), read_fields(path, CONFIG_NAME, place)
    )


def read_fields(path: str, name: str, place: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a checkpoint's JSON file; {} without the file."""
    file = cached_file(
        path,
        name,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **place,
    )
    return {} if file is None else dict(read_json(file))


def tokenizer_files(folder: Path, kind: TokenizerClass) -> list[Path]:
    """The files of a folder's tokenizer, whose class is given.

    The vocabulary files of custom code are unknown. So all files except weights, configs and the
    card count then.
    """
    if kind.code is not None:
        files = (file for file in folder.iterdir() if not _NOT_TOKENIZER.fullmatch(file.name))
        return sorted(file for file in files if file.is_file())
    cls = tokenizer_class_from_name(kind.name)
    names = getattr(cls, "vocab_files_names", {}).values()
    files = (folder / name for name in dict.fromkeys((*_COMMON_FILES, *names)))
    return [file for file in files if file.is_file()]


def brings_code(tokenizer: Any) -> bool:
    """Whether a tokenizer has custom code, which is saved along with it."""
    return getattr(tokenizer, "_auto_class", None) is not None


def load_tokenizer(path: str, place: Mapping[str, Any]) -> Any:
    """This package's tokenizer, or transformers' if the checkpoint names another class.

    For example, multilingual models use another model's sentencepiece, and Japanese ones use MeCab.
    Custom code of a checkpoint is not run.

    Args:
        path: A folder or a hub id.
        place: `revision`, `token`, `subfolder` and the like for `from_pretrained`.

    Raises:
        ValueError, OSError: The tokenizer has custom code or needs a missing library, or its files
            are damaged or missing.
    """
    with explained(check_tokenizer, path, place):
        return open_tokenizer(path, place, named_tokenizer(path, place))


def refuse_code(path: str, found: TokenizerClass) -> None:
    """Raises UnusableTokenizer if the tokenizer is in the checkpoint's custom code only.

    transformers would load another tokenizer, with other ids.
    """
    if found.code is not None and tokenizer_class_from_name(found.name) is None:
        raise UnusableTokenizer(
            f"The tokenizer of {path}, {found.name}, is custom code, which is not run. If you "
            "trust it, load it by TextEncoder or AutoTokenizer with trust_remote_code=True."
        )


def open_tokenizer(path: str, place: Mapping[str, Any], found: TokenizerClass) -> Any:
    """Load a tokenizer of a known class; arguments and errors as for `load_tokenizer`."""
    refuse_code(path, found)
    if found.name in _OWN:
        return BertTokenizer.from_pretrained(path, **place)
    config = BertConfig()
    config.tokenizer_class = found.name
    try:
        # Otherwise transformers would prompt on standard input, which may hold the texts.
        return AutoTokenizer.from_pretrained(path, config=config, trust_remote_code=False, **place)
    except OSError:
        raise
    except ImportError as error:
        raise UnusableTokenizer(
            f"The tokenizer of {path}, {found.name}, needs a missing library ({one_line(error)}). "
            "Install it with pip."
        ) from error
    # A class that does not match the files may raise any exception.
    except Exception as error:
        raise InputError(
            f"The tokenizer of {path}, {found.name}, cannot be loaded ({one_line(error)}). Copy "
            "its files again, or fix tokenizer_class in its tokenizer_config.json."
        ) from error
