"""The files of a sentence-transformers model.

modules.json lists the modules: BERT, its pooling and others. Each has a folder with a config.json,
and weights if it has any. Settings of the whole model are in
config_sentence_transformers.json.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import check_text, read_json, write_json
from hf_bert_impl.tokenizer_files import read_fields

MODULES = "modules.json"
TRANSFORMER_CONFIG = "sentence_bert_config.json"
SENTENCE_CONFIG = "config_sentence_transformers.json"
#: Files in the folder itself; modules other than BERT have their own folders.
SENTENCE_FILES = (MODULES, SENTENCE_CONFIG, TRANSFORMER_CONFIG)

#: Fields that sentence-transformers does not check.
_FIELDS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("max_seq_length", "truncate_dim"), (int, "a whole number from 1")),
    **dict.fromkeys(("default_prompt_name", "similarity_fn_name"), (str, "a text")),
    "activation_function": (str, "a text"),
    "do_lower_case": (bool, "true or false"),
    "pooling_mode": ((str, list), "a text or a list of texts"),
    "prompts": (dict, "an object"),
}


def read_modules(folder: str | os.PathLike[str]) -> list[tuple[str, str]] | None:
    """Reads the list of modules.

    Args:
        folder: The folder with modules.json.

    Returns:
        Class name and folder of each module, in order; None without modules.json.

    Raises:
        ValueError: The file is damaged, or names a folder outside.
    """
    file = Path(folder) / MODULES
    if not file.is_file():
        return None
    listed = read_json(file, "a list of modules", list)
    check_text(listed, str(file))
    modules = []
    for entry in listed:
        kind, path = (
            (entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (None, None)
        )
        if not isinstance(kind, str) or not isinstance(path, str):
            raise InputError(
                f"modules.json of {folder} lists a module without 'type' or 'path'. Restore it."
            )
        if os.path.isabs(path) or ".." in Path(path).parts:
            raise InputError(
                f"modules.json of {folder} names {path!r}, outside that folder. Restore it."
            )
        modules.append((kind.rpartition(".")[2], path))
    return modules


def check_sentence_files(path: str, kind: str, place: Mapping[str, Any]) -> str:
    """Checks the class that saved a model of sentence-transformers, and its JSON files.

    Args:
        path: A folder or a hub id.
        kind: The class that would load it, such as "SentenceTransformer".
        place: `revision`, `token` and so on for `read_fields`.

    Returns:
        BERT's folder inside it.

    Raises:
        InputError: Another class saved the model, or a file is damaged or has a field of a wrong
            type.
    """
    saved = read_fields(path, SENTENCE_CONFIG, **place).get("model_type")
    if saved not in (None, kind):
        raise InputError(
            f"{path} is a {saved} of sentence-transformers, not a {kind}. Load it with "
            f"sentence_transformers.{saved}, and give that to hf_bert_impl.optimize."
        )
    if not os.path.isdir(path):
        return ""
    paths = [path for _, path in read_modules(path) or []]
    for folder in dict.fromkeys(Path(path, below) for below in ("", *paths)):
        for name in (*SENTENCE_FILES[1:], "config.json"):
            file = folder / name
            config = read_json(file) if file.is_file() else {}
            check_text(config, str(file))
            for field, (types, expected) in _FIELDS.items():
                value = config.get(field)
                is_number = types is not int or (type(value) is int and value >= 1)
                if value is not None and not (isinstance(value, types) and is_number):
                    raise InputError(
                        f"{file} has {field}={value!r:.60}, not {expected}. Restore it."
                    )
    return paths[0].strip("/") if paths else ""


def copy_sentence_modules(source: Path, folder: Path) -> list[str]:
    """Copies the pooling and further modules of a sentence-transformers model.

    The copy has BERT in the folder itself. The source may have it in a folder below, as early
    releases do.

    Args:
        source: The folder of the loaded model.
        folder: The folder of its copy.

    Returns:
        The copied names; none if the source is a bare BERT.

    Raises:
        ValueError: modules.json is damaged, or names a folder outside.
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
        write_json(folder / MODULES, listed)
    for path in dict.fromkeys(path.strip("/") for _, path in modules[1:]):
        hidden = any(part.startswith(".") for part in Path(path).parts)
        # Some modules, such as a normalization, have no files.
        if path not in ("", below) and not hidden and (source / path).is_dir():
            shutil.copytree(source / path, folder / path, dirs_exist_ok=True)
            names.append(f"{path}/")
    return names
