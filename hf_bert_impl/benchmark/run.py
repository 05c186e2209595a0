"""A run: every case beside every peer, one peer at a time."""

from __future__ import annotations

import dataclasses
import functools
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hf_bert_impl.benchmark import cases, timing
from hf_bert_impl.benchmark.cases import CASES, ENCODE_SENTENCES, Case
from hf_bert_impl.benchmark.models import Source
from hf_bert_impl.benchmark.peers import (
    PRECISIONS,
    TRAINING_PEERS,
    UPSTREAM,
    Runner,
    SentenceRunner,
    build_peer,
    model_runner,
    our_runners,
    reason,
    sentence_encoder,
)
from hf_bert_impl.benchmark.results import LinePoint, Missing, Results, Row, environment
from hf_bert_impl.benchmark.training import training_rows

if TYPE_CHECKING:
    from torch import Tensor

#: Rounds of `line`, whose widest batches are slow upstream.
LINE_ROUNDS = 5
#: Parts of `encode`: they alternate, so that one pass over the sentences gives several ratios.
ENCODE_PARTS = 5
ENCODE_CHECKED = 256
Encoder = tuple[SentenceRunner, str]
FORWARD = ("short", "uniform", "long", "full", "sentence")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure."""

    cases: tuple[str, ...] = tuple(CASES)
    peers: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    rounds: int = 9
    threads: int = 1
    batch_sizes: tuple[int, ...] = ()
    """Rows of the forward and training cases; empty for those of `cases.ROWS`."""
    sentences: int = ENCODE_SENTENCES
    quick: bool = False
    """A quarter of the rows: to see that everything runs, not for figures."""

    def batches(self, name: str, positions: int) -> list[Case]:
        """A case at every batch size."""
        usual = cases.ROWS[name]
        sizes = self.batch_sizes or (max(1, usual // 4) if self.quick else usual,)
        return [cases.make_case(name, rows, positions) for rows in sizes]


class Benchmark:
    """One run.

    Args:
        source: The model.
        settings: What to measure.
        say: Told what is being measured now.
    """

    def __init__(
        self, source: Source, settings: Settings, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.source, self.settings, self.say = source, settings, say
        self.wait = timing.device_wait(source.device)
        self.errors: dict[tuple[str, str, str, Case], float] = {}
        self.memory: dict[tuple[str, str, str, Case], float | None] = {}

    def run(self) -> Results:
        """Measure everything.

        Returns:
            The results; what could not run is in `missing`.

        Raises:
            ValueError: transformers has no model like this one.
        """
        import torch

        from hf_bert_impl.evaluation import reference_model

        settings, source = self.settings, self.source
        before = torch.get_num_threads()
        torch.set_num_threads(settings.threads)
        try:
            self.say("loading the model")
            self.upstream = reference_model(source.base)
            # Each pair collects garbage first, which need not look through all of transformers.
            gc.collect()
            gc.freeze()
            self.results = Results(
                environment(source.device, settings.threads),
                dataclasses.asdict(settings) | {"model": source.name},
            )
            positions = source.base.config.max_position_embeddings
            self.batches = [
                case
                for name in FORWARD
                if name in settings.cases
                for case in settings.batches(name, positions)
            ]
            self.references = {case: self._reference(case) for case in self.batches}
            for dtype in settings.dtypes:
                self._products(dtype)
                self._precision(dtype)
                self._products(dtype)
            if "train" in settings.cases:
                self._train(positions)
            self.results.fill_shares()
        finally:
            gc.unfreeze()
            torch.set_num_threads(before)
        return self.results

    def _products(self, dtype: str) -> None:
        self.say(f"matrix products, {dtype}")
        config = self.source.base.config
        rates = timing.best_product(
            config.hidden_size, config.intermediate_size, dtype, self.source.device
        )
        self.results.add_products(dtype, rates)

    def _reference(self, case: Case) -> Tensor:
        """Upstream's float32 eager states at attended positions, (T, D)."""
        self.upstream.set_attn_implementation("eager")
        runner = model_runner("reference", self.upstream, "float32")
        batch = self._batch(case)
        states = runner.states(runner.call(batch))[batch["attention_mask"].bool().cpu()]
        self.upstream.set_attn_implementation("sdpa")
        return states

    def _batch(self, case: Case) -> dict[str, Tensor]:
        return cases.make_batch(case, self.source.base.config.vocab_size, self.source.device)

    def _precision(self, dtype: str) -> None:
        wanted = {*FORWARD, "line"} & {*self.settings.cases}
        if wanted:
            ours, reasons = our_runners(self.source.base, dtype)
            for name, why in reasons.items():
                self._miss(name, dtype, why)
            ours = [runner for runner in ours if self._works(runner)]
            if ours:
                self._forward(ours, dtype)
                if "line" in wanted:
                    self._line(ours, dtype)
        if "encode" in self.settings.cases:
            self._encode(dtype)

    def _works(self, runner: Runner) -> bool:
        """Measure error and memory of one of ours; one that fails is left out, not blamed on."""
        for case in self.batches:
            try:
                self._check("ours", runner, case)
            except Exception as error:
                self._miss(runner.name, runner.dtype, reason(error), case.name)
                return False
        return True

    def _miss(self, peer: str, dtype: str, why: str, case: str = "all") -> None:
        same = (peer, why, case)
        if same not in {(known.peer, known.reason, known.case) for known in self.results.missing}:
            self.results.missing.append(Missing(peer, dtype, why, case))

    def _check(self, side: str, runner: Runner, case: Case) -> None:
        """Note a runner's largest error and its memory on a case, once."""
        key = (side, runner.name, runner.dtype, case)
        if key in self.errors:
            return
        batch = self._batch(case)
        given = runner.convert(batch)
        states = runner.states(runner.call(given))[batch["attention_mask"].bool().cpu()]
        self.errors[key] = (states - self.references[case]).abs().max().item()
        if self.source.device == "cpu":
            self.memory[key] = timing.resident_peak(lambda: runner.call(given), runner.release)
        else:
            self.memory[key] = timing.cuda_peak(lambda: runner.call(given))

    def _peers(self, dtype: str) -> Iterator[tuple[str, Runner]]:
        """Each peer in turn, closed before the next one is made: it may keep threads and memory."""
        for name in self.settings.peers:
            if name in ("self", "sentence-transformers"):
                continue
            for precision in PRECISIONS[dtype] if name == "upstream-sdpa" else (dtype,):
                self.say(f"preparing {name} in {precision}")
                try:
                    runner = build_peer(name, self.upstream, precision, self.settings.threads)
                except Exception as error:
                    # Upstream has no int8 anywhere: that is not news.
                    if not (name in UPSTREAM and precision == "int8"):
                        self._miss(name, precision, reason(error))
                    continue
                try:
                    yield name, runner
                finally:
                    runner.close()

    def _forward(self, ours: list[Runner], dtype: str) -> None:
        best = ours[-1]
        for name, runner in self._peers(dtype):
            for case in self.batches:
                self.say(f"{case.name}, {case.rows} rows, beside {name} in {runner.dtype}")
                try:
                    self._check("peer", runner, case)
                    for mine in ours if name in UPSTREAM else [best]:
                        self._pair(mine, runner, case)
                except Exception as error:
                    self._miss(name, runner.dtype, reason(error), case.name)
        if "self" in self.settings.peers:
            for case in self.batches:
                self.say(f"{case.name}, {case.rows} rows, beside itself")
                self._pair(best, best, case, peer="self")

    def _pair(self, mine: Runner, theirs: Runner, case: Case, peer: str | None = None) -> None:
        batch = self._batch(case)
        own, other = mine.convert(batch), theirs.convert(batch)
        times = timing.paired(
            lambda: mine.call(own), lambda: theirs.call(other), self.settings.rounds, self.wait
        )
        config = self.source.base.config
        seconds = [statistics.median(side) for side in (times.first, times.second)]
        flops = cases.forward_flops(config, case.lengths)
        own_key = ("ours", mine.name, mine.dtype, case)
        other_key = own_key if peer else ("peer", theirs.name, theirs.dtype, case)
        self.results.rows.append(
            Row(
                case=case.name,
                rows=case.rows,
                tokens=case.tokens,
                padding=case.padding,
                ours=mine.name,
                ours_dtype=mine.dtype,
                peer=peer or theirs.name,
                peer_dtype=theirs.dtype,
                ours_ms=1000 * seconds[0],
                peer_ms=1000 * seconds[1],
                ratio=times.ratio,
                ratio_min=min(times.ratios),
                ratio_max=max(times.ratios),
                rounds=self.settings.rounds,
                ours_gflops=flops / seconds[0] / 1e9,
                peer_gflops=flops / seconds[1] / 1e9,
                ours_error=self.errors[own_key],
                peer_error=self.errors[other_key],
                ours_mib=self.memory[own_key],
                peer_mib=self.memory[other_key],
            )
        )

    def _line(self, ours: list[Runner], dtype: str) -> None:
        runners = list(ours)
        if "upstream-sdpa" in self.settings.peers and dtype != "int8":
            runners.append(build_peer("upstream-sdpa", self.upstream, dtype, self.settings.threads))
        rows: tuple[int, ...] = cases.LINE_ROWS
        if self.settings.quick:
            rows = tuple(number // 4 for number in rows)
        for widths in cases.line_cases(self.source.base.config.max_position_embeddings, rows):
            sizes = ", ".join(str(case.width) for case in widths)
            self.say(f"line, {widths[0].rows} rows of {sizes}, {dtype}")
            pairs = [(runner, case) for case in widths for runner in runners]
            # All widths in turns: what they cost is compared within a round.
            calls = [functools.partial(runner.call, self._batch(case)) for runner, case in pairs]
            times = timing.in_turns(calls, min(LINE_ROUNDS, self.settings.rounds), self.wait)
            for index, (runner, case) in enumerate(pairs):
                narrowest = times[index % len(runners)]
                ratios = [
                    wide / narrow for wide, narrow in zip(times[index], narrowest, strict=True)
                ]
                point = LinePoint(
                    contestant=runner.name,
                    dtype=dtype,
                    tokens=case.tokens,
                    padded_tokens=case.rows * case.width,
                    widths=round(case.width / max(case.lengths)),
                    ms=1000 * statistics.median(times[index]),
                    cost=statistics.median(ratios),
                )
                self.results.line.append(point)

    def _train(self, positions: int) -> None:
        if "float32" not in self.settings.dtypes:
            self._miss("training", ",".join(self.settings.dtypes), "float32 only", "train")
            return
        for case in self.settings.batches("train", positions):
            for peer in (name for name in self.settings.peers if name in TRAINING_PEERS):
                self.say(f"training step, {case.rows} rows, beside {peer}")
                try:
                    model = self.source.masked_lm()
                    self.results.rows += training_rows(model, peer, case, self.settings.rounds)
                except Exception as error:
                    self._miss(peer, "float32", reason(error), "train")

    def _encode(self, dtype: str) -> None:
        if "sentence-transformers" not in self.settings.peers:
            return
        with tempfile.TemporaryDirectory() as scratch:
            try:
                folder = self.source.sentence_folder(Path(scratch))
                ours = sentence_encoder("ours", folder, dtype, self.source.device)
            except Exception as error:
                self._miss("TextEncoder", dtype, reason(error), "encode")
                return
            for precision in PRECISIONS[dtype]:
                self.say(f"sentences beside sentence-transformers in {precision}")
                try:
                    theirs = sentence_encoder(
                        "sentence-transformers", folder, precision, self.source.device
                    )
                    self._encode_pair(folder, (ours, dtype), (theirs, precision))
                except Exception as error:
                    if precision != "int8":  # it has none
                        self._miss("sentence-transformers", precision, reason(error), "encode")

    def _encode_pair(self, folder: str, ours: Encoder, theirs: Encoder) -> None:
        """Ours and theirs on parts of the sentences, in turns."""
        texts, origin = cases.sentences(self.settings.sentences)
        self.results.settings["sentences_from"] = origin
        checked = texts[:ENCODE_CHECKED]
        reference = sentence_encoder("sentence-transformers", folder, "float32", self.source.device)
        expected = reference.encode(checked)
        gaps = [
            float(abs(encoder.encode(checked) - expected).max()) for encoder in (ours[0], theirs[0])
        ]
        parts = [texts[start::ENCODE_PARTS] for start in range(ENCODE_PARTS)]
        taken: list[list[float]] = [[], []]
        for number, part in enumerate(parts):
            order = ((0, ours[0]), (1, theirs[0]))
            for side, encoder in reversed(order) if number % 2 else order:
                begin = time.perf_counter()
                encoder.encode(part)
                taken[side].append(time.perf_counter() - begin)
        assert ours[0].token_counts is not None
        lengths = ours[0].token_counts(texts)
        times = timing.Paired(tuple(taken[0]), tuple(taken[1]))
        flops = cases.forward_flops(self.source.base.config, lengths, pooler=False)
        self.results.rows.append(
            Row(
                case="encode",
                rows=len(texts),
                tokens=sum(lengths),
                padding=0.0,
                ours="TextEncoder",
                ours_dtype=ours[1],
                peer="sentence-transformers",
                peer_dtype=theirs[1],
                ours_ms=1000 * sum(times.first),
                peer_ms=1000 * sum(times.second),
                ratio=times.ratio,
                ratio_min=min(times.ratios),
                ratio_max=max(times.ratios),
                rounds=ENCODE_PARTS,
                ours_gflops=flops / sum(times.first) / 1e9,
                peer_gflops=flops / sum(times.second) / 1e9,
                ours_error=gaps[0],
                peer_error=gaps[1],
            )
        )
