"""The model that a source becomes: its class, its config, and its tensors.

`convert` writes it, and `load_any` builds it.
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

#: Config fields about its origin, or that name code or a kernel to load.
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

#: Called with the bytes of weights converted so far, and their total.
Progress = Callable[[int, int], None]


@dataclass
class Target:
    """A model made from an open source."""

    source: Source
    architecture: Architecture
    config: BertConfig
    fit: Fit
    """The source's tensors for the class."""
    tensors: dict[str, Tensor]
    """All tensors of the result, by our names, in the class's order; each has its own memory."""
    ranges: dict[str, tuple[float, float]]
    """The minimum and maximum of each."""
    notes: list[str]
    """Choices that the user should check."""

    @property
    def class_name(self) -> str:
        """The class of this package."""
        return self.architecture.class_name


def resolve(source: Source, options: LoadOptions, progress: Progress | None = None) -> Target:
    """Make a model from an open source.

    Args:
        source: An open source.
        options: `head`, `dtype`, `allow_missing` and `allow_nan` are read.
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
                "the masked-LM decoder differs from the word embeddings: tie_word_embeddings is "
                "false in the result"
            )
        fields["tie_word_embeddings"] = False
    fields["architectures"] = [class_name]
    fitted = fit(source.plan, class_name, fields)
    if fitted.missing and not options.allow_missing:
        raise InputError(
            f"The checkpoint lacks {listing(fitted.missing, 'tensor')} of {class_name}. "
            "Choose another `head`, or initialise them with `allow_missing=True`.",
            "head allow_missing=True",
        )
    config: BertConfig = BertConfig.from_dict(dict(fields))
    given = fitted.tensors | _initialised(fitted, class_name, config)
    total, done = sum(tensor.nbytes for tensor in given.values()), 0
    tensors, ranges = {}, {}
    for name, tensor in given.items():
        made = tensor.to(dtype or tensor.dtype)
        ranges[name] = _range(made)
        if not (options.allow_nan or is_finite(ranges[name])):
            # An overflow of the chosen dtype is no fault of the file.
            where = f" in {dtype_name(made)} only" if is_finite(_range(tensor)) else ""
            raise InputError(
                f"{fitted.origins[name][0]} has NaN or infinite numbers{where}. "
                "Choose another `dtype`, or accept them with `allow_nan=True`.",
                "dtype allow_nan=True",
            )
        # A copy: the source may be a view of the file, or a part of another tensor.
        tensors[name] = made.clone(memory_format=torch.contiguous_format)
        done += tensor.nbytes
        if progress is not None:
            progress(done, total)
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) == 1:
        config.dtype = dtypes.pop()
    if source.plan.table.tanh_gelu and config.hidden_act in ("gelu", "gelu_new"):
        # Google's code changed its formula under the name "gelu", and no file names the formula.
        is_exact = config.hidden_act == "gelu"
        chosen, other = ("exact (erf)", "gelu_new") if is_exact else ("by tanh", "gelu")
        notes.append(
            f"hidden_act is {config.hidden_act}: GELU {chosen}. Google's code computes it by tanh "
            f"since November 2018 (commit f39e881), exactly before; `hidden_act={other!r}` "
            f"(--hidden-act {other}) selects the other formula"
        )
    return Target(source, architecture, config, fitted, tensors, ranges, notes)


def is_finite(span: tuple[float, float]) -> bool:
    """Whether a tensor is free of NaN and infinity, by its minimum and maximum."""
    return all(map(math.isfinite, span))


def _initialised(fitted: Fit, class_name: str, config: BertConfig) -> dict[str, Tensor]:
    """The tensors that the source lacks, as training would initialise them."""
    if not fitted.missing:
        return {}
    usual = next((tensor.dtype for tensor in fitted.tensors.values()), torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        state = getattr(hf_bert_impl, class_name)(config).state_dict()
    return {name: state[name].to(usual) for name in fitted.missing}


def _range(tensor: Tensor) -> tuple[float, float]:
    if not tensor.numel():
        return 0.0, 0.0
    low, high = torch.aminmax(tensor)
    return low.item(), high.item()
