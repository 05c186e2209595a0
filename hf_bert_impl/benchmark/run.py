"""A benchmark run: every case with every peer, one peer at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from hf_bert_impl.benchmark.cases import BATCHES, CASES, PARTS, Unavailable, sentences
from hf_bert_impl.benchmark.contest import Contestant, race
from hf_bert_impl.benchmark.contestants import States, Texts
from hf_bert_impl.benchmark.peers import (
    PEERS,
    PRECISIONS,
    TEXT_PEER,
    UPSTREAM,
    Settings,
    Source,
    check_peer,
)
from hf_bert_impl.benchmark.results import Missing, Results, Row, environment
from hf_bert_impl.measuring.batches import Case
from hf_bert_impl.model.modeling_bert import BertPreTrainedModel
from hf_bert_impl.parity import reference_model

QUICK_ROUNDS = 3


class Benchmark:
    """One run.

    Args:
        source: The model.
        settings: The options.
        say: Called with the current work.
    """

    def __init__(
        self, source: Source, settings: Settings, say: Callable[[str], None] = lambda text: None
    ) -> None:
        settings = dataclasses.replace(settings, threads=settings.threads or _cores())
        self.source, self.settings, self.say = source, settings, say

    def run(self) -> Results:
        """Measures everything; contestants that cannot run are in `missing`.

        Raises:
            ValueError: The model cannot be loaded, or transformers has no equivalent.
            OSError: The model is missing.
        """
        self.say("loading the model")
        model = self.source.load()
        if isinstance(model, BertPreTrainedModel):
            reference_model(model)  # raises an error if transformers has none like it
        self.results = Results(
            title=f"the speed of {self.source.name}",
            environment=environment(self.source.device, self.settings.threads or 1),
            settings=dataclasses.asdict(self.settings) | {"model": self.source.name},
        )
        cases = self.settings.chosen("cases", CASES)
        peers = self.settings.chosen("peers", PEERS)
        with tempfile.TemporaryDirectory(prefix="hf-bert-benchmark-") as self.scratch:
            if batches := [name for name in BATCHES if name in cases]:
                others = [name for name in PEERS if name in peers and name != TEXT_PEER]
                self._group(batches, ("unchanged", "prepared"), others, "upstream-eager")
            if "encode" in cases and TEXT_PEER in peers:
                self.results.settings["texts_from"] = sentences(1)[1]
                self._group(["encode"], ("TextEncoder",), [TEXT_PEER], TEXT_PEER)
        return self.results

    def _group(
        self, names: list[str], ours: tuple[str, ...], peers: list[str], reference: str
    ) -> None:
        """Runs the cases of the same contestants.

        Args:
            names: The cases.
            ours: This package's contestants, the fastest last.
            peers: Compared one after the other.
            reference: The peer with the right results, in float32.
        """
        with self._contestant(reference, "float32", ",".join(names)) as one:
            if one is None:
                return
            expected = {}
            for name in names:
                case = one.ask("case", name)
                expected[case] = one.ask("result", case)
        for dtype in self.settings.chosen("dtype", PRECISIONS):
            with contextlib.ExitStack() as stack:
                able = [name for name in ours if name != "unchanged" or dtype != "int8"]
                stay = [stack.enter_context(self._contestant(name, dtype)) for name in able]
                alive = [one for one in stay if one is not None]
                for name in peers if alive else ():
                    sides = alive if name in UPSTREAM else alive[-1:]
                    for precision in PEERS[name].precisions_for(dtype):
                        with self._contestant(name, precision) as peer:
                            for case in expected if peer is not None else ():
                                self._race(case, sides, peer, expected[case])
                if alive and alive[-1].is_alive:
                    self.results.kernels[dtype] = alive[-1].ask("kernels")

    @contextlib.contextmanager
    def _contestant(self, name: str, dtype: str, case: str = "all") -> Iterator[Contestant | None]:
        """A contestant; None, and an entry in `missing`, if it cannot run."""
        self.say(f"preparing {name} in {dtype}")
        kind = Texts if name in ("TextEncoder", TEXT_PEER) else States
        make = functools.partial(kind, name, dtype, self.source, self.settings)
        try:
            if name in PEERS:
                check_peer(name, dtype, self.source.device)
            one = Contestant(name, dtype, make, self.settings.threads or 1, self.scratch)
        except Unavailable as error:
            self._miss(name, dtype, error, case)
            yield None
            return
        with one:
            yield one

    def _miss(self, peer: str, dtype: str, why: Unavailable, case: str) -> None:
        missing = Missing(peer, dtype, str(why), case)
        if missing not in self.results.missing:
            self.results.missing.append(missing)

    def _race(self, case: Case, ours: list[Contestant], peer: Any, expected: Any) -> None:
        """Races some of ours with a peer on a case."""
        self.say(f"{case.name}, {case.rows} rows, with {peer.name} in {peer.dtype}")
        errors: dict[Contestant, float] = {}

        def lost(one: Contestant, error: Unavailable) -> None:
            self._miss(one.name, one.dtype, error, case.name if one.is_alive else "all")

        for one in (*ours, peer):
            try:
                errors[one] = float((one.ask("result", case) - expected).abs().max())
            except Unavailable as error:
                lost(one, error)
        if peer not in errors:
            return
        rounds = self.settings.rounds
        rounds = min(rounds, QUICK_ROUNDS) if self.settings.quick else rounds
        times = race([*errors], rounds if case.width else PARTS, case, lost)
        theirs = times.pop(peer, [])
        for one, mine in times.items() if theirs else ():
            ratios = [their / my for my, their in zip(mine, theirs, strict=True)]
            # The parts of the texts differ, so their times are added.
            total = statistics.median if case.width else sum
            self.results.rows.append(
                Row(
                    case=case.name,
                    rows=case.rows,
                    tokens=case.tokens,
                    padding=case.padding,
                    ours=one.name,
                    ours_dtype=one.dtype,
                    peer=peer.name,
                    peer_dtype=peer.dtype,
                    ours_ms=1000 * total(mine),
                    peer_ms=1000 * total(theirs),
                    ratio=statistics.median(ratios),
                    ratio_min=min(ratios),
                    ratio_max=max(ratios),
                    rounds=len(ratios),
                    ours_error=errors[one],
                    peer_error=errors[peer],
                )
            )


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows
        return os.cpu_count() or 1
