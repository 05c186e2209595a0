"""Models of sentence-transformers: as they come, after `hf_bert_impl.optimize`, and with OpenVINO.

    python -m benchmarks.text_models FOLDER --cases dense --dtype float32,bfloat16,int8
    python -m benchmarks.text_models --random minilm --cases cross-encoder,sparse,multi-vector

Every contestant makes the same call on the same texts, in turns, each in its own process.
OpenVINO takes the place of the transformers model inside the library's, as its own backend does;
the backend's packages need an older transformers than 5.23. Its int8 is NNCF's static quantisation.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import gc
import importlib
import json
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn
from transformers import AutoTokenizer
from transformers.utils import ModelOutput

import hf_bert_impl
from benchmarks.races import spread, stopped
from benchmarks.static_int8 import CALIBRATION_TEXTS, quantised
from hf_bert_impl.benchmark.cases import PARTS, Unavailable, sentences
from hf_bert_impl.benchmark.contest import Contestant, race
from hf_bert_impl.benchmark.contestants import Timed
from hf_bert_impl.benchmark.peers import BOTH, Settings, Source
from hf_bert_impl.benchmark.results import Row, environment
from hf_bert_impl.benchmark.runtimes import (
    openvino_precision,
    openvino_runner,
    write_onnx_file,
)
from hf_bert_impl.checkpoints import demo_folder
from hf_bert_impl.data.squad import read_squad
from hf_bert_impl.export import INPUTS, openvino_model
from hf_bert_impl.files.json_files import write_json
from hf_bert_impl.measuring.batches import Case
from hf_bert_impl.measuring.timing import cpu_name
from hf_bert_impl.tables import console, print_table
from hf_bert_impl.tasks.sts import read_sts

#: How many texts are compared: a vector of SPLADE has 30,522 numbers, one of ColBERT 128 a token.
CHECKED = 64
#: Tokens of a passage, minimum and maximum.
PASSAGE_TOKENS = (30, 300)
app = typer.Typer(add_completion=False)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of model."""

    cls: str
    """Its class in sentence-transformers."""
    holds: str
    """The class of the BERT in it."""
    method: str
    """What is timed."""
    texts: int
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """How it is called."""


KINDS = {
    "dense": Kind("SentenceTransformer", "BertModel", "encode", 5000, {"convert_to_tensor": True}),
    "cross-encoder": Kind(
        "CrossEncoder",
        "BertForSequenceClassification",
        "predict",
        500,
        # Scores as they are: a sigmoid would make errors look small.
        {"convert_to_tensor": True, "activation_fn": nn.Identity()},
    ),
    "sparse": Kind("SparseEncoder", "BertForMaskedLM", "encode_document", 250),
    "multi-vector": Kind("MultiVectorEncoder", "BertModel", "encode_document", 500),
}


class TextModel(Timed):
    """A model that takes texts.

    Args:
        name: `optimized`, `sentence-transformers` or `openvino`.
        dtype: Its precision.
        kind: One of `KINDS`.
        folder: The model as a folder of this kind.
        number: How many texts it takes.
        source: The model.
        settings: Threads.
    """

    def __init__(
        self,
        name: str,
        dtype: str,
        kind: str,
        folder: str,
        number: int,
        source: Source,
        settings: Settings,
    ) -> None:
        super().__init__(source, settings)
        self.kind = KINDS[kind]
        self.whole = load(self.kind, folder, dtype if name == "sentence-transformers" else None)
        further = CALIBRATION_TEXTS // (1 if kind == "dense" else 3)
        inputs = make_inputs(kind, self.whole.tokenizer, number + further)
        self.inputs = inputs[:number]
        if name == "optimized":
            self.whole = hf_bert_impl.optimize(self.whole, dtype=dtype)
        elif name == "openvino":
            samples = [self._tokens(it) for it in inputs[number:]] if dtype == "int8" else None
            inside = self.whole[0]
            inside.model = OpenVino(inside.model, settings.threads or 1, dtype, samples)

    def case(self, name: str) -> Case:
        """The tokens of each text, or of each pair, as the model cuts them."""
        lengths = (self._tokens(given)["input_ids"].shape[1] for given in self.inputs)
        return Case(name, tuple(lengths), 0)

    def call(self, case: Case, number: int) -> Callable[[], Any]:
        """The part of the texts whose turn it is."""
        return functools.partial(self._run, self.inputs[number % PARTS :: PARTS])

    def result(self, case: Case) -> Tensor:
        """The output for the first texts: vectors, scores, or the vectors of all tokens."""
        found = self._run(self.inputs[:CHECKED])
        if isinstance(found, list):
            found = torch.cat(found)
        return (found.to_dense() if found.is_sparse else found).float()

    def memory(self, case: Case) -> float:
        """How far this process's resident memory rises during a part of the texts, in MiB.

        Linux counts it: writing 5 to `clear_refs` sets the high-water mark to the present size.
        Memory that is free but still held is handed back first, since a call that reuses it would
        seem to need none.
        """
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = resident_kib("VmRSS")
        self.call(case, 0)()
        return (resident_kib("VmHWM") - before) / 1024

    def _run(self, texts: list[Any]) -> Any:
        call = getattr(self.whole, self.kind.method)
        return call(texts, show_progress_bar=False, **self.kind.options)

    def _tokens(self, given: Any) -> Any:
        """A text or a pair as a batch of one."""
        words = given if isinstance(given, tuple) else (given,)
        longest = getattr(self.whole, "max_length", None)  # else the tokenizer's own
        return self.whole.tokenizer(
            *words, truncation=True, max_length=longest, return_tensors="pt"
        )


class OpenVino(nn.Module):
    """OpenVINO where a model of sentence-transformers holds one of transformers.

    Args:
        model: transformers' model, float32, in eval mode.
        threads: How many it computes with.
        dtype: Its precision.
        samples: For int8, batches of one that it is calibrated on.
    """

    def __init__(self, model: Any, threads: int, dtype: str, samples: list[Any] | None) -> None:
        super().__init__()
        self.config, self.device, self.dtype = model.config, model.device, model.dtype
        self.output = "logits" if hasattr(model, "bert") else "last_hidden_state"
        graph: Any = write_onnx_file(model, INPUTS)
        if samples is not None:
            arrays = [{name: it[name].numpy() for name in INPUTS} for it in samples]
            graph = quantised(graph, arrays)
        compiled = openvino_model(graph, threads, openvino_precision(dtype))
        self.runner = openvino_runner(compiled)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **given: Any) -> ModelOutput:
        """(B, S) each, and `token_type_ids`; the hidden states or the logits."""
        kinds = given.get("token_type_ids")
        batch = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": torch.zeros_like(input_ids) if kinds is None else kinds,
        }
        runner = self.runner
        return ModelOutput({self.output: runner.states(runner.call(runner.convert(batch)))})


def resident_kib(field: str) -> int:
    """A figure of this process's memory, as Linux counts it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def load(kind: Kind, folder: str, dtype: str | None = None) -> Any:
    """A model of sentence-transformers as it comes, from a folder of its kind or a bare BERT."""
    cls = getattr(importlib.import_module("sentence_transformers"), kind.cls)
    options = {"dtype": getattr(torch, dtype or "float32")}
    return cls(folder, device="cpu", trust_remote_code=False, model_kwargs=options)


def make_folder(source: Source, name: str, scratch: Path) -> str:
    """The measured model as a folder of a kind.

    A folder that was saved as this kind is taken as it is. Otherwise it is the BERT that is named,
    with the tokenizer's limit at its positions; layers that it lacks are random.
    """
    kind, path = KINDS[name], source.path
    named = Path(path or "") / "config_sentence_transformers.json"
    saved_as = json.loads(named.read_text(encoding="utf-8")) if named.is_file() else {}
    if path and (name == "dense" or saved_as.get("model_type") == kind.cls):
        return path
    held = source.load(kind.holds, **({"num_labels": 1} if name == "cross-encoder" else {}))
    tokenizer = AutoTokenizer.from_pretrained(path or demo_folder(), trust_remote_code=False)
    tokenizer.model_max_length = held.config.max_position_embeddings
    bert, whole = scratch / name / "bert", scratch / name / "whole"
    held.save_pretrained(bert)
    tokenizer.save_pretrained(bert)
    torch.manual_seed(0)
    load(kind, str(bert)).save_pretrained(str(whole))
    return str(whole)


# --- texts -----------------------------------------------------------------------------------


def make_inputs(kind: str, tokenizer: Any, number: int) -> list[Any]:
    """The texts of a kind of model: sentences of STS 2014 and 2012, or passages.

    A cross-encoder gets pairs as a re-ranker gets them: each part of the passages belongs to one
    short question. Texts are repeated from the first where there are too few, and made up where
    HF_BERT_DATA names no folder with `sts` or `squad_v2`.
    """
    data = Path(os.environ.get("HF_BERT_DATA", os.devnull))
    if kind == "dense":
        files = [file for year in (2014, 2012) for file in read_texts(data / f"sts/{year}")]
        found = list(dict.fromkeys(it for file in files for pair in file.pairs for it in pair))
        return [found[i % len(found)] for i in range(number)] if found else sentences(number)[0]
    questions = [
        it
        for file in sorted(data.glob("squad_v2/*.json"))
        for it in read_squad(file, check_places=False).questions
    ]
    running = dict.fromkeys(it.context for it in questions) or sentences(2000)[0]
    texts = passages(" ".join(running).split(), tokenizer, number)
    if kind != "cross-encoder":
        return texts
    asked = [it.text for it in questions if 4 <= len(it.text.split()) <= 12]
    asked = random.Random(0).sample(asked, min(len(asked), PARTS))
    asked = asked or [" ".join(text.split()[:8]) for text in texts[:PARTS]]
    return [(asked[index % len(asked)], text) for index, text in enumerate(texts)]


def read_texts(folder: Path) -> list[Any]:
    """The pairs of a year of STS, where they are there."""
    return read_sts(folder) if folder.is_dir() else []


def passages(words: list[str], tokenizer: Any, number: int) -> list[str]:
    """Passages as a search engine finds them, of `PASSAGE_TOKENS` tokens.

    A passage is the next words of a running text, as many as reach a length that is drawn
    uniformly. For a model with fewer positions lengths shrink.
    """
    vocabulary = list(dict.fromkeys(words))
    counted = tokenizer(vocabulary, add_special_tokens=False)["input_ids"]
    tokens = {word: len(ids) for word, ids in zip(vocabulary, counted, strict=True)}
    shrunk = min(1.0, tokenizer.model_max_length / 512)
    draw, place, found = random.Random(0), 0, []
    for _ in range(number):
        wanted, taken = round(shrunk * draw.randint(*PASSAGE_TOKENS)), []
        while wanted > 0:
            taken.append(words[place % len(words)])
            wanted -= tokens[taken[-1]]
            place += 1
        found.append(" ".join(taken))
    return found


# --- the race --------------------------------------------------------------------------------


@app.command()
def main(
    model: Annotated[str | None, typer.Argument(help="A folder; else random weights.")] = None,
    size: Annotated[str, typer.Option("--random", help="Their size.")] = "base",
    cases: Annotated[str, typer.Option(help=f"Some of {', '.join(KINDS)}.")] = ",".join(KINDS),
    peers: Annotated[str, typer.Option()] = "sentence-transformers,openvino",
    dtype: Annotated[str, typer.Option()] = "float32",
    threads: Annotated[int, typer.Option()] = 2,
    texts: Annotated[int, typer.Option("--sentences", help="0: the usual number.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Write the results as JSON.")] = None,
) -> None:
    """Race the optimized model against each peer: five rounds, a fifth of the texts each."""
    source, settings = Source(model, size), Settings(threads=threads)
    rows = []
    for name in cases.split(","):
        first = len(rows)
        with tempfile.TemporaryDirectory() as scratch:
            folder = make_folder(source, name, Path(scratch))
            given = (name, folder, texts or KINDS[name].texts, source, settings)

            def opened(
                who: str, precision: str, scratch: str = scratch, given: tuple[Any, ...] = given
            ) -> Contestant:
                make = functools.partial(TextModel, who, precision, *given)
                return Contestant(who, precision, make, threads, scratch)

            with opened("sentence-transformers", "float32") as stock:
                case = stock.ask("case", name)
                expected = stock.ask("result", case)
            for precision in dtype.split(","):
                with opened("optimized", precision) as ours:
                    for peer in peers.split(","):
                        both = BOTH if peer == "sentence-transformers" else {}
                        for theirs in both.get(precision, (precision,)):
                            try:
                                with opened(peer, theirs) as other:
                                    rows.append(raced(case, ours, other, expected))
                            except Unavailable as error:
                                print(f"{peer} ({theirs}): not available: {error}")
        title = f"{name} of {source.name}: {case.rows} texts, {case.tokens} tokens; "
        title += f"{cpu_name()}, {threads} threads"
        columns = ("ours", "peer", "ms", "speed-up", "error", "MiB")
        cells = [row.cells() for row in rows[first:]]
        print_table(console(), title, columns, cells, words=(0, 1))
    if output is not None:
        record = {"model": source.name, "environment": environment("cpu", threads), "rows": rows}
        write_json(output, record)


@dataclasses.dataclass
class TextRow(Row):
    """A row of `hf-bert benchmark`, with the memory of both."""

    ours_mib: float
    peer_mib: float

    def cells(self) -> tuple[str, ...]:
        """The row of the printed table."""
        return (
            f"{self.ours} {self.ours_dtype}",
            f"{self.peer} {self.peer_dtype}",
            f"{self.ours_ms:.1f} / {self.peer_ms:.1f}",
            spread([self.ratio, self.ratio_min, self.ratio_max]),
            f"{self.ours_error:.0e} / {self.peer_error:.0e}",
            f"{self.ours_mib:.0f} / {self.peer_mib:.0f}",
        )


def raced(case: Case, ours: Contestant, peer: Contestant, expected: Tensor) -> TextRow:
    """The result of one race. Times are sums over the parts."""
    pair = (ours, peer)
    errors = [float((one.ask("result", case) - expected).abs().max()) for one in pair]
    memory = [one.ask("memory", case) for one in pair]
    times = race(pair, PARTS, case, stopped)
    ratios = [b / a for a, b in zip(times[ours], times[peer], strict=True)]
    return TextRow(
        case.name,
        case.rows,
        case.tokens,
        case.padding,
        *(ours.name, ours.dtype, peer.name, peer.dtype),
        *(1000 * sum(times[one]) for one in pair),
        *(statistics.median(ratios), min(ratios), max(ratios), PARTS),
        *errors,
        *memory,
    )


if __name__ == "__main__":
    # Contestants unpickle the classes of this file by its name, which is not __main__ there.
    from benchmarks.text_models import app as by_name

    by_name()
