"""`hf-bert demo`: real weights, offline, in under a minute."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import typer
from rich.rule import Rule
from rich.text import Text

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.reports import show_speed
from hf_bert_impl.tables import console, print_table

SENTENCES = (
    "A man is playing a guitar on stage.",
    "Someone performs music for a crowd.",
    "The cat sleeps on the warm windowsill.",
    "A kitten naps in the sun.",
    "Shares fell sharply after the report.",
    "The stock market lost ground today.",
)
#: Columns of a heading.
HEADING = 80


@dataclasses.dataclass(frozen=True)
class Demo:
    """Show on real weights, offline, what this package does.

    Loads all-MiniLM-L6-v2, compares its outputs with transformers' BERT, compares a few sentences
    by meaning, and measures the speed-up over transformers.

    Example: hf-bert demo
    """

    @quiet_libraries()
    def run(self) -> None:
        """Prints the three parts."""
        out = console()
        folder = checkpoints.demo_folder()

        # These imports take seconds, so they come after the folder has been found.
        import torch
        from transformers import AutoModel

        import hf_bert_impl
        from hf_bert_impl.measuring.beside import time_beside
        from hf_bert_impl.parity import reference_model
        from hf_bert_impl.parity.verification import verify_checkpoint
        from hf_bert_impl.text_encoder import TextEncoder

        checkpoint = checkpoints.Checkpoint(
            "all-MiniLM-L6-v2", str(folder), checkpoints.open_checkpoint(str(folder)).config
        )
        report = verify_checkpoint(checkpoint)
        out.print(Rule("1. The same numbers as transformers"), width=HEADING)
        report.render(out, cases=False)

        # The demo may run inside a larger process, so transformers must not stay changed.
        hf_bert_impl.register()
        try:
            model = AutoModel.from_pretrained(folder, trust_remote_code=False, dtype=torch.float32)
            model.eval()
        finally:
            hf_bert_impl.unregister()
        out.print()
        out.print(Rule("2. Sentences, by meaning"), width=HEADING)
        kind = f"{type(model).__module__.partition('.')[0]}.{type(model).__name__}"
        out.print(f"AutoModel.from_pretrained(...) gave {kind}", highlight=False)
        encoder = TextEncoder(str(folder))
        vectors = encoder.encode(SENTENCES, normalize_embeddings=True)  # (N, hidden)
        print_similarities(SENTENCES, (vectors @ vectors.T).tolist())

        out.print(Rule("3. Speed on random tokens"), width=HEADING)
        reference = reference_model(model)
        times = time_beside(model, lambda batch: reference(**batch))
        show_speed(times, f"{torch.get_num_threads()} threads, median of paired rounds")
        out.print(
            "Next: hf-bert verify google-bert/bert-base-cased, "
            'hf-bert fill-mask google-bert/bert-base-cased "Nice to [MASK] you", or in Python '
            "import hf_bert_impl; hf_bert_impl.register()",
            markup=False,
            highlight=False,
        )
        if not report.passed:
            raise typer.Exit(1)


def print_similarities(texts: Sequence[str], similarities: list[list[float]]) -> None:
    """Prints the matrix of cosines between texts, coloured by value."""
    rows = [
        (Text(f"{index} {text}"), *(Text(f"{cosine:.2f}", _colour(cosine)) for cosine in row))
        for index, (text, row) in enumerate(zip(texts, similarities, strict=True), start=1)
    ]
    columns = ("", *(str(index) for index in range(1, len(texts) + 1)))
    print_table(console(), "cosine similarity", columns, rows)


def _colour(cosine: float) -> str:
    if cosine > 0.995:
        return "dim"
    if cosine > 0.5:
        return "bold green"
    return "yellow" if cosine > 0.25 else "blue"
