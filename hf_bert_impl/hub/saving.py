"""A folder that a hub repository is made of: plain BERT, with this package's code beside it.

transformers copies code where a class has been registered for an Auto class, and it does so at
every `save_pretrained` from then on, with one Auto class a class. So nothing is registered here:
the files are copied and the Auto classes written into the configs afterwards, and checkpoints of a
Trainer in the same process stay free of both.
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
from hf_bert_impl.inference.loading import (
    TOKENIZER_CONFIG,
    brings_code,
    named_tokenizer,
    tokenizer_files,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG = "config.json"
#: By Auto class the file and the class that it finds, as transformers writes them into a config.
AUTO_MAP = {
    "AutoConfig": "configuration_bert.BertConfig",
    **{auto: f"modeling_bert.{name}" for auto, name in MODEL_CLASSES.items()},
}
#: The same for a tokenizer. transformers reads a pair, of which the first class is enough.
TOKENIZER_AUTO_MAP = {"AutoTokenizer": ["tokenization_bert.BertTokenizer", None]}


def code_files() -> list[Path]:
    """The files of the model, as they are uploaded: side by side."""
    folder = Path(hf_bert_impl.model.__file__ or "").parent
    return sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")


def loads_in_stock(config: Any) -> bool:
    """Whether transformers' own classes can load and rightly compute a model of this config."""
    return not config.is_extended and not config.pruned_heads


def save_with_code(
    model: PreTrainedModel,
    folder: Path,
    tokenizer: Any = None,
    *,
    code: bool = True,
    source: Path | None = None,
) -> None:
    """Save a model as a hub repository has it.

    Without `trust_remote_code` its config gives transformers' own classes, and with it this
    package's, for every Auto class that has a BERT. Models that those would compute wrongly are
    saved under a model type of their own, which stock transformers refuses.

    Args:
        model: A model of this package.
        folder: Where to; it is made if it is missing.
        tokenizer: Saved beside the model.
        code: Whether the code comes along. Without it the folder is what `save_pretrained` writes.
        source: The folder that the tokenizer was loaded from. If it is not BERT's own, its files
            are copied from there as they are.

    Raises:
        InputError: The model's class is none of this package's own, so its code would not be there;
            or the tokenizer has code of its own, which the folder cannot take.
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
    except SafetensorError as error:  # what safetensors says of a full disk
        raise OSError(
            f"The weights cannot be written ({one_line(error)}). Free some disk space, or "
            "choose another folder."
        ) from error
    set_auto_map(folder / CONFIG, AUTO_MAP if code else None)
    if tokenizer is not None:
        _save_tokenizer(tokenizer, folder, code, source)
    if code:
        for path in code_files():
            if (folder / path.name).exists():
                raise InputError(
                    f"The tokenizer and this package both have a file {path.name}. Rename the "
                    "tokenizer's, also in its auto_map, or push with `code=False`."
                )
            shutil.copyfile(path, folder / path.name)


def _save_tokenizer(tokenizer: Any, folder: Path, code: bool, source: Path | None) -> None:
    named = None if source is None else named_tokenizer(str(source), {})
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
    # transformers itself loads a tokenizer of another kind, such as sentencepiece.
    if is_ours or not brings_code(tokenizer):
        set_auto_map(folder / TOKENIZER_CONFIG, TOKENIZER_AUTO_MAP if code and is_ours else None)


def set_auto_map(file: Path, auto_map: Mapping[str, Any] | None) -> None:
    """Replace the Auto classes that a config names.

    Args:
        file: The config, of a model or a tokenizer.
        auto_map: Auto class to file and class; None removes those that there are.
    """
    fields = read_json(file)
    before = fields.pop("auto_map", None)
    if auto_map is not None:
        fields["auto_map"] = dict(auto_map)
    elif before is None:
        return
    text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    file.write_text(text, encoding="utf-8")


def file_sizes(folder: Path) -> dict[str, int]:
    """Every file below a folder, by its path from there, with its size in bytes."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
