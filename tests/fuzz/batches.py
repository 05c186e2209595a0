"""Batches: what our model is given, what the reference is, and where the two are compared.

Notation: B batch, S sequence, H heads, D hidden size, C choices; R sequences of packed input.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tests.fuzz.trial import Trial
from tests.model.cases import CHOICES, masks, random_batch, random_labels

IGNORED = -100


@dataclass
class Batch:
    """One batch in two forms."""

    ours: dict[str, Any]
    reference: dict[str, Any]
    #: (B, S) bool: where hidden states have a meaning.
    shown: Tensor
    #: (B, S) bool: where a loss reads scores, under padding too.
    scored: Tensor
    #: (B, S) bool: the tokens of packed input; None where the batch is padded.
    packed: Tensor | None = None


#: Ways to give our model an attention mask (B, S) bool.
PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "long": lambda mask: mask.long(),
    "bool": lambda mask: mask,
    "float": lambda mask: mask.float(),
    "int32": lambda mask: mask.int(),
    "(B, 1, 1, S)": lambda mask: mask[:, None, None],
}
#: Ways to give it a mask (B, H, S, S) bool, which also comes as numbers to add.
WIDE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "(B, S, S)": lambda allowed, added: allowed[:, 0].long(),
    "(B, 1, S, S)": lambda allowed, added: allowed[:, :1],
    "(B, H, S, S)": lambda allowed, added: allowed,
    "additive": lambda allowed, added: added,
}


def attended(trial: Trial) -> Tensor:
    """(B, S) bool: the attended tokens. Only the mask "empty row" has a row without any."""
    rows, length = trial.shape
    if trial.mask in ("none", "full"):
        return torch.ones(trial.shape, dtype=torch.bool)
    kinds = masks(7, length, trial.seed)
    found = kinds["right" if trial.mask == "empty row" else trial.mask]
    assert found is not None
    found = found.bool().repeat(3, 1)[:rows]
    if trial.mask == "empty row":
        found[-1] = False
    elif trial.mask == "right" and not trial.packed and trial.seed % 3 == 0:
        found[:, -1] = False  # a column that no row needs
    return found


def wide_mask(trial: Trial, tokens: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(B, H or 1, S, S) bool: what each query attends to; then the same as numbers to add."""
    rows, length = trial.shape
    by_head = trial.form in ("(B, H, S, S)", "additive")
    heads = trial.config.num_attention_heads if by_head else 1
    allowed = torch.rand(rows, heads, length, length, generator=generator) > 0.3
    allowed |= torch.eye(length, dtype=torch.bool) | ~tokens[:, None, :, None]
    allowed &= tokens[:, None, None]  # queries that are padding look at all of these
    if trial.config.is_decoder:
        allowed = allowed.tril()
    is_biased = trial.form == "additive"
    bias = torch.randn(allowed.shape, generator=generator) * is_biased
    return allowed, bias.masked_fill(~allowed, -torch.inf)


def draw_batch(trial: Trial) -> Batch:
    """The batch of a trial, padded for the reference; packed or padded for our model."""
    generator = torch.Generator().manual_seed(trial.seed)
    config, tokens, is_multiple = trial.config, attended(trial), "Multiple" in trial.head
    rows = trial.shape[0] // (CHOICES if is_multiple else 1)
    inputs = random_batch(trial.head, config, tokens[:rows].long(), trial.seed, trial.shape[1])
    inputs.pop("attention_mask")
    if rows == 1:  # not the positions of several sequences
        inputs["position_ids"].clamp_(min=1)
    labels: dict[str, Tensor] = {}
    if "labels" in trial.gives:
        labels = draw_labels(trial, inputs, tokens, generator)
    if "inputs_embeds" in trial.gives:
        shape = (*inputs.pop("input_ids").shape, config.hidden_size)
        inputs["inputs_embeds"] = torch.randn(shape, generator=generator)
    for name in ("token_type_ids", "position_ids"):
        if name not in trial.gives:
            inputs.pop(name)
        elif name == "position_ids" and not is_multiple and trial.seed % 3 == 0:
            inputs[name] = inputs[name][:1].clamp(min=1)  # for all rows alike

    shown = tokens
    if trial.words_left_out:
        ids, here = inputs["input_ids"].flatten(0, -2), ~tokens
        ids[here] = torch.randint(config.vocab_size, (int(here.sum()),), generator=generator)
        pad_token = config.pad_token_id
        shown = torch.ones_like(tokens) if pad_token is None else tokens | (ids != pad_token)
    scored = torch.zeros_like(tokens)
    if labels.get("labels", tokens[0]).shape == tokens.shape and trial.scores_tokens:
        scored = labels["labels"] != IGNORED
        if trial.head == "BertLMHeadModel":
            scored = pad(scored[:, 1:], (0, 1))
    batch = Batch(inputs | labels, inputs | labels, shown, scored)
    if trial.form in WIDE:
        allowed, added = wide_mask(trial, tokens, generator)
        batch.shown = allowed.any(-1).all(1)
        batch.ours["attention_mask"] = WIDE[trial.form](allowed, added)
        batch.reference["attention_mask"] = added
    elif trial.mask != "none":
        leading = (rows, CHOICES) if is_multiple else (rows,)
        batch.ours["attention_mask"] = PLAIN[trial.form](tokens).unflatten(0, leading)
        batch.reference["attention_mask"] = tokens.long().unflatten(0, leading)
    if trial.packed is not None:
        batch.packed, batch.ours = tokens, pack(trial, inputs | labels, tokens)
    return batch


def draw_labels(
    trial: Trial, inputs: dict[str, Tensor], tokens: Tensor, generator: torch.Generator
) -> dict[str, Tensor]:
    """Labels of the head. Where each token has a label, at least one of them counts."""
    config = trial.config
    found = random_labels(trial.head, config, inputs)
    if trial.head == "BertForSequenceClassification":
        several = torch.randint(0, 2, (trial.shape[0], config.num_labels), generator=generator)
        if config.num_labels == 1:
            return {"labels": several.float().flatten()}
        return found if "single" in str(config.problem_type) else {"labels": several.float()}
    if "start_positions" in found:
        found["start_positions"][-1] = 1
    if not trial.scores_tokens:
        return found
    allowed = torch.ones_like(tokens) if "labels under padding" in trial.gives else tokens
    if trial.head == "BertLMHeadModel":  # position i - 1 predicts label i
        allowed = pad((allowed[:, 1:] & allowed[:, :-1]), (1, 0))
        if not allowed.any():
            return {}
    first = allowed.nonzero()[0]
    found["labels"][tuple(first)] = 1
    found["labels"].masked_fill_(~allowed, IGNORED)
    return found


def pack(trial: Trial, inputs: dict[str, Tensor], tokens: Tensor) -> dict[str, Any]:
    """Packs right-padded rows (R, L) into one row (1, T), with the sequences' boundaries."""
    by_token = {"input_ids", "inputs_embeds", "token_type_ids"}
    if trial.scores_tokens:
        by_token.add("labels")
    found: dict[str, Any] = {k: v[tokens][None] if k in by_token else v for k, v in inputs.items()}
    lengths = tokens.sum(1)
    totals, longest = pad(lengths.cumsum(0), (1, 0)).int(), int(lengths.max())
    if trial.packed in ("positions", "both"):
        found["position_ids"] = torch.cat([torch.arange(n) for n in lengths.tolist()])[None]
    if trial.packed != "positions":
        found |= {"cu_seq_lens_q": totals, "max_length_q": longest}
    if trial.packed == "both":
        found |= {"cu_seq_lens_k": totals, "max_length_k": longest}
    if trial.packed == "totals and mask":
        found["attention_mask"] = torch.ones(1, int(lengths.sum()), dtype=torch.long)
    return found
