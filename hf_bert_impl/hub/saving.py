"""A model folder for the hub: plain BERT with this package's code.

transformers copies the code of registered classes at every later `save_pretrained`, also for the
checkpoints of a Trainer. So this module registers no class: it copies the files and writes the Auto
classes into the configs itself.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

import hf_bert_impl.model
from hf_bert_impl.auto import MODEL_CLASSES
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.files.json_files import read_json
from hf_bert_impl.tokenizer_files import (
    TOKENIZER_CONFIG,
    brings_code,
    named_tokenizer,
    tokenizer_files,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG = "config.json"
#: Auto class to file and class, in the form of a config.
AUTO_MAP = {
    "AutoConfig": "configuration_bert.BertConfig",
    **{auto: f"modeling_bert.{name}" for auto, name in MODEL_CLASSES.items()},
}


def code_files() -> list[Path]:
    """The files of the model's code."""
    folder = Path(hf_bert_impl.model.__file__ or "").parent
    return sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")


def loads_in_stock(config: Any) -> bool:
    """Whether transformers' own classes compute a model of this config correctly."""
    return not config.is_extended and not config.pruned_heads


def save_with_code(
    model: PreTrainedModel,
    folder: Path,
    tokenizer: Any = None,
    *,
    code: bool = True,
    source: Path | None = None,
) -> None:
    """Saves a model as a hub repository.

    Auto classes load it as transformers' own classes, or with `trust_remote_code` as this
    package's. Models that transformers would compute wrongly get a model type that it refuses.

    Args:
        model: A model of this package.
        folder: The folder, created if missing.
        tokenizer: Saved with the model.
        code: Whether to include the code; without it the folder equals `save_pretrained`'s.
        source: The tokenizer's source folder, from which files of other tokenizers are copied.

    Raises:
        InputError: The class is not this package's own, or the tokenizer has code of its own.
        OSError: The disk is full.
    """
    cls = type(model)
    ours = getattr(hf_bert_impl, cls.__name__, None) if cls.__name__.startswith("Bert") else None
    if cls is not ours:
        raise InputError(
            f"The model is a {cls.__module__}.{cls.__name__}, not a class of hf_bert_impl. "
            f"Load it with one of {', '.join(dict.fromkeys(MODEL_CLASSES.values()))}, after "
            "merging any adapter."
        )
    try:
        model.save_pretrained(folder)
    except SafetensorError as error:  # of a full disk
        raise OSError(
            f"The weights cannot be written ({one_line(error)}). Free some disk space, or "
            "choose another folder."
        ) from error
    set_auto_map(folder / CONFIG, AUTO_MAP if code else None)
    if tokenizer is not None:
        _save_tokenizer(tokenizer, folder, source)
    if code:
        for path in code_files():
            if (folder / path.name).exists():
                raise InputError(
                    f"The tokenizer and this package both have a file {path.name}. Rename the "
                    "tokenizer's, also in its auto_map, or push with `code=False`.",
                    "code=False",
                )
            shutil.copyfile(path, folder / path.name)


def _save_tokenizer(tokenizer: Any, folder: Path, source: Path | None) -> None:
    named = None if source is None else named_tokenizer(str(source))
    if named is not None and named.code is not None and not brings_code(tokenizer):
        raise InputError(
            f"The tokenizer of {source} has code of its own ({named.code}), which is not "
            "run. If you trust it, load it with trust_remote_code=True and call "
            "hf_bert_impl.hub.pushing.push(model, repo_id, tokenizer=tokenizer)."
        )
    is_ours = isinstance(tokenizer, hf_bert_impl.BertTokenizer)
    if source is not None and named is not None and not is_ours:
        for file in tokenizer_files(source, named):
            shutil.copyfile(file, folder / file.name)
        return
    tokenizer.save_pretrained(folder)
    if not brings_code(tokenizer):
        set_auto_map(folder / TOKENIZER_CONFIG, None)


def set_auto_map(file: Path, auto_map: Mapping[str, Any] | None) -> None:
    """Replaces the Auto classes in a config of a model or a tokenizer; None removes them."""
    fields = read_json(file)
    before = fields.pop("auto_map", None)
    if auto_map is not None:
        fields["auto_map"] = dict(auto_map)
    elif before is None:
        return
    text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    file.write_text(text, encoding="utf-8")


def file_sizes(folder: Path) -> dict[str, int]:
    """The files below a folder, by relative path, with their sizes in bytes."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
