"""Load models and tokenizers, in a precision and on a device."""

from typing import Any

import torch
import transformers
from transformers import AutoTokenizer
from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

from hf_bert_impl.checkpoint_files import (
    check_mismatched,
    check_model,
    check_size,
    check_tokenizer,
    explained,
)
from hf_bert_impl.checkpoints import Checkpoint, class_name, open_checkpoint
from hf_bert_impl.encoders.weights import adapt
from hf_bert_impl.errors import InputError, check_choice, check_whole, one_line
from hf_bert_impl.finite import check_finite
from hf_bert_impl.model import modeling_bert
from hf_bert_impl.model.configuration_bert import BertConfig
from hf_bert_impl.model.kernels import DTYPES as FLOAT_DTYPES
from hf_bert_impl.model.modeling_bert import BertPreTrainedModel
from hf_bert_impl.tokenization_bert import BertTokenizer
from hf_bert_impl.tokenizer_files import (
    OWN,
    TokenizerClass,
    UnusableTokenizer,
    has_tokenizer,
    named_tokenizer,
    require_tokenizer,
)

#: Names of `dtype`, and the dtype of the loaded weights.
DTYPES = FLOAT_DTYPES | dict.fromkeys(("int8", "auto"), torch.float32)
#: Names of `dtype` that need a prepared model.
PREPARED_DTYPES = ("int8", "auto")


def class_to_load(checkpoint: Checkpoint, head: str | None = None) -> Any:
    """The class of this package for BERT, or of transformers for another family.

    Args:
        checkpoint: An open checkpoint.
        head: As for `class_name`.

    Raises:
        InputError: The head is unknown, or the family has no such class.
    """
    name = class_name(checkpoint, head)
    cls = getattr(modeling_bert, name, None) or getattr(transformers, name, None)
    if cls is None:
        raise InputError(f"There is no {name}. Choose another `head`.", "head")
    return cls


def load_config(checkpoint: Checkpoint) -> Any:
    """The config of a checkpoint of BERT or of another family."""
    kind = class_to_load(checkpoint, "base").config_class
    return kind.from_pretrained(checkpoint.path, trust_remote_code=False)


def prepare_model(model: Any, dtype: str | torch.dtype | None) -> Any:
    """Prepares a model of this package or of another family for inference, in place."""
    is_ours = isinstance(model, BertPreTrainedModel)
    return model.prepare_for_inference(dtype) if is_ours else adapt(model, dtype)


def load_model(
    checkpoint: Checkpoint, head: str | None = None, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Loads a model, whose weights must be of the config's sizes and finite.

    Args:
        checkpoint: An open checkpoint.
        head: As for `class_name`.
        **options: Further arguments of `from_pretrained`.

    Returns:
        The model, in eval mode, and transformers' loading info.

    Raises:
        ValueError, OSError: The weights cannot be read, do not fit the config, or are not finite.
    """
    cls, path = class_to_load(checkpoint, head), checkpoint.path
    check_size(path, options, checkpoint.config)
    try:
        with explained(check_model, path, options):
            model, info = cls.from_pretrained(
                path, output_loading_info=True, ignore_mismatched_sizes=True, **options
            )
        check_mismatched(path, info)
    except RuntimeError as error:
        raise InputError(
            f"The weights of {checkpoint.name} do not load as {cls.__name__} "
            f"({one_line(error)[:300]}). Restore the files, or choose another `head`.",
            "head",
        ) from error
    check_finite(model, checkpoint.name)
    return model.eval(), info


def load_whole(
    checkpoint: Checkpoint,
    head: str | None = None,
    remedy: str = "use a checkpoint that has them",
    **options: Any,
) -> tuple[Any, list[str]]:
    """Loads a model as `load_model` does, and raises an error if weights are missing.

    Args:
        checkpoint: An open checkpoint.
        head: As for `class_name`.
        remedy: The remedy for missing weights, for messages.
        **options: Further arguments of `from_pretrained`.

    Returns:
        The model in eval mode, without a pooler if the checkpoint has none; and the names of the
        checkpoint's tensors that the class does not use.

    Raises:
        InputError: Weights are missing.
    """
    model, info = load_model(checkpoint, head, **options)
    missing = info["missing_keys"]
    if missing and all(key.startswith("pooler.") for key in missing):
        model, info = load_model(checkpoint, head, add_pooling_layer=False, **options)
        missing = info["missing_keys"]
    check_whole(checkpoint.name, missing, type(model).__name__, remedy)
    return model, sorted(info["unexpected_keys"])


def load_prepared(
    model: str, head: str, dtype: str | None = None, batch_invariant: bool = False
) -> tuple[Any, Any]:
    """Loads a fine-tuned model with its tokenizer, prepared for inference.

    Args:
        model: A folder or a hub id.
        head: The required head, as for `class_name`.
        dtype: As for `TextEncoder`.
        batch_invariant: As for `TextEncoder`; no effect on the heads of other families.

    Raises:
        ValueError, OSError: The dtype is unknown, or the checkpoint cannot be used.
    """
    loading_options(dtype, prepare=True)  # checks it
    checkpoint = open_checkpoint(model, with_tokenizer=True, any_family=True)
    loaded, _ = load_whole(checkpoint, head)
    if batch_invariant and checkpoint.is_bert:  # before the kernels are chosen
        loaded.config.batch_invariant = True
    return prepare_model(loaded, dtype), load_tokenizer(checkpoint.path)


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


def load_tokenizer(path: str) -> Any:
    """This package's tokenizer, or transformers' if the checkpoint names another class.

    For example, multilingual models use another model's sentencepiece, and Japanese ones use MeCab.
    Custom code of a checkpoint is not run.

    Args:
        path: A folder or a hub id.

    Raises:
        ValueError, OSError: The tokenizer has custom code or needs a missing library, or its files
            are damaged or missing.
    """
    require_tokenizer(path)
    with explained(check_tokenizer, path, {}):
        return open_tokenizer(path, named_tokenizer(path))


def load_own_tokenizer(path: str) -> Any:
    """Loads a checkpoint's tokenizer; None if it has none."""
    return load_tokenizer(path) if has_tokenizer(path) else None


def refuse_code(path: str, found: TokenizerClass) -> None:
    """Raises UnusableTokenizer if the tokenizer is in the checkpoint's custom code only.

    transformers would load another tokenizer, with other ids.
    """
    if found.code is not None and tokenizer_class_from_name(found.name) is None:
        raise UnusableTokenizer(
            f"The tokenizer of {path}, {found.name}, is custom code, which is not run. If you "
            "trust it, load it by TextEncoder or AutoTokenizer with trust_remote_code=True."
        )


def open_tokenizer(path: str, found: TokenizerClass) -> Any:
    """Load a tokenizer of a known class; arguments and errors as for `load_tokenizer`."""
    refuse_code(path, found)
    if found.name in OWN:
        return BertTokenizer.from_pretrained(path)
    config = BertConfig()
    config.tokenizer_class = found.name
    try:
        # Otherwise transformers would prompt on standard input, which may hold the texts.
        return AutoTokenizer.from_pretrained(path, config=config, trust_remote_code=False)
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
