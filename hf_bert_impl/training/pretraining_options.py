"""Options of pre-training: the text, the model and the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.data.option_ranges import check_ranges
from hf_bert_impl.errors import InputError, check_choice

# The command line shows these fields without importing transformers.
if TYPE_CHECKING:
    from hf_bert_impl.data.examples import ExampleOptions
    from hf_bert_impl.data.masking import MaskingOptions

PRECISIONS = ("auto", "float32", "bfloat16")
#: Fields that may differ in a resumed run: they do not affect its results, or the content of the
#: files is compared instead.
FREE = """
    files validation output tokenizer model config sizes processes workers cache_dir
    logging_steps eval_steps save_steps keep_checkpoints resume
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingOptions:
    """How to pre-train."""

    files: tuple[str, ...]
    """Text, .csv, .tsv, .jsonl, .json or .parquet, or a folder of .txt; UTF-8."""
    output: Path
    """The folder of the run: checkpoints, logs, and at the end the model."""
    tokenizer: str | None = None
    """A folder or hub id; None for that of `model`."""
    model: str | None = None
    """A checkpoint to start from; None for random weights."""
    config: str | None = None
    """A config.json or its folder, for random weights."""
    variant: str = "bert"
    """The architecture of random weights: bert, or codertimo (that of codertimo/BERT-pytorch)."""
    sizes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Fields of `BertConfig` for random weights, which override `config`."""

    layout: str = "sentences"
    """The layout of plain text: sentences, paragraphs, lines, files, wikitext or pairs."""
    column: str | None = None
    """The column or field of the texts; None for `text` in JSON lines and a table's only one."""
    validation: tuple[str, ...] = ()
    """A file of held-out text; can be repeated."""
    validation_share: float = 0.0
    """Share of the documents to hold out, without validation files."""
    objective: str = "mlm+nsp"
    """mlm+nsp, or mlm alone."""
    masking: str = "token"
    """token or whole-word."""
    mlm_probability: float = 0.15
    """Share of the tokens to predict."""
    max_predictions: int | None = None
    """Maximum number of tokens to predict per sequence; None for no limit."""
    packing: bool = False
    """Fill sequences with several spans of text (objective mlm)."""
    max_length: int = 128
    """Maximum tokens of a sequence."""
    short_seq_prob: float = 0.1
    """Share of documents that are cut to a target length drawn at random."""
    dupe_factor: int = 1
    """How many times each document is cut, with different cuts and random partners."""
    streaming: bool = False
    """Make examples while the files are read, without a cache on disk."""

    max_steps: int | None = None
    """Optimizer steps; None for those of `epochs`."""
    epochs: float = 1.0
    """Passes over the examples, without `max_steps`."""
    batch_size: int = 32
    """Sequences per optimizer step, over all processes and micro-batches."""
    gradient_accumulation: int = 1
    """Micro-batches per step and process."""
    learning_rate: float = 1e-4
    """The peak rate after the warm-up; it then decreases linearly to 0."""
    warmup: float = 0.01
    """Share of the steps in which the rate rises from 0; 1 or more is a number of steps."""
    weight_decay: float = 0.01
    """AdamW's weight decay; biases and LayerNorm have none."""
    precision: str = "auto"
    """float32, bfloat16 (autocast), or auto: bfloat16 on a GPU that supports it."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    seed: int = 0
    """Seed of weights, cuts, partners, order, masks and dropout."""

    logging_steps: int = 10
    """Steps between entries of the log."""
    eval_steps: int | None = None
    """Steps between evaluations on held-out text; None for one at the end."""
    save_steps: int = 500
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Number of checkpoints to keep."""
    processes: int = 1
    """Processes that prepare the examples."""
    workers: int = 0
    """Processes that load the examples; 0 loads them in the training process."""
    cache_dir: str | None = None
    """The folder of prepared examples; None for the cache of datasets."""
    resume: bool = False
    """Resume the run in `output`."""

    def __post_init__(self) -> None:
        from hf_bert_impl.data.documents import LAYOUTS
        from hf_bert_impl.model.configuration_bert import CHOICES

        check_ranges(self)
        check_choice("layout", self.layout, LAYOUTS)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("variant", self.variant, CHOICES["variant"])
        if self.streaming:
            self._check_streaming()
        # These check their own fields.
        self.examples()
        self.masking_options()

    def _check_streaming(self) -> None:
        if self.max_steps is None:
            raise InputError(
                "`streaming` needs a number of steps. Set `max_steps`.", "streaming max_steps"
            )
        if self.validation_share:
            raise InputError(
                "`streaming` cannot hold out a share of the text. Name validation files, or leave "
                "`validation_share` out.",
                "streaming validation_share",
            )
        if self.workers > 1:
            raise InputError(
                f"`workers` is {self.workers}, and `streaming` allows 0 or 1. Use `workers=1`.",
                "workers streaming workers=1",
            )

    def examples(self) -> ExampleOptions:
        """How documents become examples."""
        from hf_bert_impl.data.examples import ExampleOptions

        return ExampleOptions(
            objective=self.objective,
            max_length=self.max_length,
            short_seq_prob=self.short_seq_prob,
            packing=self.packing,
            given_pairs=self.layout == "pairs",
            dupe_factor=self.dupe_factor,
            seed=self.seed,
        )

    def validation_examples(self) -> ExampleOptions:
        """How held-out documents become examples: once, without packing."""
        return dataclasses.replace(self.examples(), packing=False, dupe_factor=1)

    def masking_options(self) -> MaskingOptions:
        """How tokens are masked."""
        from hf_bert_impl.data.masking import MaskingOptions

        return MaskingOptions(self.masking, self.mlm_probability, self.max_predictions)

    def settings(self) -> dict[str, Any]:
        """The fields that must match to resume."""
        free = FREE.split()
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if name not in free}
