"""`hf-bert fill-mask`: the most probable tokens for each mask."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import AsJson, Model
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.tables import console, print_table

BAR_WIDTH = 24


def fill_mask(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text with at least one [MASK].")],
    top_k: Annotated[int, typer.Option(min=1, help="Number of tokens per mask.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Print the most probable tokens for each mask of a text.

    Example: hf-bert fill-mask google-bert/bert-base-cased "Nice to [MASK] you"
    """
    with quiet_libraries():
        import torch

        from hf_bert_impl.encoders.lengths import longest_sequence
        from hf_bert_impl.inference.loading import load_config, prepare_model
        from hf_bert_impl.inference.masked_words import best_tokens, encode_masked

        checkpoint = checkpoints.open_checkpoint(model, any_family=True)
        tokenizer = checkpoints.load_tokenizer(checkpoint)
        # Checked before the weights are loaded.
        limit = longest_sequence(load_config(checkpoint.path))
        ids = encode_masked(tokenizer, text, limit)
        loaded: Any = checkpoints.load_whole(checkpoint, "masked-lm", dtype=torch.float32)[0]
        if not checkpoint.is_bert:
            prepare_model(loaded, None)
        (masks,) = best_tokens(loaded, tokenizer, [ids], top_k)
    if as_json:
        typer.echo(to_json({"text": text, "masks": masks}))
        return
    for number, mask in enumerate(masks, start=1):
        title = text if len(masks) == 1 else f"{text} (mask {number} of {len(masks)})"
        print_predictions(title, mask["predictions"])


def print_predictions(title: str, predictions: list[dict[str, Any]]) -> None:
    """Print tokens with their probabilities, best first."""
    rows = []
    for rank, item in enumerate(predictions, start=1):
        probability = item["probability"]
        # 5.8323e-05 is more precise than 0.0001.
        figure = f"{probability:.4f}" if probability >= 1e-4 else f"{probability:.4e}"
        bar = Text("█" * round(probability * BAR_WIDTH), "cyan")
        rows.append((Text(str(rank), "dim"), Text(item["token"], "bold"), figure, bar))
    print_table(console(), title, ("", "token", "probability", ""), rows, words=(1, 3))
