"""Models of sentence-transformers: unchanged, optimized, with OpenVINO, and in llama.cpp.

    python -m benchmarks.text_models FOLDER --cases dense --dtype float32,bfloat16,int8
    python -m benchmarks.text_models --random minilm --cases cross-encoder,sparse,multi-vector
    python -m benchmarks.text_models FOLDER --cases mixed,single --peers llama.cpp --gguf FILE

Every contestant makes the same call on the same texts, in turns, each in its own process.
`TextEncoder` takes part in the cases of a `SentenceTransformer`.
OpenVINO takes the place of the transformers model inside the library's, as its own backend does;
the backend's packages need an older transformers than 5.23. Its int8 is NNCF's static quantisation.
llama.cpp runs through `llama-cpp-python`, from a GGUF file with weights in Q8_0.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import gc
import importlib
import importlib.util
import itertools
import json
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
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
from hf_bert_impl.benchmark.peers import Settings, Source
from hf_bert_impl.benchmark.results import environment
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
from hf_bert_impl.tasks.sts import evaluate_sts, read_sts

#: How many texts are compared: a vector of SPLADE has 30,522 numbers, one of ColBERT 128 a token.
CHECKED = 64
#: Tokens of a passage, minimum and maximum.
PASSAGE_TOKENS = (30, 300)
#: Words of a text of the case `mixed`, minimum and maximum.
MIXED_WORDS = (6, 120)
#: Tokens of a batch of llama.cpp. It attends over its whole batch, so larger ones are slower. Texts
#: are cut there.
LLAMA_TOKENS = 256
#: Every ratio compares with it in float32.
BASELINE = "sentence-transformers"
#: By peer, its precisions. llama.cpp's int8 is Q8_0.
PEERS = {
    BASELINE: ("float32", "bfloat16"),
    "openvino": ("float32", "bfloat16", "int8"),
    "llama.cpp": ("int8",),
    "TextEncoder": ("float32", "bfloat16", "int8"),
}
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
    rounds_share: bool = True
    """Whether each round takes a fifth of the texts, and not all of them."""
    one_by_one: bool = False
    """Whether each text is a call of its own; times are then per text."""


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
#: Further cases of `dense`: texts of mixed lengths in one call, and sentences one at a time.
CASES = KINDS | {
    "mixed": dataclasses.replace(KINDS["dense"], texts=128, rounds_share=False),
    "single": dataclasses.replace(KINDS["dense"], texts=64, rounds_share=False, one_by_one=True),
}


class TextModel(Timed):
    """A model that takes texts.

    Args:
        name: `optimized` or one of `PEERS`.
        dtype: Its precision.
        folder: The model as a folder of a kind.
        inputs: By case of this kind, the texts or pairs.
        gguf: The model as a file for llama.cpp.
        source: The model.
        settings: Threads.

    Raises:
        Unavailable: llama.cpp or its file is missing, or the contestant is of another kind.
    """

    def __init__(
        self,
        name: str,
        dtype: str,
        folder: str,
        inputs: dict[str, list[Any]],
        gguf: Path | None,
        source: Source,
        settings: Settings,
    ) -> None:
        super().__init__(source, settings)
        self.kind, self.inputs = CASES[next(iter(inputs))], inputs
        if name in ("TextEncoder", "llama.cpp") and self.kind.cls != KINDS["dense"].cls:
            raise Unavailable(f"it takes no {self.kind.cls}. Use --cases dense,mixed,single")
        self.whole = load(self.kind, folder, dtype if name == BASELINE else None)
        if name == "TextEncoder":
            self.whole = hf_bert_impl.TextEncoder(folder, dtype=dtype)
        elif name == "optimized":
            self.whole = hf_bert_impl.optimize(self.whole, dtype=dtype)
        elif name == "llama.cpp":
            self.whole = LlamaCpp(gguf, settings.threads or 1)
        elif name == "openvino":
            samples = [*map(self._tokens, self._further(inputs))] if dtype == "int8" else None
            inside = self.whole[0]
            inside.model = OpenVino(inside.model, settings.threads or 1, dtype, samples)

    def _further(self, inputs: dict[str, list[Any]]) -> list[Any]:
        """Texts to calibrate on, which no case times."""
        name, timed = max(inputs.items(), key=lambda item: len(item[1]))
        number = CALIBRATION_TEXTS // (1 if self.kind.cls == KINDS["dense"].cls else 3)
        return make_inputs(name, self.whole.tokenizer, len(timed) + number)[len(timed) :]

    def case(self, name: str) -> Case:
        """The tokens of each text, or of each pair, as the model cuts them."""
        lengths = (self._tokens(given)["input_ids"].shape[1] for given in self.inputs[name])
        return Case(name, tuple(lengths), 0, CASES[name].one_by_one)

    def turn(self, case: Case, number: int) -> float:
        """See `Timed`; the seconds per text if each is a call of its own."""
        return super().turn(case, number) / (case.rows if case.one_by_one else 1)

    def call(self, case: Case, number: int) -> Callable[[], Any]:
        """The texts of a round."""
        share = slice(number % PARTS, None, PARTS) if CASES[case.name].rounds_share else slice(None)
        return functools.partial(self._run, self.inputs[case.name][share], case.one_by_one)

    def result(self, case: Case) -> Tensor:
        """The output for the first texts: vectors, scores, or the vectors of all tokens."""
        found = self._run(self.inputs[case.name][:CHECKED])
        if isinstance(found, list):
            found = torch.cat(found)
        return (found.to_dense() if found.is_sparse else found).float()

    def spearman(self, folder: Path) -> float:
        """The correlation with the human scores of an STS folder, times 100."""
        score, _ = evaluate_sts(self._encode, read_sts(folder))
        return score.spearman

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

    def _run(self, texts: list[Any], one_by_one: bool = False) -> Any:
        if one_by_one:
            return torch.stack([self._encode(text) for text in texts])
        return self._encode(texts)

    def _encode(self, texts: Any) -> Any:
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


class LlamaCpp:
    """llama.cpp where a `SentenceTransformer` is called: mean pooling, vectors of length 1.

    Args:
        gguf: The model, from llama.cpp's `convert_hf_to_gguf.py --outtype q8_0`.
        threads: How many it computes with.

    Raises:
        Unavailable: The library is missing, or there is no file.
    """

    def __init__(self, gguf: Path | None, threads: int) -> None:
        if importlib.util.find_spec("llama_cpp") is None:
            raise Unavailable("llama_cpp is not installed. Run pip install llama-cpp-python")
        if gguf is None or not gguf.is_file():
            raise Unavailable("it needs the model as a file. Name it with --gguf FILE")
        import llama_cpp

        self.model = llama_cpp.Llama(
            str(gguf),
            embedding=True,
            pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN,
            **dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), LLAMA_TOKENS),
            **dict.fromkeys(("n_threads", "n_threads_batch"), threads),
            verbose=False,
        )

    def encode(self, texts: Any, **options: Any) -> Tensor:
        """(texts, D) vectors, or (D,) of one text; `options` are those of the library's method."""
        return torch.tensor(self.model.embed(texts, normalize=True))


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
    kind, path = CASES[name], source.path
    named = Path(path or "") / "config_sentence_transformers.json"
    saved_as = json.loads(named.read_text(encoding="utf-8")) if named.is_file() else {}
    if path and (kind.cls == KINDS["dense"].cls or saved_as.get("model_type") == kind.cls):
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


def make_inputs(case: str, tokenizer: Any, number: int) -> list[Any]:
    """The texts of a case: sentences of STS 2014 and 2012, or running text cut into pieces.

    A cross-encoder gets pairs as a re-ranker gets them: each part of the passages belongs to one
    short question. Texts are repeated from the first where there are too few, and made up where
    HF_BERT_DATA names no folder with `sts` or `squad_v2`.
    """
    data = Path(os.environ.get("HF_BERT_DATA", os.devnull))
    if case in ("dense", "single"):
        files = [file for year in (2014, 2012) for file in read_texts(data / f"sts/{year}")]
        found = list(dict.fromkeys(it for file in files for pair in file.pairs for it in pair))
        return [found[i % len(found)] for i in range(number)] if found else sentences(number)[0]
    questions = [
        it
        for file in sorted(data.glob("squad_v2/*.json"))
        for it in read_squad(file, check_places=False).questions
    ]
    running = dict.fromkeys(it.context for it in questions) or sentences(2000)[0]
    words = " ".join(running).split()
    if case == "mixed":
        return pieces(words, dict.fromkeys(words, 1), number, MIXED_WORDS)
    vocabulary = list(dict.fromkeys(words))
    ids = tokenizer(vocabulary, add_special_tokens=False)["input_ids"]
    tokens = dict(zip(vocabulary, map(len, ids), strict=True))
    shrunk = min(1.0, tokenizer.model_max_length / 512)
    texts = pieces(words, tokens, number, PASSAGE_TOKENS, shrunk)
    if case != "cross-encoder":
        return texts
    asked = [it.text for it in questions if 4 <= len(it.text.split()) <= 12]
    asked = random.Random(0).sample(asked, min(len(asked), PARTS))
    asked = asked or [" ".join(text.split()[:8]) for text in texts[:PARTS]]
    return [(asked[index % len(asked)], text) for index, text in enumerate(texts)]


def read_texts(folder: Path) -> list[Any]:
    """The pairs of a year of STS, where they are there."""
    return read_sts(folder) if folder.is_dir() else []


def pieces(
    words: list[str],
    sizes: Mapping[str, int],
    number: int,
    between: tuple[int, int],
    shrunk: float = 1.0,
) -> list[str]:
    """Consecutive words of a running text, as many as reach a size that is drawn uniformly.

    Args:
        words: The running text, repeated where it is too short.
        sizes: The size of each word, 1 or its tokens.
        number: Number of pieces.
        between: Minimum and maximum size.
        shrunk: Factor of all sizes, for a model with fewer positions than BERT's.
    """
    draw, place, found = random.Random(0), 0, []
    for _ in range(number):
        wanted, taken = round(shrunk * draw.randint(*between)), []
        while wanted > 0:
            taken.append(words[place % len(words)])
            wanted -= sizes[taken[-1]]
            place += 1
        found.append(" ".join(taken))
    return found


# --- the race --------------------------------------------------------------------------------


@app.command()
def main(
    model: Annotated[str | None, typer.Argument(help="A folder; else random weights.")] = None,
    size: Annotated[str, typer.Option("--random", help="Their size.")] = "base",
    cases: Annotated[str, typer.Option(help=f"Some of {', '.join(CASES)}.")] = ",".join(KINDS),
    peers: Annotated[str, typer.Option(help=f"Some of {', '.join(PEERS)}.")] = "openvino",
    dtype: Annotated[str, typer.Option()] = "float32",
    threads: Annotated[int, typer.Option()] = 2,
    texts: Annotated[int, typer.Option("--sentences", help="0: the usual number.")] = 0,
    gguf: Annotated[Path | None, typer.Option(help="The model for llama.cpp, in Q8_0.")] = None,
    sts: Annotated[Path | None, typer.Option(help="Score dense vectors on this folder.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the results as JSON.")] = None,
) -> None:
    """Race all contestants in five rounds, in the precisions that each of them has."""
    source, settings, precisions = Source(model, size), Settings(threads=threads), dtype.split(",")
    entries = [(peer, each) for peer in peers.split(",") for each in PEERS[peer]]
    entries = [entry for entry in entries if entry[1] in precisions]
    entries = [(BASELINE, "float32"), *(("optimized", each) for each in precisions), *entries]
    columns = ("contestant", "ms", "speed-up", "error", "MiB", "Spearman")
    rows = []
    for _, group in itertools.groupby(cases.split(","), key=lambda name: CASES[name].cls):
        names = [*group]
        with contextlib.ExitStack() as stack:
            scratch = stack.enter_context(tempfile.TemporaryDirectory())
            folder = make_folder(source, names[0], Path(scratch))
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            inputs = {
                name: make_inputs(name, tokenizer, texts or CASES[name].texts) for name in names
            }
            given = (folder, inputs, gguf, source, settings)
            contestants = []
            for who, precision in dict.fromkeys(entries):
                make = functools.partial(TextModel, who, precision, *given)
                try:
                    one = Contestant(who, precision, make, threads, scratch)
                except Unavailable as error:
                    if not contestants:  # nothing can be compared without the baseline
                        raise
                    print(f"{who} ({precision}): not available: {error}")
                    continue
                contestants.append(stack.enter_context(one))
            for raced in race_all(names, contestants, sts):
                case = raced[0]
                title = f"{case.case} of {source.name}: {case.texts} texts, {case.tokens} tokens; "
                title += f"{cpu_name()}, {threads} threads"
                cells = [row.cells() for row in raced]
                print_table(console(), title, columns, cells, words=(0,))
                rows += raced
    if output is not None:
        record = {"model": source.name, "environment": environment("cpu", threads), "rows": rows}
        write_json(output, record)


@dataclasses.dataclass
class TextRow:
    """A contestant on one case.

    Milliseconds are the median over rounds, or the sum if rounds share the texts. Ratios compare
    with `BASELINE` in float32, and the error is the largest difference from it.
    """

    case: str
    texts: int
    tokens: int
    contestant: str
    dtype: str
    ms: float
    ratio: float
    ratio_min: float
    ratio_max: float
    error: float
    mib: float
    spearman: float | None
    """Of cosines with human scores, times 100; None if it was not asked for."""

    def cells(self) -> tuple[str, ...]:
        """The row of the printed table."""
        return (
            f"{self.contestant} {self.dtype}",
            f"{self.ms:.1f}",
            spread([self.ratio, self.ratio_min, self.ratio_max]),
            f"{self.error:.0e}",
            f"{self.mib:.0f}",
            "" if self.spearman is None else f"{self.spearman:.2f}",
        )


def race_all(
    names: list[str], contestants: list[Contestant], sts: Path | None
) -> Iterator[list[TextRow]]:
    """The rows of each case. The first contestant is the baseline."""
    cases = [contestants[0].ask("case", name) for name in names]
    outputs = [[one.ask("result", case) for one in contestants] for case in cases]
    memory = [[one.ask("memory", case) for one in contestants] for case in cases]
    is_scored = sts is not None and CASES[names[0]].cls == KINDS["dense"].cls
    scores = [one.ask("spearman", sts) if is_scored else None for one in contestants]
    print(f"{', '.join(names)}: {len(contestants)} contestants are ready", flush=True)
    for case, found, mib in zip(cases, outputs, memory, strict=True):
        times = race(contestants, PARTS, case, stopped)
        whole = sum if CASES[case.name].rounds_share else statistics.median
        rows = []
        for index, one in enumerate(contestants):
            ratios = [a / b for a, b in zip(times[contestants[0]], times[one], strict=True)]
            error = float((found[index] - found[0]).abs().max())
            milliseconds = 1000 * whole(times[one])
            rows.append(
                TextRow(
                    case=case.name,
                    texts=case.rows,
                    tokens=case.tokens,
                    contestant=one.name,
                    dtype=one.dtype,
                    ms=milliseconds,
                    ratio=statistics.median(ratios),
                    ratio_min=min(ratios),
                    ratio_max=max(ratios),
                    error=error,
                    mib=mib[index],
                    spearman=scores[index],
                )
            )
        yield rows


if __name__ == "__main__":
    # Contestants unpickle the classes of this file by its name, which is not __main__ there.
    from benchmarks.text_models import app as by_name

    by_name()
