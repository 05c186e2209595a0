"""The files and the class of a checkpoint's tokenizer.

Commands use it to report a missing tokenizer before they import torch, which only the class of
another family needs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import read_json
from hf_bert_impl.head_names import BERT_TYPES

#: Files of BERT's tokenizer; one is enough.
TOKENIZERS = ("tokenizer.json", "vocab.txt")
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
#: Files of tokenizers of every class.
TOKENIZER_FILES = (
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    TOKENIZER_FILE,
)
#: Names of BERT's tokenizer in transformers 4 and 5.
OWN = ("BertTokenizer", "BertTokenizerFast")
#: The tokenizer code that `hf-bert push` uploads with a model.
_OWN_CODE = "tokenization_bert.BertTokenizer"
#: Files that belong to no tokenizer.
_NOT_TOKENIZER = re.compile(
    r"\..*|(bert_)?config\.json|generation_config\.json|.*\.index\.json|README\.md|modules\.json|"
    r"config_sentence_transformers\.json|sentence_bert_config\.json|conversion_report\.json|"
    r".*\.(safetensors|bin|pt|pth|ckpt|h5|msgpack|onnx|npz|npy|index|data-\d+-of-\d+)",
)


class UnusableTokenizer(InputError):
    """A tokenizer with custom code, or with a missing library."""


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
        return self.name in OWN and self.code is None


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
        from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

        named = TOKENIZER_MAPPING_NAMES.get(config["model_type"])
    return TokenizerClass(named or (code or _OWN_CODE).rpartition(".")[2], code or None)


def named_tokenizer(path: str) -> TokenizerClass:
    """The class of the tokenizer of a folder or hub id."""
    return tokenizer_class(read_fields(path, TOKENIZER_CONFIG), read_fields(path, "config.json"))


def read_fields(path: str, name: str, **place: Any) -> dict[str, Any]:
    """The content of a checkpoint's JSON file; {} without the file.

    Args:
        path: A folder or a hub id.
        name: The file.
        **place: Arguments of `cached_file`, such as `revision`.
    """
    from transformers.utils import cached_file

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
        return _other_files(folder)
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    cls = tokenizer_class_from_name(kind.name)
    own = getattr(cls, "vocab_files_names", {}).values()
    names = dict.fromkeys((*TOKENIZER_FILES, "chat_template.jinja", *own))
    files = (folder / name for name in names)
    return [file for file in files if file.is_file()]


def has_tokenizer(model: str) -> bool:
    """Whether a folder has a tokenizer (assumed of a hub id)."""
    folder = Path(model).expanduser()
    if not folder.is_dir() or any((folder / name).is_file() for name in TOKENIZERS):
        return True
    # Besides its settings, such as a model of sentencepiece.
    if all(file.suffix in (".json", ".jinja") for file in _other_files(folder)):
        return False
    kind = named_tokenizer(str(folder))
    files = [] if kind.is_own else tokenizer_files(folder, kind)
    return any(file.suffix not in (".json", ".jinja") for file in files)


def require_tokenizer(model: str) -> None:
    """Raises InputError for a folder without a tokenizer."""
    if not has_tokenizer(model):
        raise InputError(
            f"{model} has no tokenizer ({' or '.join(TOKENIZERS)}). Save it there with "
            "save_pretrained."
        )


def brings_code(tokenizer: Any) -> bool:
    """Whether a tokenizer has custom code, which is saved along with it."""
    return getattr(tokenizer, "_auto_class", None) is not None


def _other_files(folder: Path) -> list[Path]:
    files = (file for file in folder.iterdir() if not _NOT_TOKENIZER.fullmatch(file.name))
    return sorted(file for file in files if file.is_file())
