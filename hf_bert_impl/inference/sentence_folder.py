"""Reading a model in sentence-transformers' layout, from a folder or from the hub.

modules.json lists the modules: the transformer, its pooling, and what follows. Each has a folder
with a config.json, and weights where it has any; settings of the whole model are in
config_sentence_transformers.json. A checkpoint without modules.json is a bare BERT: mean pooling,
as sentence-transformers itself has it.

Modules are those of `pooling.py`, not the library's own, which compute on padded batches and would
make the library a need. Those that it has between BERT and the pooling (CNN, WordWeights) are its
own, in `library_modules.py`. The others (Router, StaticEmbedding and more) stand in place of
BERT or around several. A folder with them is loaded by the library itself, in which `register()`
puts this package's BERT; the error says so.
"""

import dataclasses
import itertools
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, device, nn
from transformers.utils import cached_file

from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.files.json_files import check_text, read_json
from hf_bert_impl.inference.library_modules import TOKEN_MODULES, LibraryPooling
from hf_bert_impl.inference.pooling import (
    Dense,
    LayerNorm,
    Normalize,
    Pooling,
    check_reads_vectors,
    setting,
    size,
)
from hf_bert_impl.inference.similarity import FUNCTIONS
from hf_bert_impl.model.loading import read_weights

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
TRANSFORMER_CONFIG = "sentence_bert_config.json"
#: What sentence-transformers has beside BERT, in the folder itself; further modules have folders.
SENTENCE_FILES = (MODULES, SETTINGS, TRANSFORMER_CONFIG)
#: Settings of a Transformer module that change nothing about the vectors of a text.
_TRANSFORMER_DEFAULTS = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "query_expansion": None,
    "tokenizer_name_or_path": None,
}
_ELSE = (
    "call hf_bert_impl.register() and load it by sentence_transformers.SentenceTransformer, which "
    "has every kind"
)


@dataclasses.dataclass
class SentenceModel:
    """What a checkpoint says about how it makes vectors."""

    subfolder: str = ""
    """Where BERT and its tokenizer are."""
    pooling: Pooling = dataclasses.field(default_factory=Pooling)
    modules: list[nn.Module] = dataclasses.field(default_factory=list)
    """What comes after the pooling, in order."""
    max_length: int | None = None
    """Tokens at which a text is cut; None where the tokenizer says."""
    do_lower_case: bool = False
    """Whether texts are lower-cased before the tokenizer's own steps."""
    prompts: dict[str, str] = dataclasses.field(default_factory=dict)
    default_prompt_name: str | None = None
    truncate_dim: int | None = None
    """How many of a vector's numbers are kept; None for all."""
    similarity_fn_name: str | None = None
    """One of `similarity.FUNCTIONS`; None where the files name none of them."""


def read_sentence_model(path: str, place: Mapping[str, Any]) -> SentenceModel:
    """Reads everything but BERT and its tokenizer.

    Args:
        path: A folder or a hub id.
        place: For a hub id, `revision`, `token`, `cache_dir` and `local_files_only`.

    Returns:
        What the files say; for a checkpoint without modules.json, mean pooling.

    Raises:
        ValueError: A file is damaged, or names a module or setting that is not supported.
        OSError: A module's files are missing.
    """
    modules = read_modules(path, place)
    if modules is None:
        return SentenceModel()
    kinds = [kind for kind, _ in modules]
    before = list(itertools.takewhile(TOKEN_MODULES.__contains__, kinds[1:]))
    if kinds[:1] != ["Transformer"] or kinds[1 + len(before) :][:1] != ["Pooling"]:
        shown = kinds[: len(before) + 2]
        raise InputError(
            f"modules.json of {path} begins with {', '.join(shown) or 'nothing'}",
            f"Transformer, then Pooling, between them at most {', '.join(TOKEN_MODULES)}",
            _ELSE,
        )

    model = SentenceModel(subfolder=modules[0][1].strip("/"))
    _read_transformer(path, place, model)
    for kind, folder in modules[1 + len(before) :]:
        try:
            _add_module(path, place, model, kind, folder)
        except (ValueError, RuntimeError) as error:  # RuntimeError: weights of other sizes
            what = one_line(error)
            raise ValueError(f"module {folder or kind} of {path}: {what}") from error
    if before:
        listed = modules[1 : len(before) + 2]
        model.pooling = LibraryPooling.load(path, place, listed, model.pooling)
    settings, where = _json(path, place, SETTINGS) or {}, f"{SETTINGS} of {path}"
    prompts = setting(where, settings, "prompts", dict) or {}
    model.prompts = {name: setting(where, prompts, name, str) or "" for name in prompts}
    model.default_prompt_name = setting(where, settings, "default_prompt_name", str)
    model.truncate_dim = size(where, settings, "truncate_dim")
    named = setting(where, settings, "similarity_fn_name", str)
    model.similarity_fn_name = named if named in FUNCTIONS else None  # "maxsim", for one
    return model


def read_modules(
    path: str | os.PathLike[str], place: Mapping[str, Any] | None = None
) -> list[tuple[str, str]] | None:
    """What modules.json lists.

    Args:
        path: A folder or a hub id.
        place: As for `read_sentence_model`.

    Returns:
        Class name and folder of each module, in order; None without modules.json.

    Raises:
        ValueError: The file is damaged, or names a folder outside.
    """
    listed = _json(os.fspath(path), place or {}, MODULES, kind=list)
    if listed is None:
        return None
    modules = []
    for entry in listed:
        kind, folder = (
            (entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (None, None)
        )
        if not isinstance(kind, str) or not isinstance(folder, str):
            raise InputError(
                f"modules.json of {path} is no list of modules",
                "objects with 'type' and 'path'",
                "restore it",
            )
        if os.path.isabs(folder) or ".." in Path(folder).parts:
            raise InputError(
                f"modules.json of {path} names {folder!r}, outside its own folder",
                "a folder in it",
                "restore it",
            )
        modules.append((kind.rpartition(".")[2], folder))
    return modules


def copy_sentence_modules(source: Path, folder: Path) -> list[str]:
    """Copies what makes a BERT a sentence-transformers model: its pooling and what follows.

    The copy has BERT in the folder itself, also where the source has it in one below, as the first
    releases had.

    Args:
        source: The folder that the model was loaded from.
        folder: Where its copy is.

    Returns:
        The names that were copied; none where the source is a bare BERT.

    Raises:
        ValueError: Its modules.json is damaged, or names a folder outside.
    """
    modules = read_modules(source)
    if not modules:
        return []
    below = modules[0][1].strip("/")
    places = {name: source / name for name in SENTENCE_FILES}
    if not places[TRANSFORMER_CONFIG].is_file():
        places[TRANSFORMER_CONFIG] = source / below / TRANSFORMER_CONFIG
    names = [name for name in SENTENCE_FILES if places[name].is_file()]
    for name in names:
        shutil.copyfile(places[name], folder / name)
    if below:
        listed = read_json(source / MODULES, "a list of modules", list)
        listed[0]["path"] = ""
        (folder / MODULES).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    for path in dict.fromkeys(path.strip("/") for _, path in modules[1:]):
        hidden = any(part.startswith(".") for part in Path(path).parts)
        # Some modules, such as a normalization, have no files.
        if path not in ("", below) and not hidden and (source / path).is_dir():
            shutil.copytree(source / path, folder / path, dirs_exist_ok=True)
            names.append(f"{path}/")
    return names


def _read_transformer(path: str, place: Mapping[str, Any], model: SentenceModel) -> None:
    config = _json(path, place, TRANSFORMER_CONFIG, model.subfolder) or {}
    where = f"{TRANSFORMER_CONFIG} of {path}"
    for name, value in _TRANSFORMER_DEFAULTS.items():
        if config.get(name, value) != value:
            raise InputError(
                f"{where} sets {name}={config[name]!r}", repr(value), "name another model"
            )
    options = setting(where, config, "processing_kwargs", dict) or {}
    text = setting(where, options, "text", dict) or {}
    if not (options.keys() <= {"text"} and text.keys() <= {"max_length"}):
        raise InputError(
            f"{where} sets processing_kwargs {options}",
            "no more than 'max_length' of 'text'",
            "name another model",
        )
    model.max_length = size(where, text, "max_length") or size(where, config, "max_seq_length")
    model.do_lower_case = bool(setting(where, config, "do_lower_case", bool))


def _add_module(
    path: str, place: Mapping[str, Any], model: SentenceModel, kind: str, folder: str
) -> None:
    config = _json(path, place, "config.json", folder)
    if kind == "Pooling" and not model.modules:
        if config is None:
            raise OSError(f"module {folder} of {path} has no config.json; copy it there")
        model.pooling = Pooling.from_config(config)
    elif kind == "Normalize":
        check_reads_vectors(config or {})
        model.modules.append(Normalize())
    elif kind in ("Dense", "LayerNorm"):
        with device("meta"):  # sizes that only the config claims take no memory
            module: nn.Module = (Dense if kind == "Dense" else LayerNorm)(config or {})
        module.load_state_dict(_weights(path, place, folder), assign=True)
        model.modules.append(module)
    elif kind != "Dropout":  # which does nothing outside training
        raise InputError(
            f"its class is {kind}",
            "one Pooling, then Dense, LayerNorm, Normalize or Dropout",
            _ELSE,
        )


def _weights(path: str, place: Mapping[str, Any], folder: str) -> dict[str, Tensor]:
    for name in ("model.safetensors", "pytorch_model.bin"):
        file = _find(path, place, name, folder)
        if file is not None:
            return read_weights(file)
    raise OSError(
        f"module {folder} of {path} has no weights; model.safetensors or pytorch_model.bin is "
        "expected there"
    )


def _find(path: str, place: Mapping[str, Any], name: str, folder: str = "") -> str | None:
    file: str | None = cached_file(
        path,
        name,
        subfolder=folder.strip("/"),
        _raise_exceptions_for_missing_entries=False,
        **place,
    )
    return file


def _json(
    path: str, place: Mapping[str, Any], name: str, folder: str = "", kind: type = dict
) -> Any:
    file = _find(path, place, name, folder)
    if file is None:
        return None
    where = f"{name} of {path}/{folder}"
    expected = "a JSON object" if kind is dict else "a list of modules"
    content = read_json(file, expected, kind)
    check_text(content, where)
    return content
