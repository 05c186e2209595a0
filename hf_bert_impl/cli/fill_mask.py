"""`hf-bert fill-mask`: the most probable tokens for each mask."""

from __future__ import annotations

import dataclasses
from typing import Any

import typer
from rich.text import Text

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.tables import console, print_table

BAR_WIDTH = 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillMask:
    """Print the most probable tokens for each mask of a text.

    Example: hf-bert fill-mask google-bert/bert-base-cased "Nice to [MASK] you"
    """

    model: str
    text: str
    """A text with at least one [MASK]."""
    top_k: int = 5
    """Number of tokens per mask."""
    as_json: bool = False

    def run(self) -> None:
        """Prints the tokens."""
        with quiet_libraries():
            checkpoint = open_checkpoint(self.model, any_family=True)
            import torch

            from hf_bert_impl.encoders.lengths import longest_sequence
            from hf_bert_impl.inference import loading
            from hf_bert_impl.inference.masked_words import best_tokens, encode_masked

            tokenizer = loading.load_tokenizer(checkpoint.path)
            # Checked before the weights are loaded.
            limit = longest_sequence(loading.load_config(checkpoint))
            ids = encode_masked(tokenizer, self.text, limit)
            loaded, _ = loading.load_whole(checkpoint, "masked-lm", dtype=torch.float32)
            if not checkpoint.is_bert:
                loading.prepare_model(loaded, None)
            (masks,) = best_tokens(loaded, tokenizer, [ids], self.top_k)
        if self.as_json:
            typer.echo(to_json({"text": self.text, "masks": masks}))
            return
        for number, mask in enumerate(masks, start=1):
            several = f" (mask {number} of {len(masks)})" if len(masks) > 1 else ""
            print_predictions(self.text + several, mask["predictions"])


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
