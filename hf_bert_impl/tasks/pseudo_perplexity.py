"""Pseudo-perplexity: how improbable a masked language model finds texts.

Each token is masked in turn and predicted from all others. The score is the exponential of the mean
negative log-probability (Salazar et al. 2020, https://arxiv.org/abs/1910.14659).

Notation: R rows of a batch (one per masked token), S sequence, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from hf_bert_impl.data.option_ranges import check_length
from hf_bert_impl.data.task_collator import Feature, collate, token_count
from hf_bert_impl.data.token_budget import cut_batches
from hf_bert_impl.encoders.forward import MaskedLM, is_masked_lm
from hf_bert_impl.encoders.lengths import longest_sequence
from hf_bert_impl.errors import InputError
from hf_bert_impl.finite import check_numbers
from hf_bert_impl.tasks.metrics import perplexity

TOKEN_BUDGET = 8192


@dataclasses.dataclass(frozen=True)
class PseudoPerplexity:
    """The scores of texts: `accuracy` of the first prediction, and counts.

    `tokens` excludes special tokens. `cut` texts were longer than the model's maximum.
    """

    pseudo_perplexity: float
    accuracy: float
    tokens: int
    texts: int
    cut: int


@torch.inference_mode()
def pseudo_perplexity(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    max_length: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> PseudoPerplexity:
    """Predicts every token of every text; a text of n tokens is computed n times.

    Args:
        model: A `BertForMaskedLM` in eval mode.
        tokenizer: Its tokenizer.
        texts: The texts.
        max_length: Tokens at which a text is cut; None for the model's maximum.
        progress: Called with 1 before each text.

    Raises:
        ValueError: There is no token to predict or no mask token, or `max_length` is too large.
    """
    limit = longest_sequence(model.config)
    length = limit if max_length is None else max_length
    check_length("max_length", length, 3, limit)
    if tokenizer.mask_token_id is None:
        raise InputError(
            "the tokenizer has no mask token. Use one that has, e.g. that of "
            "google-bert/bert-base-uncased."
        )
    special = set(tokenizer.all_special_ids)
    cut = 0

    def rows() -> Iterator[Feature]:
        nonlocal cut
        for text in texts:
            encoded = tokenizer(text, truncation=True, max_length=length)
            ids = encoded["input_ids"]
            types = encoded.get("token_type_ids", [0] * len(ids))
            # Only a text of this length may have been cut.
            if len(ids) == length:
                cut += len(tokenizer(text, verbose=False)["input_ids"]) > length
            if progress is not None:
                progress(1)
            for place, gold in enumerate(ids):
                if gold not in special:
                    masked = [*ids[:place], tokenizer.mask_token_id, *ids[place + 1 :]]
                    row = {"input_ids": masked, "token_type_ids": types}
                    yield row | {"place": place, "gold": gold}

    losses: list[float] = []
    right = 0
    for features in cut_batches(rows(), token_count, token_budget=TOKEN_BUDGET):
        padded = collate(features, tokenizer.pad_token_id)
        batch = {name: value.to(model.device) for name, value in padded.items()}
        places = torch.tensor([feature["place"] for feature in features], device=model.device)
        gold = torch.tensor([feature["gold"] for feature in features], device=model.device)
        states = model.base_model(**batch, return_dict=True).last_hidden_state  # (R, S, D)
        own = torch.arange(len(features), device=model.device)
        head = MaskedLM(model).scores if is_masked_lm(model) else partial(model._score, model.cls)
        logits = head(states[own, places]).float()  # (R, V)
        check_numbers(logits, model)
        losses += torch.nn.functional.cross_entropy(logits, gold, reduction="none").tolist()
        right += int((logits.argmax(dim=-1) == gold).sum())
    count = len(losses)
    if not count:
        raise InputError("the texts hold no token to guess. Give other texts.")
    loss = math.fsum(losses)  # exact, so the same for any batches and order
    return PseudoPerplexity(perplexity(loss, count), right / count, count, len(texts), cut)
