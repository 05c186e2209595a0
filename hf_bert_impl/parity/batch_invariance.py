"""Whether the numbers of a text have the same bits alone and in a batch, by way of computing."""

from __future__ import annotations

import dataclasses
import json
import random
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_bert_impl import checkpoints
from hf_bert_impl.checkpoints import Checkpoint
from hf_bert_impl.model.configuration_bert import BertConfig
from hf_bert_impl.model.kernels import DTYPES, why_no_kernels
from hf_bert_impl.parity.batches import Tokens, padded, random_tokens
from hf_bert_impl.parity.comparison import load_reference, require_reference
from hf_bert_impl.parity.tensors import PER_POSITION_2D
from hf_bert_impl.tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

#: How many texts there are, and the lengths of the shortest and the longest, in tokens.
TEXTS, SHORTEST, LONGEST = 70, 3, 300
#: Texts a batch.
SIZES = (4, 16, TEXTS)


@dataclasses.dataclass
class InvarianceRow:
    """What one way of computing gave."""

    way: str
    """Such as `prepared int8`."""
    promised: bool
    """Whether it was computed with `batch_invariant`."""
    texts: dict[int, int]
    """By texts a batch: how many texts differ in any bit from what they are alone."""
    numbers: int = 0
    """How many numbers differ, in all batches."""
    compared: int = 0
    """How many numbers were compared."""
    passed: bool = True
    """Whether nothing differs, where that was promised."""


@dataclasses.dataclass
class InvarianceReport:
    """What `verify_batch_invariance` found."""

    title: str
    passed: bool
    """Whether every promise was kept."""
    rows: list[InvarianceRow]

    def to_json(self) -> str:
        """One object, with a list of rows."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    def render(self, console: Console) -> None:
        """Prints a table."""
        columns = ["", *(f"batches of {size}" for size in SIZES), "numbers", "of"]
        rows = [
            (
                f"{row.way}, batch_invariant" if row.promised else row.way,
                *(str(number) for number in row.texts.values()),
                f"{row.numbers:,}",
                f"{row.compared:,}",
            )
            for row in self.rows
        ]
        broken = sum(not row.passed for row in self.rows)
        note = f"texts of {TEXTS} that differ in any bit from what they are alone; "
        note += f"{broken} promises broken" if broken else "what was promised was kept"
        print_table(console, self.title, columns, rows, note)


def verify_batch_invariance(checkpoint: Checkpoint, head: str | None = None) -> InvarianceReport:
    """Compute random token ids alone and in batches, in several ways, and compare the bits.

    The batches are shuffled and padded right; with the promise the largest is also padded left and
    packed.

    Args:
        checkpoint: An open checkpoint.
        head: The head to compute; None for the one that the config names.

    Returns:
        A row for each way: transformers' own model, this package's as it is and prepared, and
        these with `batch_invariant`.

    Raises:
        ValueError: The checkpoint cannot be compared, or cannot be batch-invariant.
    """
    name = checkpoints.class_name(checkpoint, head)
    config = BertConfig.from_dict(checkpoint.config)
    require_reference(config)
    longest = min(LONGEST, config.max_position_embeddings)
    shortest = min(SHORTEST, longest)
    lengths = [int(n) for n in torch.logspace(0, 1, TEXTS, base=longest / shortest) * shortest]
    texts = random_tokens(config, lengths)

    def load(way: str | None, promised: bool) -> Any:
        model, _ = checkpoints.load_model(checkpoint, name, dtype=torch.float32)
        model.config.batch_invariant = promised
        return model if way is None else model.prepare_for_inference(way)

    ways = [(None, "unchanged"), ("float32", "prepared float32")]
    for kind in ("bfloat16", "float16", "int8"):
        if why_no_kernels(DTYPES[kind], batch_invariant=True) is None:
            ways.append((kind, f"prepared {kind}"))
    # First what may be refused.
    promises = [_row(load(way, True), label, True, texts) for way, label in ways]
    reference, _ = load_reference(name, checkpoint.path, dtype=torch.float32)
    rows = [_row(reference.eval(), "transformers", False, texts)]
    rows += [_row(load(way, False), label, False, texts) for way, label in ways]
    title = f"{name} of {checkpoint.name}: {TEXTS} texts of {lengths[0]} to {longest} tokens, "
    title += f"{torch.get_num_threads()} threads"
    return InvarianceReport(title, all(row.passed for row in promises), rows + promises)


def _row(model: Any, way: str, promised: bool, texts: list[Tokens]) -> InvarianceRow:
    """Computes the texts alone and in batches."""
    alone = [_values(model, [text], "right")[0] for text in texts]
    shuffled = random.Random(0)
    row = InvarianceRow(way, promised, {})
    packed = () if type(model).__name__ == "BertForMultipleChoice" else ("packed",)
    for size in SIZES:
        differ = set()
        more = ("left", *packed) if promised and size == TEXTS else ()
        for layout in ("right", *more):
            order = shuffled.sample(range(len(texts)), len(texts))
            for start in range(0, len(order), size):
                chosen = order[start : start + size]
                batch = _values(model, [texts[i] for i in chosen], layout)
                for index, values in zip(chosen, batch, strict=True):
                    for key, value in values.items():
                        found = int((value != alone[index][key]).sum())
                        row.numbers += found
                        row.compared += value.numel()
                        differ |= {index} if found else set()
        row.texts[size] = len(differ)
    row.passed = not (promised and row.numbers)
    return row


@torch.inference_mode()
def _values(model: Any, texts: list[Tokens], layout: str) -> list[dict[str, Tensor]]:
    """What the model gives of each text, by the output's name."""
    counts = [len(ids) for ids, _ in texts]
    batch = padded(texts, model.config, left=layout == "left")
    here = batch["attention_mask"].bool()  # (B, S)
    batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    if layout == "packed":
        batch = {key: batch[key][here][None] for key in ("input_ids", "token_type_ids")}
        batch["cu_seq_lens_q"] = torch.tensor([0, *accumulate(counts)])
        here = torch.ones_like(batch["input_ids"], dtype=torch.bool)
    elif type(model).__name__ == "BertForMultipleChoice":
        batch = {key: value[:, None] for key, value in batch.items()}
    values: list[dict[str, Tensor]] = [{} for _ in texts]
    for key, value in model(**batch).items():
        if not isinstance(value, Tensor):
            continue
        if value.dim() >= 3 or key in PER_POSITION_2D:
            parts = value[here].split(counts)
        elif layout == "left":  # there the pooler reads padding
            continue
        else:
            parts = value.unbind()
        for of_text, part in zip(values, parts, strict=True):
            of_text[key] = part
    return values
