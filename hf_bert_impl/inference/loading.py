"""What an encoder is loaded by: its BERT in a precision and on a device, and its tokenizer."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import (
    get_tokenizer_config,
    tokenizer_class_from_name,
)

from hf_bert_impl.errors import InputError, check_choice, check_whole, one_line
from hf_bert_impl.model.configuration_bert import BertConfig
from hf_bert_impl.model.cpu_kernels import DTYPES as FLOAT_DTYPES
from hf_bert_impl.model.json_files import explained
from hf_bert_impl.model.loading import check_finite, check_tokenizer
from hf_bert_impl.model.modeling_bert import BertModel
from hf_bert_impl.model.tokenization_bert import BertTokenizer

#: What `dtype` may be called, and the type of the weights without preparing.
DTYPES = {**FLOAT_DTYPES, "int8": torch.float32, "auto": torch.float32}
#: The names of `DTYPES` that only a prepared model can have.
PREPARED_DTYPES = ("int8", "auto")
#: Tokenizer classes that are all in tokenizer.json: no config says which they are.
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")


class _SentenceBert(BertModel):
    """BERT without its pooler. A checkpoint's weights of other heads cause no warning."""

    _keys_to_ignore_on_load_unexpected = [  # noqa: RUF012 (transformers' own form)
        r"embeddings\.position_ids$",
        r"(^|\.)pooler\.",
        r"^(cls|classifier|qa_outputs)\.",
    ]

    def __init__(self, config: Any) -> None:
        super().__init__(config, add_pooling_layer=False)


def loading_options(dtype: str | torch.dtype | None, prepare: bool) -> dict[str, torch.dtype]:
    """What `from_pretrained` needs for a precision.

    That is nothing where the model is prepared: preparing converts, and to what this CPU computes.

    Args:
        dtype: One of `DTYPES`, by name or not; None for what the weights are saved in.
        prepare: Whether the model is prepared after it was loaded.

    Raises:
        ValueError: An unknown dtype, or one that only a prepared model has.
    """
    if dtype is None:
        return {}
    if dtype not in DTYPES.values():
        check_choice("dtype", dtype, DTYPES)
    if prepare:
        return {}
    if dtype in PREPARED_DTYPES:
        raise InputError(
            f"dtype={dtype!r} is made by preparing the model",
            "a dtype of weights",
            "leave prepare=True",
        )
    return {"dtype": DTYPES[dtype] if isinstance(dtype, str) else dtype}


def find_device(device: str | int | torch.device | None) -> torch.device:
    """A device of this machine, with its number where it has one; None gives a GPU if possible.

    Raises:
        ValueError: This machine has no such device.
    """
    if device is None:
        best = "mps" if torch.backends.mps.is_available() else "cpu"
        device = "cuda" if torch.cuda.is_available() else best
    if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
        raise InputError(
            f"device is {device!r:.60}", "one device, such as 'cpu' or 'cuda:1'", "name one"
        )
    try:
        found = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, ValueError) as error:  # by what torch was built with
        reason = one_line(error).partition(". ")[0][:120]
        raise InputError(
            f"device is {str(device)!r} ({reason})", "a device of this machine", "name another one"
        ) from error
    return torch.device("cpu") if found.type == "cpu" else found  # "cpu:0" is no other one


def load_bert(
    path: str,
    place: Mapping[str, Any],
    dtype: str | torch.dtype | None,
    device: torch.device,
    *,
    prepare: bool,
    batch_invariant: bool,
) -> BertModel:
    """Loads a BERT without its pooler, in eval mode, and prepares it where that is wanted.

    Args:
        path: A folder or a hub id.
        place: As for `load_tokenizer`.
        dtype: One of `DTYPES`, by name or not; None for what the weights are saved in.
        device: Where it is to run.
        prepare: Whether to call `prepare_for_inference`.
        batch_invariant: Sets `BertConfig.batch_invariant`; False leaves it as it is saved.

    Raises:
        ValueError: Not a BERT, or weights are missing or not finite.
        OSError: No such folder or model, or its files are missing.
    """
    options = loading_options(dtype, prepare)
    kind = BertConfig.get_config_dict(path, **place)[0].get("model_type", "bert")
    if kind not in ("bert", "hf_bert_impl"):
        raise InputError(
            f"{path} has model_type {kind!r}", "a BERT (model_type 'bert')", "name another one"
        )
    model, info = _SentenceBert.from_pretrained(path, output_loading_info=True, **place, **options)
    check_whole(path, info["missing_keys"], "BERT", "restore them, or name another checkpoint")
    model = model.to(device).eval()
    if batch_invariant:
        model.config.batch_invariant = True
    if prepare:
        model = model.prepare_for_inference(dtype)
    check_finite(model, path)  # a narrower type can make weights infinite
    bert: BertModel = model
    return bert


def load_tokenizer(path: str, place: Mapping[str, Any]) -> Any:
    """This package's tokenizer, or transformers' where the vocabulary is not BERT's own.

    Some BERTs, multilingual-e5 for one, have another model's sentencepiece, and those of
    codertimo/BERT-pytorch have words. Code that a checkpoint brings along is not run.

    Args:
        path: A folder or a hub id.
        place: `revision`, `token`, `subfolder` and the like for `from_pretrained`.

    Raises:
        ValueError, OSError: The tokenizer's class is in the checkpoint's own code, or its files are
            damaged or missing.
    """
    with explained(check_tokenizer, path, place):
        return _load_tokenizer(path, place)


def _load_tokenizer(path: str, place: Mapping[str, Any]) -> Any:
    settings = get_tokenizer_config(path, **place)
    kind = settings.get("tokenizer_class")
    if kind in (None, "BertTokenizer", "BertTokenizerFast"):
        return BertTokenizer.from_pretrained(path, **place)
    if "auto_map" in settings and tokenizer_class_from_name(kind) is None:
        # transformers might put a plain tokenizer in its place, with other ids.
        raise InputError(
            f"the tokenizer of {path}, {kind}, is code of its own, which is not run",
            "one of BERT's or transformers' own",
            "if you trust the code, load it by AutoTokenizer with trust_remote_code=True, for "
            "TextEncoder(model, tokenizer)",
        )
    try:
        if kind in GENERIC:
            return PreTrainedTokenizerFast.from_pretrained(path, **place)
        config = BertConfig.from_pretrained(path, **place)  # this class checks its limits
        # Without the argument transformers would ask on standard input, which holds the texts.
        return AutoTokenizer.from_pretrained(path, config=config, trust_remote_code=False, **place)
    except OSError:
        raise
    # A class that does not fit the files may raise anything.
    except Exception as error:
        raise InputError(
            f"the tokenizer of {path}, {kind}, cannot be loaded ({' '.join(str(error).split())})",
            "the files of that class",
            "copy them again, or mend tokenizer_class in its tokenizer_config.json",
        ) from error
