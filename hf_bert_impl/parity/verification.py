"""Comparison of a checkpoint in this package and in transformers' own BERT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import transformers

import hf_bert_impl
from hf_bert_impl.checkpoints import Checkpoint, class_name
from hf_bert_impl.encoders.lengths import longest_sequence
from hf_bert_impl.errors import InputError
from hf_bert_impl.head_names import in_family
from hf_bert_impl.inference import loading
from hf_bert_impl.inference.loading import find_device, load_config
from hf_bert_impl.optimization import optimize
from hf_bert_impl.parity.batches import (
    MAX_LENGTH,
    TEXTS,
    parity_batches,
    parity_labels,
    random_tokens,
    text_tokens,
)
from hf_bert_impl.parity.comparison import compare_models, load_reference, require_reference
from hf_bert_impl.parity.options import VerifyOptions
from hf_bert_impl.parity.report import ParityReport, ParityRow
from hf_bert_impl.parity.tensors import ACCELERATOR_TOLERANCE, FP32_TOLERANCE
from hf_bert_impl.tokenizer_files import has_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BACKENDS = ("eager", "sdpa")
CHOICES = 2


def verify_checkpoint(
    checkpoint: Checkpoint, head: str | None = None, **options: Any
) -> ParityReport:
    """Load a checkpoint twice, by this package and by transformers, and compare the two.

    For another family, both models are transformers', and one of them is optimized.

    Args:
        checkpoint: An open checkpoint.
        head: The head to compare; None for the one that the config names.
        **options: The fields of `VerifyOptions`.

    Returns:
        The report: loading, then every case.

    Raises:
        InputError: The checkpoint or a text cannot be compared.
    """
    asked = VerifyOptions(**options)
    device = find_device(asked.device)
    tolerance = FP32_TOLERANCE if device.type == "cpu" else ACCELERATOR_TOLERANCE
    if asked.tolerance is not None:
        tolerance = asked.tolerance
    name = class_name(checkpoint, head)
    config = load_config(checkpoint)
    if checkpoint.is_bert:
        require_reference(config)
    choices = CHOICES if name.endswith("ForMultipleChoice") else 0
    # Texts are checked before the weights are loaded, which takes longest.
    tokens, note = _tokens(checkpoint, config, asked.text, choices or 1)
    ours, info = loading.load_model(checkpoint, head, dtype=torch.float32)
    ours.to(device)
    if checkpoint.is_bert:
        reference, reference_info = load_reference(name, checkpoint.path, dtype=torch.float32)
    else:
        optimize(ours, "float32")
        reference, reference_info = loading.load_model(checkpoint, head, dtype=torch.float32)
    reference.to(device)

    report = _loading(ours, reference, info, reference_info)
    report.title = (
        f"{name} of {checkpoint.name}: hf_bert_impl {hf_bert_impl.__version__} and "
        f"transformers {transformers.__version__}, torch {torch.__version__}"
    )
    if note:
        report.add_note(note)
    if report.failures:
        return report
    batches = parity_batches(tokens, ours.config, choices=choices)
    bert_name = "Bert" + name.removeprefix(in_family("Bert", checkpoint.model_type))
    labels = {case: parity_labels(bert_name, ours.config, batch) for case, batch in batches.items()}
    for dtype in (torch.float32, torch.bfloat16) if asked.bf16 else (torch.float32,):
        report.extend(
            compare_models(
                ours,
                reference,
                batches,
                tolerance=tolerance,
                backends=BACKENDS if reference._supports_sdpa else BACKENDS[:1],  # MPNet
                dtype=dtype,
                gradients=asked.gradients,
                labels={case: given for case, given in labels.items() if given},
            )
        )
    return report


def _tokens(
    checkpoint: Checkpoint, config: Any, texts: Sequence[str], multiple: int
) -> tuple[list[tuple[list[int], list[int]]], str]:
    """The token sequences to compare on, and a note if they are random."""
    limit = longest_sequence(config)
    if not texts and not has_tokenizer(checkpoint.path):
        return random_tokens(config), "the checkpoint has no tokenizer: compared on random tokens"
    tokenizer = loading.load_tokenizer(checkpoint.path)
    if not texts:
        tokens = text_tokens(tokenizer, TEXTS, min(limit, MAX_LENGTH))
    else:
        if any(not text.strip() for text in texts):
            raise InputError("`text` is empty. Write a sentence, or remove it.", "text")
        tokens = text_tokens(tokenizer, texts, limit + 1)
        for text, (ids, _) in zip(texts, tokens, strict=True):
            if len(ids) > limit:
                raise InputError(
                    f"The text {text[:40]!r}... exceeds the model's {limit} tokens. Shorten it."
                )
        # A question of a multiple-choice model needs a second choice.
        tokens = tokens * multiple
    return tokens, ""


def _loading(
    ours: PreTrainedModel, reference: PreTrainedModel, *infos: dict[str, Any]
) -> ParityReport:
    """Compare the missing and unexpected keys of the two sides."""
    report = ParityReport()
    kinds = {
        kind.replace("_", " "): [set(map(str, side.get(kind) or ())) for side in infos]
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
    }
    kinds["state-dict keys"] = [set(model.state_dict()) for model in (ours, reference)]
    for label, (mine, theirs) in kinds.items():
        if mine != theirs:
            only = f"only here: {_few(mine - theirs)}; only upstream: {_few(theirs - mine)}"
            report.rows.append(ParityRow.failure("loading", label, only))
            continue
        report.rows.append(ParityRow("loading", label, 0.0, 0.0, 0.0, 0.0, True))
        if mine and label != "state-dict keys":
            report.add_note(f"{len(mine)} {label} on both sides: {_few(mine)}")
    if report.passed and infos[0].get("missing_keys"):
        # Each side initialises missing weights with its own random numbers.
        reference.load_state_dict(ours.state_dict(), strict=True)
        report.add_note("the missing weights are random, the same on both sides")
    return report


def _few(names: set[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(sorted(names)[:4]) + more or "none"
