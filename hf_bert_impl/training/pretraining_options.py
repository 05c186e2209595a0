"""How to pre-train: the text, the model and the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.data.option_ranges import check_ranges
from hf_bert_impl.errors import InputError, check_choice

# The command line makes its options from these fields, and shows its help without transformers.
if TYPE_CHECKING:
    from hf_bert_impl.data.examples import ExampleOptions
    from hf_bert_impl.data.masking import MaskingOptions

PRECISIONS = ("auto", "float32", "bfloat16")
#: Fields that may change when a run is resumed: they do not change what is computed, or (the files'
#: names) something else is compared in their place.
FREE = """
    files validation output tokenizer model config sizes gradient_accumulation processes workers
    cache_dir logging_steps eval_steps save_steps keep_checkpoints resume
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
    """A checkpoint to go on with; None for random weights."""
    config: str | None = None
    """A config.json, or the folder it lies in, for random weights."""
    variant: str = "bert"
    """The architecture of random weights: bert, or codertimo (that of codertimo/BERT-pytorch)."""
    sizes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Fields of `BertConfig` for random weights, on top of `config`."""

    layout: str = "sentences"
    """What a line of plain text is: sentences, paragraphs, lines, files, wikitext, pairs."""
    column: str | None = None
    """The column or field of the texts; None for `text` in JSON lines and a table's only one."""
    validation: tuple[str, ...] = ()
    """A file that is only scored; there may be several."""
    validation_share: float = 0.0
    """Share of the documents that is only scored, where no file is."""
    objective: str = "mlm+nsp"
    """mlm+nsp, or mlm alone."""
    masking: str = "token"
    """token or whole-word."""
    mlm_probability: float = 0.15
    """Share of the tokens to guess."""
    max_predictions: int | None = None
    """Most tokens to guess in a sequence; None for no limit."""
    packing: bool = False
    """Fill sequences with several spans of text (objective mlm)."""
    max_length: int = 128
    """Most tokens of a sequence."""
    short_seq_prob: float = 0.1
    """Share of documents that are cut to a target length drawn at random."""
    dupe_factor: int = 1
    """How often each document is cut, with other cuts and other random partners."""
    streaming: bool = False
    """Make examples while the files are read, and keep nothing on disk."""

    max_steps: int | None = None
    """Optimizer steps; None for those of `epochs`."""
    epochs: float = 1.0
    """Passes over the examples, where `max_steps` is not given."""
    batch_size: int = 32
    """Sequences of an optimizer step, over all processes and micro-batches."""
    gradient_accumulation: int = 1
    """Micro-batches that a process computes one after the other for a step."""
    learning_rate: float = 1e-4
    """The highest rate, reached after the warm-up; from there it falls to 0 along a line."""
    warmup: float = 0.01
    """Share of the steps over which the rate rises from 0; 1 or more is a number of steps."""
    weight_decay: float = 0.01
    """AdamW's weight decay; biases and LayerNorm have none."""
    precision: str = "auto"
    """float32, bfloat16 (autocast), or auto: bfloat16 on a GPU that has it."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass, which saves memory."""
    seed: int = 0
    """Seed of weights, cuts, partners, order, masks and dropout."""

    logging_steps: int = 10
    """Steps between entries of the log."""
    eval_steps: int | None = None
    """Steps between evaluations on held-out text; None for one at the end."""
    save_steps: int = 500
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """How many checkpoints stay."""
    processes: int = 1
    """Processes that prepare the examples."""
    workers: int = 0
    """Processes that load the examples; 0 loads them in the training process."""
    cache_dir: str | None = None
    """Where prepared examples are kept; None for the cache of datasets."""
    resume: bool = False
    """Go on with the run in `output`."""

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
                "streaming does not know how many examples there are",
                "a number of steps",
                "set `max_steps`",
            )
        if self.validation_share:
            raise InputError(
                "streaming cannot hold out a share of the text",
                "validation files",
                "name some, or leave `validation_share` out",
            )
        if self.workers > 1:
            raise InputError(f"workers={self.workers} with streaming", "0 or 1", "lower it")

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
        """How held-out documents become examples: once, each by itself."""
        return dataclasses.replace(self.examples(), packing=False, dupe_factor=1)

    def masking_options(self) -> MaskingOptions:
        """Which tokens are to be guessed."""
        from hf_bert_impl.data.masking import MaskingOptions

        return MaskingOptions(self.masking, self.mlm_probability, self.max_predictions)

    def settings(self) -> dict[str, Any]:
        """The fields that make another run if they change."""
        free = FREE.split()
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if name not in free}
