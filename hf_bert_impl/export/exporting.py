"""Export of a model, with a comparison on padded batches."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.utils import ModelOutput

from hf_bert_impl.errors import InputError
from hf_bert_impl.export.formats import write
from hf_bert_impl.export.options import FILES, ExportOptions
from hf_bert_impl.export.running import open_file
from hf_bert_impl.files.output_folder import claimed, output_folder
from hf_bert_impl.hub.saving import CONFIG, file_sizes, set_auto_map
from hf_bert_impl.inference.eval_mode import eval_mode
from hf_bert_impl.inference.loading import TOKENIZER_CONFIG, brings_code
from hf_bert_impl.inference.sentence_folder import copy_sentence_modules
from hf_bert_impl.parity import ParityReport, attended_positions, compare_outputs
from hf_bert_impl.parity.batches import (
    MAX_LENGTH,
    TEXTS,
    Batch,
    parity_batches,
    random_tokens,
    text_tokens,
)
from hf_bert_impl.report import CheckFailed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_bert_impl.export.running import Run

#: Maximum error in float32, relative to a tensor's largest magnitude. It is wider than for torch,
#: because runtimes fuse and reorder more and have their own softmax and GELU.
TOLERANCE = 1e-4
CHOICES = 2


@dataclasses.dataclass(frozen=True)
class Exported:
    """A folder that holds an exported model."""

    folder: Path
    kind: str
    """One of `options.FILES`."""
    class_name: str
    outputs: tuple[str, ...]
    """Names of the graph's outputs."""
    files: dict[str, int]
    """Every file, below `folder`, with its size in bytes."""
    report: ParityReport
    """The comparison with the model."""

    @property
    def size(self) -> int:
        """Bytes of the graph and its weights."""
        stem = FILES[self.kind].partition(".")[0]
        return sum(size for name, size in self.files.items() if name.partition(".")[0] == stem)


def export_model(
    model: PreTrainedModel,
    folder: Path,
    kind: str,
    *,
    tokenizer: Any = None,
    source: Path | None = None,
    **options: Any,
) -> Exported:
    """Exports a model; the folder appears when the comparison has passed.

    Args:
        model: A BERT of this package, in float32 on the CPU.
        folder: A new or empty folder.
        kind: As in `ExportOptions`.
        tokenizer: Saved with the model and used for the comparison; None compares random tokens.
        source: The model's source folder; modules of sentence-transformers (pooling) are copied.
        **options: The other fields of `ExportOptions`.

    Raises:
        ValueError: An option is invalid, a package is missing, another run is writing the folder,
            or the runtime refuses the file.
        CheckFailed: The file's outputs differ by more than `TOLERANCE`.

    Examples:
        >>> from hf_bert_impl import BertForMaskedLM
        >>> from hf_bert_impl.export.exporting import export_model
        >>> model = BertForMaskedLM.from_pretrained("my-masked-bert")
        >>> export_model(model, Path("exported"), "torch-export").report.passed
        True
    """
    chosen = ExportOptions(kind, **options)
    chosen.check()
    if model.dtype != torch.float32 or model.device.type != "cpu":
        raise InputError(
            f"The model is in {model.dtype} on {model.device}. Export needs float32 on the "
            "CPU: load it with dtype=torch.float32."
        )
    read = Path(model.name_or_path or ".")
    with (
        claimed(folder, [read], chosen.overwrite),
        eval_mode(model),
        output_folder(folder) as fresh,
    ):
        write(model, fresh, kind, chosen.opset)
        report = compare(model, open_file(fresh, kind, torch.get_num_threads()), tokenizer)
        if not report.passed:
            raise CheckFailed(report)
        _write_config(model, fresh)
        if tokenizer is not None:
            tokenizer.save_pretrained(fresh)
            if not brings_code(tokenizer):
                set_auto_map(fresh / TOKENIZER_CONFIG, None)
        if source is not None:
            copy_sentence_modules(source, fresh)
        files = file_sizes(fresh)
    outputs = tuple(dict.fromkeys(row.name for row in report.rows))
    return Exported(folder, kind, type(model).__name__, outputs, files, report)


def _write_config(model: PreTrainedModel, folder: Path) -> None:
    """The config of the exported class, without references to code."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    set_auto_map(folder / CONFIG, None)


def compare(model: PreTrainedModel, run: Run, tokenizer: Any = None) -> ParityReport:
    """Compares an exported file with its model at attended positions.

    Args:
        model: The model, in eval mode.
        run: From `running.open_file`.
        tokenizer: For texts; None compares on random tokens.

    Returns:
        A row for every output of every batch of `batches`.
    """
    report = ParityReport()
    for case, batch in batches(model, tokenizer).items():
        with torch.no_grad():
            expected = model(**batch, return_dict=True)
        given = run(batch)
        # The graph has no cache as output.
        kept = {name: expected[name] for name in given if expected.get(name) is not None}
        report.extend(
            compare_outputs(
                ModelOutput(**given),
                ModelOutput(**kept),
                attended_positions(batch),
                case=f"fp32 {case}",
                tolerance=TOLERANCE,
            )
        )
    return report


def batches(model: PreTrainedModel, tokenizer: Any = None) -> dict[str, Batch]:
    """The batches of the comparison: all kinds of padding, one token, and full length.

    Args:
        model: The model.
        tokenizer: For texts; None takes random tokens.
    """
    config = model.config
    choices = CHOICES if type(model).__name__ == "BertForMultipleChoice" else 0
    longest = config.max_position_embeddings
    tokens = (
        random_tokens(config)
        if tokenizer is None
        else text_tokens(tokenizer, TEXTS, min(MAX_LENGTH, longest))
    )
    named = parity_batches(tokens, config, choices=choices)
    rows = choices or 1
    for name, length in (("one token", 1), ("full length", longest)):
        alone = random_tokens(config, (length,) * rows, seed=length)
        named[name] = parity_batches(alone, config, choices=choices)["padded right"]
    return named
