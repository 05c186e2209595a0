"""The options of a conversion; `hf-bert convert` has the same."""

from __future__ import annotations

import dataclasses
from dataclasses import field
from pathlib import Path

from huggingface_hub import split_torch_state_dict_into_shards

from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.head_names import HEADS

#: Formats that are read, the preferred ones first.
READ = ("safetensors", "torch", "flax", "h5", "tf1")
#: Dtypes of saved weights.
SAVED_DTYPES = ("float32", "float16", "bfloat16", "float64")


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """How a checkpoint is read, and which model it becomes."""

    revision: str | None = None
    """Of a hub id: a branch, a tag or a commit; None for the newest."""
    from_format: str | None = field(default=None, metadata={"choices": READ})
    """The format to read: safetensors, torch, flax, h5 or tf1; None for the first of these."""
    head: str | None = field(default=None, metadata={"choices": HEADS})
    """The head to keep: base, pretraining, masked-lm, causal-lm, next-sentence,
    sequence-classification, multiple-choice, token-classification or question-answering; None for
    the checkpoint's own."""
    config: Path | None = None
    """The config file, or a folder with one; None for the one next to the weights."""
    num_attention_heads: int | None = None
    """Number of attention heads, for checkpoints without a config."""
    hidden_act: str | None = None
    """The activation: gelu (exact) or gelu_new (tanh, Google's code since November 2018, which
    calls it gelu as well); None for the config's."""
    dtype: str | None = field(default=None, metadata={"choices": SAVED_DTYPES})
    """float32, float16, bfloat16 or float64; None for the dtype of each tensor."""
    allow_missing: bool = False
    """Initialise tensors that the checkpoint lacks, as training would."""
    allow_nan: bool = False
    """Accept weights with NaN and infinities."""

    def __post_init__(self) -> None:
        if self.from_format is not None:
            check_choice("from_format", self.from_format, READ)
        if self.dtype is not None:
            check_choice("dtype", self.dtype, SAVED_DTYPES)


@dataclasses.dataclass(frozen=True)
class ConvertOptions(LoadOptions):
    """How a checkpoint is converted."""

    max_shard_size: str | None = None
    """Maximum size of a safetensors file, as in 500MB; None for one file."""
    do_lower_case: bool | None = None
    """Whether the vocabulary is lower-cased; None for the setting in its files."""
    check: bool = True
    """Compare the result with transformers' own BERT, and with reference outputs (.npz) and other
    formats in the source's folder."""
    check_all: bool = False
    """Require all formats of the source to hold the same model."""
    reference: Path | None = None
    """Outputs (.npz) or a second checkpoint that the result must equal."""
    overwrite: bool = False
    """Replace a folder that has files."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_shard_size is not None:
            _check_size(self.max_shard_size)


def _check_size(size: str) -> None:
    """Check a size as the hub's library reads it, before anything is converted."""
    try:
        split_torch_state_dict_into_shards({}, max_shard_size=size)
    except ValueError:
        raise InputError(
            f"`max_shard_size` is {size!r}. Write a size such as 500MB or 5GB.", "max_shard_size"
        ) from None
