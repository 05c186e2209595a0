"""How fast: contestants in turns in one process, by the clock of the device.

A round runs each contestant once, the next round in the reverse order. A ratio is the median of the
rounds' ratios.
"""

from __future__ import annotations

import copy
import functools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.models import NO_DROPOUT, masked_words, packed, save_folder
from benchmarks.gpu.rows import Rows
from hf_bert_impl import BertConfig, BertForMaskedLM, BertModel
from hf_bert_impl.benchmark.cases import make_case, sentences
from hf_bert_impl.benchmark.peers import RANDOM
from hf_bert_impl.measuring.batches import Case, forward_flops, make_batch
from hf_bert_impl.measuring.timing import device_wait
from hf_bert_impl.parity import reference_model

Call = Callable[[], Any]
DTYPES = ("float32", "float16", "bfloat16")
#: Name to the case of `hf-bert benchmark` and its number of sequences.
CASES = {
    "32 sentences": ("short", 32),
    "512 sentences": ("short", 512),
    "32 documents": ("long", 32),
    "no padding": ("full", 32),
    "one sentence": ("sentence", 1),
}
#: Of a training step: its name, the dtype of the weights, autocast, and fields of the config.
WAYS: tuple[tuple[str, str, bool, dict[str, float]], ...] = (
    ("float32", "float32", False, {}),
    ("bfloat16 autocast", "float32", True, {}),
    ("bfloat16", "bfloat16", False, {}),
    ("bfloat16, no dropout", "bfloat16", False, NO_DROPOUT),
)
ROUNDS, TURN_SECONDS = 7, 0.02
#: Sides of the matrices that measure the card's rate.
PRODUCT = 8192


class Clock:
    """Seconds of a call on a device, and the memory that it takes."""

    def __init__(self, device: str) -> None:
        self.is_cuda, self.wait = device.startswith("cuda"), device_wait(device)

    def seconds(self, call: Call, repeats: int = 1) -> float:
        """The mean of some repeats."""
        if not self.is_cuda:
            begun = time.perf_counter()
            for _ in range(repeats):
                call()
            if self.wait is not None:
                self.wait()
            return (time.perf_counter() - begun) / repeats
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000 / repeats

    def mebibytes(self, call: Call) -> float | None:
        """How far the memory in use rises during a call; None without CUDA."""
        if not self.is_cuda:
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def race(
        self, rows: Rows, case: str, calls: Mapping[str, Call], tokens: int, best: float = 0
    ) -> None:
        """Adds a row for each call, with how many times the first one's time it takes.

        Args:
            rows: Where to.
            case: Their name.
            calls: By contestant, ours first. One that fails gets a row that says so.
            tokens: Real tokens of a call.
            best: Seconds of a call whose operations run at the device's best rate; 0 if unknown.
        """
        repeats = {}
        for name, call in calls.items():
            with rows.case(f"{case}: {name}"):
                call()
                call()
                repeats[name] = math.ceil(TURN_SECONDS / max(self.seconds(call), 1e-6))
        times: dict[str, list[float]] = {name: [] for name in repeats}
        for number in range(ROUNDS):
            for name in list(repeats)[:: -1 if number % 2 else 1]:
                times[name].append(self.seconds(calls[name], repeats[name]))
        for name, own in times.items():
            median = statistics.median(own)
            first = times.get(next(iter(calls)), own)
            ratios = [b / a for a, b in zip(first, own, strict=True)]
            rows.add(
                f"{case}: {name}",
                milliseconds=1000 * median,
                times_ours=statistics.median(ratios),
                spread=[min(ratios), max(ratios)],
                tokens_per_second=tokens / median,
                share_of_product=best / median if best else None,
                mebibytes=self.mebibytes(calls[name]),
            )


def _sizes(small: bool) -> dict[str, BertConfig]:
    names = ("tiny",) if small else ("minilm", "base")
    return {name: BertConfig(**RANDOM[name]) for name in names}


def _cases(config: BertConfig, small: bool) -> dict[str, Case]:
    return {
        name: make_case(kind, min(count, 8) if small else count, config.max_position_embeddings)
        for name, (kind, count) in CASES.items()
    }


def _rate(dtype: str, device: str, small: bool) -> float:
    """The device's rate for a matrix multiplication, in operations per second."""
    side = 128 if small else PRODUCT
    states, weight = torch.randn(2, side, side, dtype=getattr(torch, dtype), device=device)
    call = functools.partial(torch.nn.functional.linear, states, weight)
    clock = Clock(device)
    call()
    repeats = math.ceil(TURN_SECONDS / max(clock.seconds(call), 1e-6))
    return 2 * side**3 / statistics.median(clock.seconds(call, repeats) for _ in range(ROUNDS))


def machine(rows: Rows, device: str, small: bool) -> None:
    """Versions, the card, and the rates of its matrix multiplications."""
    from hf_bert_impl.benchmark.results import environment

    facts = environment(device, torch.get_num_threads())
    if device.startswith("cuda"):
        card = torch.cuda.get_device_properties(device)
        facts |= {"cuda": torch.version.cuda, "memory": card.total_memory}
        facts |= {"capability": f"{card.major}.{card.minor}", "units": card.multi_processor_count}
    rows.add("versions", **facts)
    for dtype in DTYPES:
        with rows.case(f"product {dtype}"):
            rows.add(f"product {dtype}", teraflops=_rate(dtype, device, small) / 1e12)


def races(rows: Rows, device: str, small: bool) -> None:
    """Batches of tokens against transformers, then texts against sentence-transformers."""
    clock = Clock(device)
    for size, config in _sizes(small).items():
        for dtype in DTYPES:
            with rows.case(f"{size} {dtype}"):
                _batches(rows, clock, f"{size} {dtype}", config, dtype, device, small)
    with rows.case("texts"):
        _texts(rows, clock, device, small)


def _batches(
    rows: Rows,
    clock: Clock,
    title: str,
    config: BertConfig,
    dtype: str,
    device: str,
    small: bool,
) -> None:
    """Every batch in one precision."""
    rate = _rate(dtype, device, small)
    model, stock = _pair(config, dtype, device)
    prepared = copy.deepcopy(model).prepare_for_inference()
    for name, case in _cases(config, small).items():
        batch = make_batch(case, config.vocab_size, device)
        row = packed(batch | {"token_type_ids": torch.zeros_like(batch["input_ids"])})
        calls = {
            "ours": _inference(model, batch),
            "ours, prepared": _inference(prepared, batch),
            "ours, packed input": _inference(model, row),
            "transformers sdpa": _inference(stock, batch),
        }
        best = forward_flops(config, case.lengths) / rate
        clock.race(rows, f"{title} {name}", calls, case.tokens, best)


def compiled(rows: Rows, device: str, small: bool) -> None:
    """Beside transformers' model compiled, which takes long the first time."""
    for size, config in _sizes(small).items():
        title = f"{size} bfloat16 32 sentences, compiled"
        with rows.case(title):
            model, stock = _pair(config, "bfloat16", device)
            case = _cases(config, small)["32 sentences"]
            batch = make_batch(case, config.vocab_size, device)
            fast = torch.compile(stock, backend="aot_eager" if small else "inductor")
            calls = {"ours": _inference(model, batch), "transformers": _inference(fast, batch)}
            Clock(device).race(rows, title, calls, case.tokens)


def _pair(config: BertConfig, dtype: str, device: str) -> tuple[Any, Any]:
    """Our model with random weights, and transformers' own with the same."""
    torch.manual_seed(0)
    model = BertModel(config).eval().to(device, getattr(torch, dtype))
    return model, reference_model(model)


def _inference(model: Any, batch: dict[str, Any]) -> Call:
    return torch.inference_mode()(functools.partial(model, **batch))


def _texts(rows: Rows, clock: Clock, device: str, small: bool) -> None:
    """`SentenceTransformer.encode` as it comes, with its own flattening, and optimized."""
    from sentence_transformers import SentenceTransformer

    from hf_bert_impl import optimize

    texts = sentences(64 if small else 2000)[0]
    with tempfile.TemporaryDirectory() as scratch:
        fields = {} if small else {"num_attention_heads": 12} | RANDOM["minilm"]
        folder = str(save_folder(Path(scratch, "model"), small, **fields))
        load = functools.partial(SentenceTransformer, folder, device=device)
        for dtype in ("float32", "bfloat16"):
            options = {"dtype": getattr(torch, dtype)}
            stock = load(model_kwargs=options)
            lengths = map(len, stock.tokenizer(texts)["input_ids"])
            models = {"ours": optimize(copy.deepcopy(stock), dtype), "as it comes": stock}
            with rows.case(f"encode {dtype}: its own flattening"):
                options = options | {"attn_implementation": "flash_attention_2"}
                models["its own flattening"] = load(model_kwargs=options)
            calls = {
                name: functools.partial(each.encode, texts, show_progress_bar=False)
                for name, each in models.items()
            }
            clock.race(rows, f"encode {dtype}", calls, sum(lengths))


def steps(rows: Rows, device: str, small: bool) -> None:
    """A step of masked-LM training: forward, backward and AdamW, against transformers."""
    for size, config in _sizes(small).items():
        for way, dtype, is_autocast, fields in WAYS:
            with rows.case(f"step {size} {way}"):
                own = BertConfig(**config.to_dict() | fields)
                case = _cases(own, small)["32 sentences"]
                batch = make_batch(case, own.vocab_size, device)
                batch["labels"] = masked_words(batch, own.vocab_size)
                torch.manual_seed(0)
                model = BertForMaskedLM(own).to(device, getattr(torch, dtype))
                pair = {"ours": model, "transformers sdpa": reference_model(model)}
                calls = {
                    name: _step(each.train(), batch, is_autocast) for name, each in pair.items()
                }
                scored = int((batch["labels"] >= 0).sum())
                rate = _rate("bfloat16" if is_autocast else dtype, device, small)
                # The backward pass takes twice the operations of the forward pass.
                best = 3 * forward_flops(own, case.lengths, pooler=False, scored=scored) / rate
                Clock(device).race(rows, f"step {size} {way}", calls, case.tokens, best)


def _step(model: Any, batch: dict[str, Any], is_autocast: bool) -> Call:
    device = model.device.type
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device == "cuda")

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=is_autocast):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
