"""The speed-up of `optimize` for models of other families, compared with transformers.

    python -m benchmarks.families --layers 6 --output benchmarks/results/families.json
    python -m benchmarks.families --only mpnet --dtype int8

Weights are random and of the base size. Both models take turns in one process.
"""

from __future__ import annotations

import copy
import functools
import statistics
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer

from hf_bert_impl import optimize
from hf_bert_impl.benchmark.cases import make_case
from hf_bert_impl.benchmark.results import environment
from hf_bert_impl.files.json_files import write_json
from hf_bert_impl.measuring.batches import make_batch
from hf_bert_impl.measuring.timing import cpu_name, in_turns
from hf_bert_impl.tables import console, print_table

BASE = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 514,
    "pad_token_id": 1,
}
#: By family: the prefix of its classes, and further fields of the config. The oldest supported
#: transformers lacks some.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {}),
    "roberta": ("Roberta", {}),
    "xlm-roberta": ("XLMRoberta", {}),
    "camembert": ("Camembert", {}),
    "electra": ("Electra", {"embedding_size": 768}),
    "distilbert": ("DistilBert", {}),
    "mpnet": ("MPNet", {}),
    "nomic": ("NomicBert", {}),
    "gte": ("Gte", {}),
    "jina-v3": ("JinaEmbeddingsV3", {}),
    "modernbert": (
        "ModernBert",
        dict.fromkeys(("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id"), 2),
    ),
    "eurobert": ("EuroBert", {}),
    "ernie": ("Ernie", {}),
    "roberta-prelayernorm": ("RobertaPreLayerNorm", {}),
}
FAMILIES = {
    name: each for name, each in FAMILIES.items() if hasattr(transformers, f"{each[0]}Config")
}
CASES = {"32 sentences": ("short", 32), "one sentence": ("sentence", 1)}


def main(
    only: Annotated[str, typer.Option(help="Some of the families.")] = ",".join(FAMILIES),
    dtype: Annotated[str, typer.Option(help="Of the optimized model.")] = "float32",
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    layers: Annotated[int | None, typer.Option(help="Fewer than the config's.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the results as JSON.")] = None,
) -> None:
    """How fast `optimize` makes models of other families."""
    torch.set_num_threads(threads)
    rows: list[dict[str, Any]] = []
    for family in only.split(","):
        prefix, fields = FAMILIES[family]
        config = getattr(transformers, f"{prefix}Config")(**(BASE | fields))
        config.num_hidden_layers = layers or config.num_hidden_layers
        torch.manual_seed(0)
        stock = transformers.AutoModel.from_config(config, trust_remote_code=False).eval()
        model = optimize(copy.deepcopy(stock), dtype)
        for name, (case_kind, count) in CASES.items():
            case = make_case(case_kind, count, 512)
            batch = make_batch(case, config.vocab_size)
            real = batch["attention_mask"].bool()
            batch["input_ids"].masked_fill_(~real, config.pad_token_id)
            with torch.inference_mode():
                calls = [functools.partial(each, **batch) for each in (model, stock)]
                ours, theirs = (call().last_hidden_state[real] for call in calls)
                times = in_turns(calls, rounds)
            ratios = [their / own for own, their in zip(*times, strict=True)]
            rows.append(
                {
                    "family": family,
                    "case": name,
                    "padding": 1 - real.float().mean().item(),
                    "ratio": statistics.median(ratios),
                    "ratio_min": min(ratios),
                    "ratio_max": max(ratios),
                    "error": (ours - theirs).abs().max().item(),
                }
            )
    cells = [
        (
            *(row["family"], row["case"], f"{row['padding']:.0%}"),
            f"{row['ratio']:.2f} ({row['ratio_min']:.2f}–{row['ratio_max']:.2f})",
            f"{row['error']:.0e}",
        )
        for row in rows
    ]
    title = f"{cpu_name()}, {threads} thread(s), {dtype}, {rounds} rounds"
    columns = ("family", "batch", "padding", "speed-up", "error")
    print_table(console(), title, columns, cells, words=(0, 1))
    if output is not None:
        record = {"environment": environment("cpu", threads), "rounds": rounds, "dtype": dtype}
        write_json(output, record | {"layers": layers, "rows": rows})


if __name__ == "__main__":
    typer.run(main)
