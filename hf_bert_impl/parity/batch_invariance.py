"""Comparison of the bits of a text alone and in a batch, for each way of computing."""

from __future__ import annotations

import math
import random
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from hf_bert_impl.checkpoints import Checkpoint, class_name
from hf_bert_impl.inference import loading
from hf_bert_impl.model.configuration_bert import BertConfig
from hf_bert_impl.model.kernels import DTYPES, why_no_kernels
from hf_bert_impl.parity.batches import Tokens, padded, random_tokens
from hf_bert_impl.parity.comparison import load_reference, require_reference
from hf_bert_impl.parity.report import ParityReport
from hf_bert_impl.parity.tensors import PER_POSITION_2D, exact_row

#: The number of texts, and their minimum and maximum length in tokens.
TEXTS, SHORTEST, LONGEST = 70, 3, 300
#: Texts per batch.
SIZES = (4, 16, TEXTS)


def verify_batch_invariance(checkpoint: Checkpoint, head: str | None = None) -> ParityReport:
    """Compute random token ids alone and in batches, in several ways, and compare the bits.

    The batches are shuffled and padded right; with `batch_invariant` the largest is also padded
    left and packed.

    Args:
        checkpoint: An open checkpoint.
        head: The head to compute; None for the config's.

    Returns:
        Rows for each way and output: with `batch_invariant`, where any difference fails, and
        without it, also for transformers' own model. A note per way counts the texts that differ.

    Raises:
        ValueError: The checkpoint cannot be compared, or cannot be batch-invariant.
    """
    name = class_name(checkpoint, head)
    config = BertConfig.from_dict(checkpoint.config)
    require_reference(config)
    longest = min(LONGEST, config.max_position_embeddings)
    shortest = min(SHORTEST, longest)
    lengths = [int(n) for n in torch.logspace(0, 1, TEXTS, base=longest / shortest) * shortest]
    texts = random_tokens(config, lengths)
    ways: dict[str, str | None] = {"unchanged": None, "prepared float32": "float32"}
    for kind in ("bfloat16", "float16", "int8"):
        if why_no_kernels(DTYPES[kind]) is None:
            ways[f"prepared {kind}"] = kind
    report = ParityReport(
        title=f"{name} of {checkpoint.name}: {TEXTS} texts of {lengths[0]} to {longest} tokens, "
        f"{torch.get_num_threads()} threads"
    )
    for is_promised in (True, False):  # the promise first: it may be refused
        if not is_promised:
            reference, _ = load_reference(name, checkpoint.path, dtype=torch.float32)
            _compare(report, reference, "transformers", False, texts)
        for way, dtype in ways.items():
            model, _ = loading.load_model(checkpoint, head, dtype=torch.float32)
            model.config.batch_invariant = is_promised
            if dtype is not None:
                model.prepare_for_inference(dtype)
            case = f"{way}, batch_invariant" if is_promised else way
            _compare(report, model, case, is_promised, texts)
    return report


def _compare(
    report: ParityReport, model: Any, case: str, is_promised: bool, texts: list[Tokens]
) -> None:
    """Compute the texts alone and in batches."""
    alone = [_values(model, [text], "right")[0] for text in texts]
    shuffled = random.Random(0)
    changed: set[int] = set()
    packed = () if type(model).__name__ == "BertForMultipleChoice" else ("packed",)
    for size in SIZES:
        for layout in ("right", *(("left", *packed) if is_promised and size == TEXTS else ())):
            order = shuffled.sample(range(TEXTS), TEXTS)
            batched: list[dict[str, Tensor]] = []
            for start in range(0, TEXTS, size):
                chosen = [texts[index] for index in order[start : start + size]]
                batched += _values(model, chosen, layout)
            for key in batched[0]:
                ours, theirs = [one[key] for one in batched], [alone[index][key] for index in order]
                for index, value, other in zip(order, ours, theirs, strict=True):
                    changed |= set() if torch.equal(value, other) else {index}
                name = f"{key}, batches of {size}, {layout}"
                values, others = (torch.cat([*map(torch.flatten, side)]) for side in (ours, theirs))
                tolerance = 0.0 if is_promised else math.inf
                report.rows.append(exact_row(case, name, values, others, tolerance))
    report.add_note(f"{case}: {len(changed)} of {TEXTS} texts differ from what they are alone")


@torch.inference_mode()
def _values(model: Any, texts: list[Tokens], layout: str) -> list[dict[str, Tensor]]:
    """The outputs of each text by name."""
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
        elif layout == "left":  # the pooler reads padding
            continue
        else:
            parts = value.unbind()
        for of_text, part in zip(values, parts, strict=True):
            of_text[key] = part
    return values
