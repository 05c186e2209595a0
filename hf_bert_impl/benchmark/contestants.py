"""What runs in a contestant's process: hidden states of batches and texts, vectors of sentences."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hf_bert_impl.benchmark import cases, timing
from hf_bert_impl.benchmark.cases import PARTS, TEXT_ROWS, Case, Unavailable
from hf_bert_impl.benchmark.peers import Check, Entry, build_runner, prepared_kernels

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from hf_bert_impl.benchmark.peers import Batch

#: Texts that vectors and states are compared on; more say nothing new.
CHECKED = 256
#: Texts that a static quantisation looks at, one a batch.
CALIBRATION_TEXTS = 300


def kind(case: str) -> type:
    """The class that runs a case."""
    if case == "train":
        from hf_bert_impl.benchmark.training import Trainer

        return Trainer
    return Sentences if case == "encode" else States


class States:
    """The hidden states of padded batches, by one of ours, transformers' own or a runtime.

    Args:
        entry: Who it is.

    Raises:
        Unavailable: It cannot run here.
    """

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.runner = build_runner(entry)
        self._inputs: dict[Case, list[Any]] = {}

    @property
    def kernels(self) -> str | None:
        """What computes a prepared model, in one line."""
        return self.runner.kernels()

    def lengths(self) -> list[int]:
        """Tokens of each text of `sts`."""
        return [
            int(length)
            for batch in text_batches(self.entry, self._texts())
            for length in batch["attention_mask"].sum(dim=1)
        ]

    def call(self, case: Case, what: str, number: int) -> Callable[[], Any]:
        """What a turn times; of texts the part whose turn it is."""
        if case not in self._inputs:
            self._inputs[case] = [self.runner.convert(batch) for batch in self._batches(case)]
        given = self._inputs[case]
        if case.name != "sts":
            return functools.partial(self.runner.call, given[0])
        part = given[number % PARTS :: PARTS]

        def call() -> None:
            for batch in part:
                self.runner.call(batch)

        return call

    def result(self, case: Case) -> dict[str, Tensor]:
        """(T, D) states at attended positions, and for `sts` the Spearman correlation."""
        import torch

        compared = self._batches(case)[: CHECKED // TEXT_ROWS]
        found = {"states": torch.cat([self._states(batch) for batch in compared])}
        if case.name == "sts":
            found["spearman"] = torch.tensor(self._spearman(), dtype=torch.float64)
        return found

    def check(self, case: Case, reference: dict[str, Tensor] | None) -> Check:
        """Errors beside the reference's states; memory of a batch, Spearman of `sts`."""
        found = self.result(case)
        check = Check(*errors(found, reference))
        if case.name == "sts":
            return dataclasses.replace(check, spearman=float(found["spearman"]))
        call = self.call(case, "", 0)
        if self.entry.source.device == "cpu":
            return dataclasses.replace(check, mib=timing.resident_peak(call, self.runner.release))
        return dataclasses.replace(check, mib=timing.cuda_peak(call))

    def _states(self, batch: Batch) -> Tensor:
        runner = self.runner
        states = runner.states(runner.call(runner.convert(batch)))
        return states[batch["attention_mask"].bool().cpu()]  # (T, D)

    def _batches(self, case: Case) -> list[Batch]:
        if case.name == "sts":
            return text_batches(self.entry, self._texts())
        config = self.entry.source.config()
        return [cases.make_batch(case, config.vocab_size, self.entry.source.device)]

    def _texts(self) -> list[str]:
        if self.entry.source.path is None:
            raise Unavailable("random weights rank nothing; name a checkpoint")
        return cases.sts_texts(cases.sts(2014, self.entry.pairs))

    def _spearman(self) -> float:
        """Of the cosines of mean vectors, times 100."""
        import torch

        from hf_bert_impl.tasks.sts import evaluate_sts

        def encode(texts: list[str]) -> np.ndarray[Any, Any]:
            vectors = []
            for batch in text_batches(self.entry, texts):
                lengths = batch["attention_mask"].sum(dim=1).tolist()
                vectors += [rows.mean(dim=0) for rows in self._states(batch).split(lengths)]
            found: np.ndarray[Any, Any] = torch.stack(vectors).numpy()  # (texts, D)
            return found

        return evaluate_sts(encode, cases.sts(2014, self.entry.pairs))[0].spearman


class Sentences:
    """Texts to vectors of length 1, tokenising included: ours or sentence-transformers'.

    Args:
        entry: Who it is: `prepared` is `TextEncoder`.
    """

    def __init__(self, entry: Entry) -> None:
        import torch

        self.texts = cases.sentences(entry.sentences)[0]
        folder, device = entry.source.sentence_folder(entry.scratch), entry.source.device
        if entry.name == "prepared":
            import hf_bert_impl

            ours: Any = hf_bert_impl.TextEncoder.from_pretrained(
                folder, dtype=entry.dtype, device=device
            )
            self._ours = ours
            self.encode = functools.partial(
                ours.encode, normalize_embeddings=True, convert_to_tensor=True
            )
            return
        from sentence_transformers import SentenceTransformer

        theirs = SentenceTransformer(
            folder,
            device=device,
            trust_remote_code=False,
            model_kwargs={"dtype": getattr(torch, entry.dtype)},
        )
        self.encode = functools.partial(
            theirs.encode,
            normalize_embeddings=True,
            convert_to_tensor=True,
            show_progress_bar=False,
        )

    @property
    def kernels(self) -> str | None:
        """What computes the prepared model of `TextEncoder`, in one line."""
        return prepared_kernels(self._ours.model)

    def lengths(self) -> list[int]:
        """Tokens of each text, as `TextEncoder` cuts them."""
        ours = self._ours
        encoded = ours.tokenizer(self.texts, truncation=True, max_length=ours.max_length)
        return [len(ids) for ids in encoded["input_ids"]]

    def call(self, case: Case, what: str, number: int) -> Callable[[], Any]:
        """What a turn times: the part of the texts whose turn it is."""
        return functools.partial(self.encode, self.texts[number % PARTS :: PARTS])

    def result(self, case: Case) -> dict[str, Tensor]:
        """(256, D) vectors of the first texts."""
        return {"vectors": self.encode(self.texts[:CHECKED]).float().cpu()}

    def check(self, case: Case, reference: dict[str, Tensor] | None) -> Check:
        """Errors beside the reference's vectors."""
        return Check(*errors(self.result(case), reference, "vectors"))


def errors(
    found: dict[str, Tensor], reference: dict[str, Tensor] | None, name: str = "states"
) -> tuple[float | None, float | None]:
    """The largest difference and the root of the mean squared one; None without a reference."""
    if reference is None:
        return None, None
    gaps = (found[name] - reference[name]).double()
    return gaps.abs().max().item(), gaps.square().mean().sqrt().item()


def text_batches(entry: Entry, texts: list[str], rows: int = TEXT_ROWS) -> list[Batch]:
    """Texts as they come, in padded batches: `input_ids` and `attention_mask`, (rows, S) each.

    Raises:
        Unavailable: The model has no tokenizer.
    """
    from transformers import AutoTokenizer

    folder = entry.source.sentence_folder(entry.scratch)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    longest = min(tokenizer.model_max_length, entry.source.config().max_position_embeddings)
    batches = []
    for start in range(0, len(texts), rows):
        encoded = tokenizer(
            texts[start : start + rows],
            truncation=True,
            max_length=longest,
            padding=True,
            return_tensors="pt",
        )
        given = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        batches.append({name: value.to(entry.source.device) for name, value in given.items()})
    return batches


def calibration_batches(entry: Entry) -> Iterable[Batch]:
    """What a static quantisation looks at: other texts than those that it is judged by.

    Returns:
        Texts of STS 2012, one a batch; random ids of log-normal lengths where there are none.
    """
    try:
        if entry.source.path is None:
            raise Unavailable("random weights have no use for real texts")
        texts = cases.sts_texts(cases.sts(2012))
        step = max(1, len(texts) // CALIBRATION_TEXTS)
        return text_batches(entry, texts[::step][:CALIBRATION_TEXTS], rows=1)
    except Unavailable:
        config = entry.source.config()
        drawn = cases.make_case("short", CALIBRATION_TEXTS, config.max_position_embeddings)
        together = cases.make_batch(drawn, config.vocab_size)
        return [
            {name: value[row : row + 1, :length] for name, value in together.items()}
            for row, length in enumerate(drawn.lengths)
        ]
