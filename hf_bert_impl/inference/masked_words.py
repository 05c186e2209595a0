"""Predict the masked words of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hf_bert_impl.errors import InputError
from hf_bert_impl.finite import check_numbers
from hf_bert_impl.inference.batching import Ids, padded_inputs


def encode_masked(tokenizer: Any, text: str, limit: int) -> Ids:
    """The token ids of a text with at least one mask.

    Args:
        tokenizer: The model's tokenizer.
        text: The text.
        limit: Maximum number of tokens.

    Raises:
        InputError: The text is empty, too long or without a mask, or the tokenizer has no mask
            token.
    """
    mask = tokenizer.mask_token
    if mask is None:
        raise InputError(
            f"The tokenizer of {tokenizer.name_or_path} has no mask token. Set mask_token in its "
            "tokenizer_config.json, e.g. to [MASK]."
        )
    if not text.strip():
        raise InputError(f"The text is empty. Write one with {mask}.")
    ids: Ids = tokenizer(text)["input_ids"]
    if tokenizer.mask_token_id not in ids:
        raise InputError(f'The text {text[:60]!r} has no {mask}. Write e.g. "Nice to {mask} you".')
    if len(ids) > limit:
        raise InputError(f"The text has {len(ids)} tokens. The limit is {limit}. Shorten it.")
    return ids


@torch.inference_mode()
def best_tokens(
    model: Any, tokenizer: Any, rows: Sequence[Ids], top_k: int
) -> list[list[dict[str, Any]]]:
    """Predicts the tokens for each mask of several texts, without padding.

    Args:
        model: A `BertForMaskedLM`, or another family's after `optimize`, in eval mode.
        tokenizer: Its tokenizer.
        rows: The token ids of each text, from `encode_masked`.
        top_k: Number of tokens per mask, at most the vocabulary.

    Returns:
        Per text, a list of masks: the `position` among the tokens and the `predictions`, best
        first, each with `token`, `id` and `probability`.
    """
    mask_id = tokenizer.mask_token_id
    inputs = padded_inputs([{"input_ids": row} for row in rows], tokenizer, model.device)
    logits = model(**inputs, return_dict=True).logits  # (B, S, V)
    scores = logits[inputs["input_ids"] == mask_id].float()  # (masks, V)
    check_numbers(scores, model)
    best = scores.softmax(dim=-1).topk(min(top_k, scores.shape[-1]))
    convert = tokenizer.convert_ids_to_tokens
    predictions = (
        [
            {"token": token, "id": index, "probability": probability}
            for token, index, probability in zip(convert(indices), indices, values, strict=True)
        ]
        for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )
    return [
        [
            {"position": position, "predictions": next(predictions)}
            for position, token in enumerate(row)
            if token == mask_id
        ]
        for row in rows
    ]
