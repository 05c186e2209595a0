"""`hf-bert fill-mask`: the words that a masked-LM head would put in place of each mask."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import AsJson, Model
from hf_bert_impl.errors import InputError
from hf_bert_impl.tables import console, print_table

BAR_WIDTH = 24


def fill_mask(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text with one [MASK] or more.")],
    top_k: Annotated[int, typer.Option(min=1, help="How many tokens to print a mask.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Print the most probable tokens for each mask of a text.

    Example: hf-bert fill-mask google-bert/bert-base-cased "Nice to [MASK] you"
    """
    with quiet_libraries():
        checkpoint = checkpoints.open_checkpoint(model)
        masks = predict_masks(checkpoint, text, top_k)
    if as_json:
        typer.echo(json.dumps({"text": text, "masks": masks}, ensure_ascii=False))
        return
    for number, mask in enumerate(masks, start=1):
        title = text if len(masks) == 1 else f"{text} (mask {number} of {len(masks)})"
        print_predictions(title, mask["predictions"])


def print_predictions(title: str, predictions: list[dict[str, Any]]) -> None:
    """Print tokens with their probabilities, best first."""
    from rich.text import Text

    rows = []
    for rank, item in enumerate(predictions, start=1):
        probability = item["probability"]
        # Small ones keep their digits: 5.8323e-05 says more than 0.0001.
        figure = f"{probability:.4f}" if probability >= 1e-4 else f"{probability:.4e}"
        bar = Text("█" * round(probability * BAR_WIDTH), "cyan")
        rows.append((Text(str(rank), "dim"), Text(item["token"], "bold"), figure, bar))
    print_table(console(), title, ("", "token", "probability", ""), rows, words=(1, 3))


def predict_masks(
    checkpoint: checkpoints.Checkpoint, text: str, top_k: int
) -> list[dict[str, Any]]:
    """The best tokens for each mask of a text.

    Args:
        checkpoint: An open checkpoint with a masked-LM head.
        text: A text with at least one mask token.
        top_k: How many tokens a mask, at most the vocabulary.

    Returns:
        For each mask its `position` among the tokens and its `predictions`, best first, each with
        `token`, `id` and `probability`.

    Raises:
        InputError: There is no mask, the text is too long, or the checkpoint has no such head or no
            mask token.
    """
    import torch

    tokenizer = checkpoints.load_tokenizer(checkpoint)
    if tokenizer.mask_token_id is None:
        raise InputError(
            f"the tokenizer of {checkpoint.name} has no mask token",
            "one such as [MASK]",
            "name it as mask_token in its tokenizer_config.json",
        )
    if not text.strip():
        raise InputError("the text is empty", f"a text with {tokenizer.mask_token}", "write one")
    encoded = tokenizer(text, return_tensors="pt")
    ids = encoded["input_ids"]  # (1, S)
    here = ids[0] == tokenizer.mask_token_id  # (S,)
    if not here.any():
        raise InputError(
            f"the text {text[:60]!r} has no mask",
            f"{tokenizer.mask_token} in place of each word to find",
            f'write it, as in "Nice to {tokenizer.mask_token} you"',
        )
    # The config says it before the weights are loaded; 512 is BERT's own.
    limit = checkpoint.config.get("max_position_embeddings", 512)
    if ids.shape[1] > limit:
        raise InputError(
            f"the text has {ids.shape[1]} tokens",
            f"at most {limit}, for which the model has positions",
            "shorten it",
        )
    model, _ = checkpoints.load_whole(checkpoint, "masked-lm", dtype=torch.float32)
    with torch.inference_mode():
        logits = model(**encoded, return_dict=True).logits[0, here]  # (masks, V)
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
