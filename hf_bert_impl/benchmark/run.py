"""A run: every case beside every peer, one peer at a time, each in a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from hf_bert_impl.benchmark import cases
from hf_bert_impl.benchmark.cases import (
    CASES,
    FROM_TEXT,
    LIBRARY,
    PARTS,
    TEXTS,
    UPDATE,
    Unavailable,
)
from hf_bert_impl.benchmark.contest import Contestant, neighbours, race, scratch_folder
from hf_bert_impl.benchmark.models import PEERS, UPSTREAM, Entry, Source, check_peer
from hf_bert_impl.benchmark.results import LinePoint, Missing, Results, Row, environment
from hf_bert_impl.benchmark.texts import origin
from hf_bert_impl.errors import InputError
from hf_bert_impl.measuring import timing
from hf_bert_impl.measuring.batches import Case, forward_flops, make_batch, training_flops
from hf_bert_impl.parity import reference_model

#: Most rounds of `line`. Its widest batches are slow upstream.
LINE_ROUNDS = 5
#: A quick run takes this many pairs from each source of `sts`.
QUICK_PAIRS = 20
#: The peer whose vectors are the reference of the cases that begin with text, and its precision.
TEXT_REFERENCE = ("sentence-transformers", "float32")
#: Stands for the batches of `line`, which race together.
LINE = Case("line", (), 0)
#: How a row calls ours where that is neither the unchanged call nor the prepared model.
OURS = {"train": "training step", UPDATE: UPDATE, "encode": "TextEncoder"} | dict.fromkeys(
    LIBRARY, "optimized"
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure."""

    cases: tuple[str, ...] = tuple(CASES)
    peers: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    rounds: int = 9
    threads: int = 1
    batch_sizes: tuple[int, ...] = ()
    """Rows of the forward and training cases; empty for the usual ones."""
    sentences: int | None = None
    """Texts of each case that begins with text; None for the usual numbers."""
    quick: bool = False
    """A quarter of the rows: to see that everything runs, not for figures."""


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
        #: Ours in the precision that is measured now: the unchanged call, then the prepared model.
        self.ours: list[Contestant] = []
        #: Cases for which upstream's eager attention has given the reference.
        self.plan: list[Case] = []
        #: Spearman of upstream's float32.
        self.spearman: float | None = None

    def run(self) -> Results:
        """Measure everything.

        Returns:
            The results; what could not run is in `missing`.

        Raises:
            ValueError: The model cannot be loaded, or transformers has none like it.
            OSError: There is no such model.
        """
        settings = self.settings
        self.say("loading the model")
        model = self.source.load()
        reference_model(model)
        self.config = model.config
        del model  # it is there to say what is wrong with it before anyone starts
        self.results = Results(
            environment(self.source.device, settings.threads),
            dataclasses.asdict(settings) | {"model": self.source.name},
        )
        with scratch_folder() as self.scratch, contextlib.ExitStack() as stack:
            if {*settings.cases} - {*FROM_TEXT}:
                try:
                    self.reference = stack.enter_context(
                        self._contestant("upstream-eager", "float32")
                    )
                except Unavailable as error:
                    raise InputError(
                        f"transformers' own model cannot run here ({error})",
                        "it to be the reference",
                        "free memory, or take a smaller model",
                    ) from error
                self.plan = [case for case in self._batches() if self._record(self.reference, case)]
                if "upstream-eager" not in settings.peers or "float32" not in settings.dtypes:
                    self.reference.close()
            for dtype in settings.dtypes:
                with contextlib.ExitStack() as ours:
                    self._precision(dtype, ours)
        self.results.fill_shares()
        return self.results

    @contextlib.contextmanager
    def _contestant(
        self, name: str, dtype: str, case: str = "short", called: str | None = None
    ) -> Iterator[Contestant]:
        """A contestant that has loaded what a case takes."""
        self.say(f"preparing {name} in {dtype}")
        settings = self.settings
        entry = Entry(
            name,
            dtype,
            self.source,
            settings.threads,
            self.scratch,
            settings.sentences,
            QUICK_PAIRS if settings.quick else None,
            0.0 if settings.quick else timing.TURN_SECONDS,
        )
        with Contestant(entry, called) as contestant:
            contestant.ask("open", name=case)
            yield contestant

    def _batches(self) -> Iterator[Case]:
        """The cases whose reference is upstream's eager attention."""
        for name in self.settings.cases:
            if name == "train" and "float32" not in self.settings.dtypes:
                self._miss("training", ",".join(self.settings.dtypes), "float32 only", name)
            elif name in cases.BATCHES:
                usual = CASES[name].rows
                usual = max(1, usual // 4) if self.settings.quick else usual
                for rows in self.settings.batch_sizes or (usual,):
                    yield cases.make_case(name, rows, self.config.max_position_embeddings)
            elif name == "sts":
                yield from self._texts(name, self.reference)

    def _ask(self, one: Contestant, do: str, case: str, **given: Any) -> Any:
        """What a contestant answers; None, and a line in `missing`, where it cannot."""
        try:
            return one.ask(do, **given)
        except Unavailable as error:
            who = {"sts": "everyone", **OURS}.get(case, one.entry.name)
            self._miss(who, one.entry.dtype, str(error), case)
            return None

    def _texts(self, name: str, counter: Contestant) -> list[Case]:
        """A case of texts, whose tokens a contestant counts; none where it cannot."""
        lengths = self._ask(counter, "lengths", name, name=name)
        return [Case(name, tuple(lengths), 0)] if lengths else []

    def _record(self, reference: Contestant, case: Case) -> bool:
        """Have a contestant keep what all others are compared with; whether it could."""
        self.say(f"{case.name}, {case.rows} rows, the reference")
        try:
            self.spearman = reference.ask("record", case) or self.spearman
        except Unavailable as error:
            self._miss("everyone", "float32", str(error), case.name)
            return False
        return True

    def _miss(self, peer: str, dtype: str, why: str, case: str = "all") -> None:
        same = (peer, why, case)
        if same not in {(known.peer, known.reason, known.case) for known in self.results.missing}:
            self.results.missing.append(Missing(peer, dtype, why, case))

    def _precision(self, dtype: str, stack: contextlib.ExitStack) -> None:
        """Ours in one precision, which stay; the peers come one after the other."""
        self.ours = []
        first = "short"
        if {*self.settings.cases} <= {*FROM_TEXT}:
            first = self.settings.cases[0]
        for name in ("unchanged", "prepared"):
            # Only a prepared model computes in int8, and ours that take text are all prepared.
            if name == "unchanged" and (dtype == "int8" or first in FROM_TEXT):
                continue
            try:
                self.ours.append(stack.enter_context(self._contestant(name, dtype, first)))
            except Unavailable as error:
                self._miss(name, dtype, str(error))
        if not self.ours:
            return
        self._products(dtype)
        # Training is in float32 alone.
        plan = [case for case in self.plan if dtype == "float32" or case.name != "train"]
        plan += self._from_text()
        if "line" in self.settings.cases:
            plan.append(LINE)
        for name in (peer for peer in PEERS if peer in self.settings.peers):
            for precision in PEERS[name].precisions.get(dtype, (dtype,)):
                wanted = [
                    case
                    for case in plan
                    if case.name in PEERS[name].cases and (case != LINE or precision == dtype)
                ]
                # A process for each model that takes text: it is all that the process holds.
                groups = [[case] for case in wanted if case.name in FROM_TEXT]
                groups.insert(0, [case for case in wanted if case.name not in FROM_TEXT])
                for group in filter(None, groups if self._alive() else []):
                    with self._peer(name, precision, group[0].name) as peer:
                        if peer is None:
                            continue
                        for case in group:
                            if case == LINE:
                                self._line(dtype, peer)
                                plan.remove(LINE)
                            else:
                                self._case(case, peer)
        if LINE in plan:
            self._line(dtype)
        self._products(dtype)
        for one in self._alive():
            if one.entry.name == "prepared":
                self.results.kernels[dtype] = self._ask(one, "kernels", "all")

    def _from_text(self) -> list[Case]:
        """The cases that begin with text, if they are asked for, by us and beside somebody."""
        best, found = self.ours[-1], []
        for name in FROM_TEXT if best.entry.name == "prepared" else ():
            if name in self.settings.cases and any(
                name in PEERS[rival].cases for rival in self.settings.peers
            ):
                self.results.settings.setdefault("texts_from", {})[name] = origin(name)
                found += self._texts(name, best)
        return found

    @contextlib.contextmanager
    def _peer(self, name: str, dtype: str, first: str) -> Iterator[Contestant | None]:
        """A peer while it races, who has loaded its first case; None where it cannot run."""
        with contextlib.ExitStack() as stack:
            peer: Contestant | None = None
            try:
                check_peer(name, dtype, self.source.device)
                if name == "unchanged":
                    peer = self.ours[0] if len(self.ours) > 1 else None
                elif (name, dtype) == ("upstream-eager", "float32"):
                    peer = self.reference
                    stack.callback(peer.close)  # nobody else needs it
                else:
                    it = self.ours[-1].entry.name if name == "self" else name
                    peer = stack.enter_context(self._contestant(it, dtype, first, name))
            except Unavailable as error:
                self._miss(name, dtype, str(error))
            yield peer

    def _drop(self, one: Contestant, error: Unavailable, case: str) -> None:
        """Say that a contestant could not run a case, or, where it has ended, any."""
        self._miss(one.name, one.entry.dtype, str(error), case if one.is_alive else "all")

    def _case(self, case: Case, peer: Contestant) -> None:
        """Race ours and a peer on one case."""
        self.say(f"{case.name}, {case.rows} rows, beside {peer.name} in {peer.entry.dtype}")
        if case.name == "train":
            sides = [one for one in self.ours if one.name == "unchanged"]
        else:
            both = peer.name in UPSTREAM and case.name not in TEXTS
            sides = self.ours if both else self.ours[-1:]
        racing = [one for one in (*sides, peer) if one.is_alive]
        if peer not in racing or len(racing) < 2:
            return
        if case.name in FROM_TEXT and (peer.name, peer.entry.dtype) == TEXT_REFERENCE:
            self._record(peer, case)
        for one in tuple(racing):
            try:
                one.check(case)
            except Unavailable as error:
                self._drop(one, error, case.name)
                racing.remove(one)
        if peer not in racing or len(racing) < 2:
            return
        timed = [case]
        if case.name == "train":
            timed.append(dataclasses.replace(case, name=UPDATE))
        rounds = PARTS if case.name in TEXTS else self.settings.rounds
        with neighbours(self.settings.threads if case.name == "busy" else 0):
            times = race(racing, timed, rounds, functools.partial(self._drop, case=case.name))
        for it, seconds in zip(timed, times, strict=True):
            theirs = seconds.pop(peer, None)
            if theirs is not None:
                for one, mine in seconds.items():
                    self.results.rows.append(self._row(case, it.name, (one, peer), (mine, theirs)))

    def _row(
        self,
        case: Case,
        what: str,
        pair: tuple[Contestant, Contestant],
        times: tuple[list[float], list[float]],
    ) -> Row:
        """Ours and a peer, whose seconds are a round each."""
        ratios = [theirs / ours for ours, theirs in zip(*times, strict=True)]
        # Each part of the texts is other work, so their times are added up.
        seconds = [sum(side) if case.name in TEXTS else statistics.median(side) for side in times]
        fields: dict[str, Any] = {"ours": OURS.get(what, pair[0].name), "peer": pair[1].name}
        notes: dict[str, float] = {}
        for side, one, taken in zip(("ours", "peer"), pair, seconds, strict=True):
            fields |= {f"{side}_dtype": one.entry.dtype, f"{side}_ms": 1000 * taken}
            if what == UPDATE:
                continue
            fields[f"{side}_gflops"] = self._flops(case) / taken / 1e9
            check = dict(one.check(case))
            notes |= {f"{side}_{key}": value for key, value in check.pop("notes", {}).items()}
            fields |= {f"{side}_{key}": value for key, value in check.items()}
            if self.spearman and "spearman" in check:
                fields[f"{side}_kept"] = check["spearman"] / self.spearman
        if "ours_loss" in notes:
            notes["gradient_error"] = notes["ours_gradient_error"]
            notes["memory_ratio"] = (fields["ours_mib"] or 0.0) / (fields["peer_mib"] or 1.0)
        return Row(
            case=case.name,
            rows=case.rows,
            tokens=case.tokens,
            padding=case.padding,
            ratio=statistics.median(ratios),
            ratio_min=min(ratios),
            ratio_max=max(ratios),
            rounds=len(ratios),
            notes=notes,
            **fields,
        )

    def _flops(self, case: Case) -> int:
        if case.name != "train":
            pools = case.name not in FROM_TEXT or case.name == "cross-encoder"
            return forward_flops(
                self.config,
                case.lengths,
                pooler=pools,
                scored=case.tokens * (case.name == "sparse"),
            )
        labels = cases.make_labels(make_batch(case, self.config.vocab_size))
        return training_flops(self.config, case.lengths, int((labels != cases.IGNORED).sum()))

    def _line(self, dtype: str, peer: Contestant | None = None) -> None:
        """The cost against tokens; all widths in turns, so that they are compared in a round."""
        rows = [n // 4 if self.settings.quick else n for n in cases.LINE_ROWS]
        for widths in cases.line_cases(self.config.max_position_embeddings, rows):
            sizes = ", ".join(str(case.width) for case in widths)
            self.say(f"line, {widths[0].rows} rows of {sizes}, {dtype}")
            times = race(
                [one for one in (*self.ours, peer) if one and one.is_alive],
                widths,
                min(LINE_ROUNDS, self.settings.rounds),
                functools.partial(self._drop, case="line"),
            )
            for case, by_contestant in zip(widths, times, strict=True):
                for one, seconds in by_contestant.items():
                    narrowest = times[0][one]
                    ratios = [wide / one_ for wide, one_ in zip(seconds, narrowest, strict=True)]
                    self.results.line.append(
                        LinePoint(
                            contestant=one.entry.name,
                            dtype=dtype,
                            tokens=case.tokens,
                            padded_tokens=case.rows * case.width,
                            widths=round(case.width / max(case.lengths)),
                            ms=1000 * statistics.median(seconds),
                            cost=statistics.median(ratios),
                        )
                    )

    def _alive(self) -> list[Contestant]:
        return [one for one in self.ours if one.is_alive]

    def _products(self, dtype: str) -> None:
        """The best products of this machine, in the process of one of ours."""
        self.say(f"matrix products, {dtype}")
        for one in self._alive()[:1]:
            self.results.add_products(dtype, self._ask(one, "products", "all") or {})
