"""The model that a source becomes: its class, its config, and its tensors.

`convert` writes them, `load_any` puts them into a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import hf_bert_impl
from hf_bert_impl.errors import InputError
from hf_bert_impl.model.configuration_bert import BertConfig

from .architecture import Architecture, Fit, check_config, fit, infer
from .options import LoadOptions
from .planning import listing
from .source import Source
from .tensors import DTYPES, dtype_name

#: Fields about the place the config comes from, or that name code or a kernel to load.
_DROPPED = (
    "_attn_implementation",
    "_commit_hash",
    "_name_or_path",
    "attn_implementation",
    "auto_map",
    "dtype",
    "torch_dtype",
)
_MASKED_LM = ("BertForPreTraining", "BertForMaskedLM", "BertLMHeadModel")
_SEED = 0

#: Called with the bytes of weights converted so far, and all there are.
Progress = Callable[[int, int], None]


@dataclass
class Target:
    """A model that was made of an open source."""

    source: Source
    architecture: Architecture
    config: BertConfig
    fit: Fit
    """What the source has for the class."""
    tensors: dict[str, Tensor]
    """All tensors of the result, by our names, in the class's order; each has its own memory."""
    ranges: dict[str, tuple[float, float]]
    """The smallest and the largest number of each."""
    notes: list[str]
    """Choices that the user should know of."""

    @property
    def class_name(self) -> str:
        """The class of this package."""
        return self.architecture.class_name


def resolve(source: Source, options: LoadOptions, progress: Progress | None = None) -> Target:
    """Decide what an open source becomes, and make it.

    Args:
        source: An open source.
        options: `head`, `dtype`, `allow_missing` and `allow_nan` of these are read.
        progress: Called after each tensor.

    Raises:
        InputError: The config does not fit the tensors, tensors are missing, or one has a NaN or
            infinity that is not allowed.
    """
    dtype = DTYPES[options.dtype] if options.dtype else None
    fields = {name: value for name, value in source.config.items() if name not in _DROPPED}
    architecture = infer(source.plan, fields, options.head)
    class_name = architecture.class_name
    fields = check_config(fields, architecture)
    notes = []
    if class_name in _MASKED_LM and source.plan.untied:
        if fields.get("tie_word_embeddings", True):
            notes.append(
                "the masked-LM decoder is no copy of the word embeddings: tie_word_embeddings is "
                "false in the result"
            )
        fields["tie_word_embeddings"] = False
    fields["architectures"] = [class_name]
    found = fit(source.plan, class_name, fields)
    if found.missing and not options.allow_missing:
        raise InputError(
            f"the checkpoint lacks {listing(found.missing, 'tensor')}",
            f"all tensors of {class_name}",
            "choose the `head` that it has, or start these anew with `allow_missing=True`",
        )
    config: BertConfig = BertConfig.from_dict(dict(fields))
    given = found.tensors | _started(found, class_name, config)
    total, done = sum(tensor.nbytes for tensor in given.values()), 0
    tensors, ranges = {}, {}
    for name, tensor in given.items():
        made = tensor.to(dtype or tensor.dtype)
        ranges[name] = _range(made)
        if not (options.allow_nan or is_finite(ranges[name])):
            raise _odd_numbers(found.origins[name][0], tensor, made)
        # A copy: what is read may lie in the file, or be a part of another tensor.
        tensors[name] = made.clone(memory_format=torch.contiguous_format)
        done += tensor.nbytes
        if progress is not None:
            progress(done, total)
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) == 1:
        config.dtype = dtypes.pop()
    if source.plan.table.tanh_gelu and config.hidden_act in ("gelu", "gelu_new"):
        # Google's code changed what it computes under the name "gelu", and no file tells.
        is_exact = config.hidden_act == "gelu"
        chosen, other = ("exact (erf)", "gelu_new") if is_exact else ("by tanh", "gelu")
        notes.append(
            f"hidden_act is {config.hidden_act}: GELU {chosen}. Google's code computes it by tanh "
            f"since November 2018 (commit f39e881), exactly before; `hidden_act={other!r}` takes "
            "the other form"
        )
    return Target(source, architecture, config, found, tensors, ranges, notes)


def is_finite(span: tuple[float, float]) -> bool:
    """Whether no number of a tensor is NaN or infinite, by its smallest and largest."""
    return all(map(math.isfinite, span))


def _started(found: Fit, class_name: str, config: BertConfig) -> dict[str, Tensor]:
    """The tensors that the source lacks, as training would start them."""
    if not found.missing:
        return {}
    usual = next((tensor.dtype for tensor in found.tensors.values()), torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        state = getattr(hf_bert_impl, class_name)(config).state_dict()
    return {name: state[name].to(usual) for name in found.missing}


def _range(tensor: Tensor) -> tuple[float, float]:
    if not tensor.numel():
        return 0.0, 0.0
    low, high = torch.aminmax(tensor)
    return low.item(), high.item()


def _odd_numbers(name: str, given: Tensor, made: Tensor) -> InputError:
    nan, infinite = int(made.isnan().sum()), int(made.isinf().sum())
    counts = [f"{nan} NaN"] * bool(nan) + [f"{infinite} infinities"] * bool(infinite)
    remedy = (
        f"it has them in {dtype_name(made)} only: choose another `dtype`"
        if is_finite(_range(given))
        else "the training that wrote it failed, or the file is damaged; "
        "`allow_nan=True` takes it as it is"
    )
    what = f"the tensor {name} has {' and '.join(counts)} among {made.numel()} numbers"
    return InputError(what, "finite weights", remedy)
