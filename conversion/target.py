"""The model that a source becomes: its class, its config, and its tensors as they are read.

`convert` writes them, `load_any` puts them into a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import hf_bert_impl
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.model.configuration_bert import BertConfig

from .architecture import Architecture, check_config, fit, infer, require_complete
from .planning import Plan
from .source import Source
from .tensors import DTYPES, TensorInfo

#: Dtypes that weights can be saved in.
SAVED_DTYPES = ("float32", "float16", "bfloat16", "float64")
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
_SEED = 0


@dataclass(frozen=True)
class Range:
    """Smallest and largest number of a tensor."""

    low: float
    high: float

    @property
    def is_finite(self) -> bool:
        """Whether no number is NaN or infinite."""
        return math.isfinite(self.low) and math.isfinite(self.high)


@dataclass
class Target:
    """A model that can be read tensor by tensor from an open source."""

    source: Source
    architecture: Architecture
    config: BertConfig
    plan: Plan
    """The plan of the class."""
    tensors: dict[str, TensorInfo]
    """All tensors of the result, by our names, in the class's order."""
    allow_nan: bool
    notes: list[str]
    """Choices that the user should know of."""
    ranges: dict[str, Range] = field(default_factory=dict)
    """Of the tensors that were read so far."""
    _started: dict[str, Tensor] = field(default_factory=dict)

    @property
    def class_name(self) -> str:
        """The class of this package."""
        return self.architecture.class_name

    def read(self, name: str) -> Tensor:
        """Read one tensor in the dtype of the result, and check its numbers.

        Args:
            name: A key of `tensors`.

        Raises:
            InputError: It cannot be read, or has a NaN or infinity that is not allowed.
        """
        info = self.tensors[name]
        if name in self.plan.steps:
            given = self.plan.read(self.source.reader, name)
            where = self.plan.steps[name].source.name
        else:
            given, where = self._start(name), name
        tensor = given.to(DTYPES[info.dtype])
        self.ranges[name] = span = _range(tensor)
        if not span.is_finite and not self.allow_nan:
            was = _range(given) if given.dtype != tensor.dtype else span
            remedy = (
                f"it has them in {info.dtype} only: choose another `dtype`"
                if was.is_finite
                else "the training that wrote it failed, or the file is damaged; "
                "`allow_nan=True` takes it as it is"
            )
            raise InputError(
                f"the tensor {where} has {_odd_numbers(tensor)}", "finite weights", remedy
            )
        return tensor

    def _start(self, name: str) -> Tensor:
        """A tensor that the source lacks, as training would start it."""
        if not self._started:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(_SEED)
                state = getattr(hf_bert_impl, self.class_name)(self.config).state_dict()
            self._started = {missing: state[missing] for missing in self.plan.missing}
        return self._started[name]


def resolve(
    source: Source,
    *,
    head: str | None = None,
    dtype: str | None = None,
    allow_missing: bool = False,
    allow_nan: bool = False,
) -> Target:
    """Decide what an open source becomes; no tensor is read but tied ones.

    Args:
        source: An open source.
        head: A key of `head_names.HEADS` or a class name; None takes what the checkpoint has.
        dtype: One of `SAVED_DTYPES`; None keeps every tensor's own.
        allow_missing: Start tensors that the checkpoint lacks anew.
        allow_nan: Take tensors with NaN and infinities.

    Raises:
        InputError: The config does not fit the tensors, or tensors are missing.
    """
    if dtype is not None:
        check_choice("`dtype`", dtype, SAVED_DTYPES)
    fields = {name: value for name, value in source.config.items() if name not in _DROPPED}
    architecture = infer(source.plan, fields, head)
    fields = check_config(fields, architecture)
    notes = []
    if architecture.class_name in _MASKED_LM and source.plan.untied(source.reader):
        if fields.get("tie_word_embeddings", True):
            notes.append(
                "the masked-LM decoder is no copy of the word embeddings: tie_word_embeddings is "
                "false in the result"
            )
        fields["tie_word_embeddings"] = False
    fields["architectures"] = [architecture.class_name]
    plan = fit(source.plan, architecture.class_name, fields)
    if not allow_missing:
        require_complete(plan, architecture.class_name)
    # In the order of the class, missing ones among them.
    tensors = {
        name: TensorInfo(name, info.shape, dtype or info.dtype)
        for name, info in plan.target_infos.items()
    }
    usual = dtype or next((info.dtype for info in tensors.values()), "float32")
    tensors |= {name: TensorInfo(name, shape, usual) for name, shape in plan.missing.items()}
    config = _config(fields, tensors)
    notes += _activation_notes(source, config)
    return Target(source, architecture, config, plan, tensors, allow_nan, notes)


_MASKED_LM = ("BertForPreTraining", "BertForMaskedLM", "BertLMHeadModel")


def _config(fields: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> BertConfig:
    config: BertConfig = BertConfig.from_dict(dict(fields))
    dtypes = {info.dtype for info in tensors.values()}
    if len(dtypes) == 1:
        config.dtype = DTYPES[dtypes.pop()]
    return config


def _activation_notes(source: Source, config: BertConfig) -> list[str]:
    """Google's code changed what it computes under the name "gelu", and no file tells."""
    if not source.plan.table.tanh_gelu or config.hidden_act not in ("gelu", "gelu_new"):
        return []
    chosen = "exact (erf)" if config.hidden_act == "gelu" else "by tanh"
    other = "gelu_new" if config.hidden_act == "gelu" else "gelu"
    return [
        f"hidden_act is {config.hidden_act}: GELU {chosen}. Google's code computes it by tanh "
        f"since November 2018 (commit f39e881), exactly before; `hidden_act={other!r}` takes the "
        "other form"
    ]


def _range(tensor: Tensor) -> Range:
    if not tensor.numel():
        return Range(0.0, 0.0)
    low, high = torch.aminmax(tensor)
    return Range(low.item(), high.item())


def _odd_numbers(tensor: Tensor) -> str:
    nan = int(tensor.isnan().sum())
    infinite = int(tensor.isinf().sum())
    counts = [f"{nan} NaN"] * bool(nan) + [f"{infinite} infinities"] * bool(infinite)
    return f"{' and '.join(counts)} among {tensor.numel()} numbers"
