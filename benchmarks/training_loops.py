"""Fine-tuning and pre-training against transformers' BERT: the same loop, batches and weights.

    python -m benchmarks.training_loops finetune MODEL train.tsv
    python -m benchmarks.training_loops pretrain TOKENIZER corpus.txt
    python -m benchmarks.training_loops steps base --output benchmarks/results/training.json

Dropout is off and everything is float32, so the losses of both are the same but for rounding. Each
model has its own process, which is stopped while the other takes a step: forward, backward, AdamW.
The order alternates. `--steps 0` takes all batches of the text.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import DataCollatorWithPadding

import hf_bert_impl
from hf_bert_impl.benchmark.contest import Contestant
from hf_bert_impl.benchmark.peers import Source
from hf_bert_impl.benchmark.results import environment
from hf_bert_impl.data.epochs import Epochs
from hf_bert_impl.data.examples import ExampleOptions
from hf_bert_impl.data.masking import Masker
from hf_bert_impl.data.pretraining_collator import PretrainingCollator
from hf_bert_impl.data.pretraining_data import make_examples, tokenize_documents
from hf_bert_impl.data.task_files import read_rows
from hf_bert_impl.files.json_files import write_json
from hf_bert_impl.measuring.batches import Case, make_batch
from hf_bert_impl.parity import reference_model

Batch = dict[str, Tensor]
#: Columns of a random batch.
WIDTH = 128
app = typer.Typer(add_completion=False, help=__doc__)

Steps = Annotated[int, typer.Option(help="Batches to time; 0 for all.")]
BatchSize = Annotated[int, typer.Option()]
MaxLength = Annotated[int, typer.Option()]
Rate = Annotated[float, typer.Option()]
Threads = Annotated[int, typer.Option(help="0 leaves torch's default.")]


@app.command()
def finetune(
    model: str,
    data: str,
    steps: Steps = 40,
    batch_size: BatchSize = 32,
    max_length: MaxLength = 128,
    learning_rate: Rate = 5e-5,
    threads: Threads = 0,
) -> None:
    """Classification of the texts in DATA, lines of text TAB label."""
    rows = read_rows(data, ["0", "1"])
    random.Random(0).shuffle(rows)
    labels = sorted({row.values[1] for row in rows})
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(model)
    collate = DataCollatorWithPadding(tokenizer)
    torch.manual_seed(0)
    ours = hf_bert_impl.BertForSequenceClassification.from_pretrained(
        model, num_labels=len(labels), dtype=torch.float32
    )

    def batches() -> Iterator[Batch]:
        for begin in range(0, len(rows) - batch_size + 1, batch_size):
            part = rows[begin : begin + batch_size]
            texts = [row.values[0] for row in part]
            coded = tokenizer(texts, truncation=True, max_length=max_length)
            examples = [{name: coded[name][i] for name in coded} for i in range(batch_size)]
            batch = dict(collate(examples))
            batch["labels"] = torch.tensor([labels.index(row.values[1]) for row in part])
            yield batch

    compare(ours, batches(), steps, learning_rate, threads)


@app.command()
def pretrain(
    tokenizer: str,
    corpus: list[str],
    layout: Annotated[str, typer.Option()] = "sentences",
    layers: Annotated[int, typer.Option()] = 4,
    hidden_size: Annotated[int, typer.Option()] = 256,
    steps: Steps = 40,
    batch_size: BatchSize = 32,
    max_length: MaxLength = 128,
    learning_rate: Rate = 1e-4,
    threads: Threads = 0,
) -> None:
    """Masked words and next sentences of CORPUS, from random weights."""
    words = hf_bert_impl.BertTokenizer.from_pretrained(tokenizer)
    documents = tokenize_documents(corpus, words, layout=layout)
    examples = Epochs(
        make_examples(documents, words, ExampleOptions(max_length=max_length)),
        batch_size=batch_size,
        seed=0,
    )
    collate = PretrainingCollator(Masker(words))
    torch.manual_seed(0)
    ours = hf_bert_impl.BertForPreTraining(
        hf_bert_impl.BertConfig(
            vocab_size=len(words),
            hidden_size=hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=hidden_size // 64,
            intermediate_size=4 * hidden_size,
        )
    )
    batches = (
        collate(examples.__getitems__(list(range(begin, begin + batch_size))))
        for begin in range(0, len(examples) - batch_size + 1, batch_size)
    )
    compare(ours, batches, steps, learning_rate, threads)


@app.command("steps")
def take_steps(
    size: Annotated[str, typer.Argument(help="Of random weights: minilm, small or base.")] = "base",
    head: Annotated[str, typer.Option(help="Their class.")] = "BertForMaskedLM",
    padding: Annotated[float, typer.Option(min=0.0, max=0.9, help="Its share.")] = 0.5,
    rows: Annotated[int, typer.Option(help="Of up to 128 tokens.")] = 8,
    steps: Steps = 5,
    learning_rate: Rate = 1e-4,
    threads: Threads = 0,
    output: Annotated[Path | None, typer.Option(help="Add the result to this JSON.")] = None,
) -> None:
    """Steps on one random batch: 15 % of its tokens, or each of its rows, has a label."""
    ours = Source(random=size).load(head)
    # Powers of numbers from 0 to 1 have this mean, and the longest row has all columns.
    power = padding / (1 - padding)
    lengths = [max(2, round(WIDTH * ((row + 0.5) / rows) ** power)) for row in range(rows)]
    lengths[-1] = WIDTH
    batch = make_batch(Case("train", tuple(lengths), WIDTH), ours.config.vocab_size)
    mask, draw = batch["attention_mask"].bool(), torch.Generator().manual_seed(1)
    if head == "BertForMaskedLM":
        labelled = torch.rand(mask.shape, generator=draw) < 0.15
        labels = batch["input_ids"].masked_fill(~(labelled & mask), -100)
    else:
        labels = torch.randint(ours.config.num_labels, (rows,), generator=draw)
    batches = itertools.repeat(batch | {"labels": labels})
    row = {"size": size, "head": head} | compare(ours, batches, steps, learning_rate, threads)
    if output is not None:
        record = json.loads(output.read_text("utf-8")) if output.exists() else {"rows": []}
        record["environment"] = environment("cpu", threads or torch.get_num_threads())
        write_json(output, record | {"rows": [*record["rows"], row]})


class Stepping:
    """A model that takes steps, in its own process.

    Args:
        is_ours: Whether it is of this package, and not of transformers.
        cls: Its class.
        folder: Its weights.
        learning_rate: Of AdamW.
        threads: How many it computes with; 0 for torch's default.
    """

    def __init__(
        self, is_ours: bool, cls: str, folder: str, learning_rate: float, threads: int
    ) -> None:
        if threads:
            torch.set_num_threads(threads)
        model = getattr(hf_bert_impl, cls).from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=False
        )
        self.model: Any = model
        if not is_ours:
            self.model = reference_model(model)
            self.model.set_attn_implementation("sdpa")
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate)

    def step(self, batch: Batch) -> tuple[float, float]:
        """Takes a step; its seconds and its loss."""
        begin = time.perf_counter()
        loss = self.model(**batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - begin, float(loss.detach())

    def peak(self, batch: Batch) -> int:
        """The peak of the tensors alive during a step above those alive before it, in bytes.

        torch's profiler records every allocation and release of its CPU allocator; the peak of
        their running sum is the same on every run and machine.
        """
        self.model(**batch).loss.backward()
        self.model.zero_grad(set_to_none=False)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            self.model(**batch).loss.backward()
        results: Any = recorded.profiler
        changes = sorted(
            (event.start_ns(), event.nbytes())
            for event in results.kineto_results.events()
            if event.name() == "[memory]" and event.device_type().name == "CPU"
        )
        return max(itertools.accumulate(size for _, size in changes))


def compare(
    ours: Any, batches: Iterator[Batch], steps: int, learning_rate: float, threads: int
) -> dict[str, Any]:
    """Takes the same steps with both models, prints times and losses, and returns them."""
    seconds: tuple[list[float], list[float]] = ([], [])
    gaps, real, computed, warm_up = list[float](), 0, 0, 2
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        ours.save_pretrained(folder)
        given = (type(ours).__name__, folder, learning_rate, threads)
        contestants = []
        for name in ("ours", "transformers"):
            make = functools.partial(Stepping, name == "ours", *given)
            one = Contestant(name, "float32", make, threads or torch.get_num_threads(), folder)
            contestants.append(stack.enter_context(one))
        for number, batch in enumerate(batches):
            if steps and number == steps + warm_up:
                break
            losses = [0.0, 0.0]
            for side in (0, 1) if number % 2 else (1, 0):
                taken, losses[side] = contestants[side].ask("step", batch)
                if number >= warm_up:
                    seconds[side].append(taken)
            gaps.append(abs(losses[0] - losses[1]))
            real += int(batch["attention_mask"].sum())
            computed += batch["attention_mask"].numel()
        if not seconds[0]:
            raise typer.BadParameter("the text makes fewer batches than the warm-up takes")
        peaks = [one.ask("peak", batch) for one in contestants]
    ratios = sorted(b / a for a, b in zip(*seconds, strict=True))
    row = {
        "padding": 1 - real / computed,
        "ours_ms": 1000 * statistics.median(seconds[0]),
        "peer_ms": 1000 * statistics.median(seconds[1]),
        "ratio": statistics.median(ratios),
        "ratio_min": ratios[len(ratios) // 10],
        "ratio_max": ratios[-1 - len(ratios) // 10],
        "memory": peaks[0] / peaks[1],
        "loss_error": max(gaps[:10]),
    }
    threads = threads or torch.get_num_threads()
    print(f"{len(ratios)} steps, {row['padding']:.0%} padding, {threads} threads")
    print(f"a step: ours {row['ours_ms']:.0f} ms, transformers sdpa {row['peer_ms']:.0f} ms")
    spread = f"{row['ratio_min']:.2f}–{row['ratio_max']:.2f}"
    total = sum(seconds[1]) / sum(seconds[0])
    print(f"times as fast: {total:.2f} (median step {row['ratio']:.2f}, 80 % in {spread})")
    print(f"largest difference of a loss: {max(gaps):.1e}, of the first ten {max(gaps[:10]):.1e}")
    print(f"memory of a step beyond weights and gradients: {row['memory']:.2f} of theirs")
    return row


if __name__ == "__main__":
    # Contestants unpickle the class of this file by its name, which is not __main__ there.
    from benchmarks.training_loops import app as by_name

    by_name()
