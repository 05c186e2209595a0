"""`hf-bert pretrain`: trains a BERT on text files."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, ClassVar

import typer

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.shared_options import only
from hf_bert_impl.data.option_ranges import COUNT
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.progress import dataset_bars
from hf_bert_impl.tables import console, print_table
from hf_bert_impl.training.pretraining_options import PretrainingOptions

if TYPE_CHECKING:
    from hf_bert_impl.training.pretraining import PretrainingResult


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretrain(PretrainingOptions):
    """Train a BERT on text, from random weights or from a checkpoint.

    OUTPUT gets the model, its checkpoints, training_log.jsonl, tensorboard/ and curves.png. To
    resume an interrupted run, repeat the command with --resume; it ends with the same weights. For
    several GPUs or machines: accelerate launch $(which hf-bert) pretrain …

    Example: hf-bert pretrain corpus.txt --tokenizer my-tokenizer --layers 4 --hidden-size 256
    --max-steps 5000 --output my-bert
    """

    TRAINS: ClassVar = True
    SETTINGS: ClassVar = (
        *("config", "sizes", "masking", "mlm_probability", "max_predictions", "packing"),
        *("short_seq_prob", "weight_decay", "gradient_checkpointing"),
        *("logging_steps", "keep_checkpoints", "processes", "workers", "cache_dir"),
    )

    layers: int | None = None
    """Encoder layers; None for 12."""
    hidden_size: int | None = None
    """Hidden size; None for 768."""
    heads: int | None = None
    """Attention heads; None for hidden size / 64."""
    intermediate_size: int | None = None
    """Feed-forward size; None for 4 × hidden size."""
    push_to_hub: str | None = None
    as_json: bool = False
    quiet: bool = False

    def run(self) -> None:
        """Trains, and prints the last losses."""
        sizes = {
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden_size,
            "num_attention_heads": self.heads,
            "intermediate_size": self.intermediate_size,
        }
        chosen = {name: size for name, size in sizes.items() if size is not None}
        for name in ("layers", "hidden_size", "heads", "intermediate_size"):
            if getattr(self, name) is not None:
                COUNT.check(name, getattr(self, name))
        from hf_bert_impl.training.pretraining import check_new, pretrain
        from hf_bert_impl.training.pretraining_model import MODELS
        from hf_bert_impl.training.reporting import progress

        options = dataclasses.replace(
            only(PretrainingOptions, self), sizes={**self.sizes, **chosen}
        )
        is_first = not int(os.environ.get("RANK", 0))  # which alone prints and pushes
        is_quiet = self.quiet or not is_first
        repository = self.push_to_hub if is_first else None
        with quiet_libraries(), dataset_bars(not is_quiet):
            if self.model is not None:
                open_checkpoint(self.model)
            if repository is not None:
                from hf_bert_impl.hub.uploading import reserve

                check_new(options)
                reserve(repository, MODELS[self.objective].__name__)
            try:
                with progress(not is_quiet) as callbacks:
                    result = pretrain(options, callbacks)
            except KeyboardInterrupt:
                if not is_quiet:
                    line = "interrupted; run the same command with --resume to resume"
                    typer.echo(line, err=True)
                raise
            if repository is not None:
                from hf_bert_impl.hub.pushing import push_folder

                push_folder(options.output, repository, MODELS[self.objective])
        if self.as_json and is_first:
            typer.echo(to_json(result))
        elif not is_quiet:
            print_result(result)


def print_result(result: PretrainingResult) -> None:
    """Prints the last log entry and the results on held-out text."""
    names = ("mlm_loss", "mlm_accuracy", "perplexity", "nsp_loss", "nsp_accuracy")
    rows = []
    for name in (*names, "tokens_per_second"):
        cells = [
            f"{figures[key]:,.4g}" if key in figures else ""
            for figures, key in ((result.training, name), (result.validation, f"eval_{name}"))
        ]
        if any(cells):
            rows.append((name.replace("_", " "), *cells))
    if result.statistics is not None:
        rows.append(("unigram entropy", f"{result.statistics.unigram_entropy:.4g}", ""))
    title = f"{result.output}: {result.steps:,} steps"
    print_table(console(), title, ("", "training", "held out"), rows)
