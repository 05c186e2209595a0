"""The words that a masked-LM head would put in place of each mask of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hf_bert_impl.errors import InputError
from hf_bert_impl.finite import check_numbers
from hf_bert_impl.inference.batching import Ids, packed_inputs

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedModel


def encode_masked(tokenizer: Any, text: str, limit: int) -> BatchEncoding:
    """A text with at least one mask, as a batch of one.

    Args:
        tokenizer: The model's tokenizer.
        text: The text.
        limit: Most tokens that the model has positions for.

    Raises:
        InputError: There is no mask, the text is empty or too long, or the tokenizer has no mask
            token.
    """
    mask = tokenizer.mask_token
    if mask is None:
        raise InputError(
            f"the tokenizer of {tokenizer.name_or_path} has no mask token",
            "one such as [MASK]",
            "name it as mask_token in its tokenizer_config.json",
        )
    if not text.strip():
        raise InputError("the text is empty", f"a text with {mask}", "write one")
    batch: BatchEncoding = tokenizer(text, return_tensors="pt")
    ids = batch["input_ids"]  # (1, S)
    if tokenizer.mask_token_id not in ids:
        raise InputError(
            f"the text {text[:60]!r} has no mask",
            f"{mask} in place of each word to find",
            f'write it, as in "Nice to {mask} you"',
        )
    if ids.shape[1] > limit:
        raise InputError(
            f"the text has {ids.shape[1]} tokens",
            f"at most {limit}, for which the model has positions",
            "shorten it",
        )
    return batch


def predict_masks(
    model: PreTrainedModel, tokenizer: Any, batch: BatchEncoding, top_k: int
) -> list[dict[str, Any]]:
    """The best tokens for each mask of a text.

    Args:
        model: With a masked-LM head, in eval mode.
        tokenizer: Its tokenizer.
        batch: From `encode_masked`.
        top_k: How many tokens a mask, at most the vocabulary.

    Returns:
        For each mask its `position` among the tokens and its `predictions`, best first, each with
        `token`, `id` and `probability`.
    """
    here = batch["input_ids"][0] == tokenizer.mask_token_id  # (S,)
    with torch.inference_mode():
        logits = model(**batch, return_dict=True).logits[0, here]  # (masks, V)
    check_numbers(logits, model)
    best = logits.float().softmax(dim=-1).topk(min(top_k, logits.shape[-1]))
    return [
        {
            "position": position,
            "predictions": [
                {"token": token, "id": index, "probability": probability}
                for token, index, probability in zip(
                    tokenizer.convert_ids_to_tokens(indices), indices, probabilities, strict=True
                )
            ],
        }
        for position, indices, probabilities in zip(
            here.nonzero()[:, 0].tolist(), best.indices.tolist(), best.values.tolist(), strict=True
        )
    ]


@torch.inference_mode()
def best_tokens(
    model: Any, tokenizer: Any, rows: list[Ids], top_k: int
) -> list[tuple[list[list[str]], list[list[float]]]]:
    """The best tokens for each mask of several texts, which go through the model without padding.

    Args:
        model: With a masked-LM head, in eval mode.
        tokenizer: Its tokenizer.
        rows: The token ids of each text, from `encode_masked`.
        top_k: How many tokens a mask, at most the vocabulary.

    Returns:
        For each text the tokens of each of its masks, best first, and their probabilities.
    """
    inputs = packed_inputs(rows, None, model.device)
    here = inputs["input_ids"] == tokenizer.mask_token_id  # (1, T)
    states = model.base_model(**inputs, return_dict=True).last_hidden_state[here]  # (masks, D)
    scores = model.cls(states).float()  # (masks, V), not the scores of all tokens
    check_numbers(scores, model)
    best = scores.softmax(dim=-1).topk(top_k)
    tokens = [tokenizer.convert_ids_to_tokens(row) for row in best.indices.tolist()]
    probabilities = best.values.tolist()
    found, done = [], 0
    for row in rows:
        masks = slice(done, done := done + row.count(tokenizer.mask_token_id))
        found.append((tokens[masks], probabilities[masks]))
    return found
