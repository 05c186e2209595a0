"""Contestants for hidden states and sentence vectors, which run in their own processes."""

from __future__ import annotations

import abc
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_bert_impl.benchmark import runtimes
from hf_bert_impl.benchmark.cases import CASES, PARTS, Unavailable, make_case, sentences
from hf_bert_impl.benchmark.peers import Settings, Source
from hf_bert_impl.encoders.lengths import longest_sequence
from hf_bert_impl.encoders.probe import probe
from hf_bert_impl.inference.loading import prepare_model
from hf_bert_impl.measuring import timing
from hf_bert_impl.measuring.batches import Case, make_batch
from hf_bert_impl.model.modeling_bert import BertPreTrainedModel
from hf_bert_impl.model.preparing import prepared_kernels
from hf_bert_impl.parity import reference_model
from hf_bert_impl.tokenizer_files import TOKENIZERS

#: Number of compared texts.
CHECKED = 256


class Timed(abc.ABC):
    """A model with timed calls.

    Args:
        source: The model.
        settings: Threads, and whether turns are short.
    """

    model: Any = None

    def __init__(self, source: Source, settings: Settings) -> None:
        torch.set_num_threads(settings.threads or 1)
        self.source, self.settings = source, settings

    @abc.abstractmethod
    def call(self, case: Case, number: int) -> Callable[[], Any]:
        """The timed call of a round."""

    def turn(self, case: Case, number: int) -> float:
        """The mean seconds per call of as many calls as fill a turn, after an untimed one."""
        call = self.call(case, number)
        seconds = 0.0 if self.settings.quick else timing.TURN_SECONDS
        with timing.without_garbage():
            return timing.turn(call, seconds, timing.device_wait(self.source.device))

    def kernels(self) -> str | None:
        """The kernels of a prepared model; None if it is not prepared."""
        kernels = prepared_kernels(self.model)
        return None if kernels is None else str(kernels)


class States(Timed):
    """Hidden states of padded batches, by this package, transformers or a runtime.

    Args:
        name: `unchanged`, `prepared` or one of `PEERS`.
        dtype: Its precision.
        source: The model.
        settings: Threads, and whether batches are small and turns short.

    Raises:
        Unavailable: It cannot run here.
    """

    def __init__(self, name: str, dtype: str, source: Source, settings: Settings) -> None:
        super().__init__(source, settings)
        self.model = source.load()
        is_ours = isinstance(self.model, BertPreTrainedModel)
        if name == "prepared":
            prepare_model(self.model, None if dtype == "float32" else dtype)
        elif name == "unchanged":
            if not is_ours:
                probe(self.model)
        else:
            self.model = reference_model(self.model) if is_ours else self.model
            self.model.set_attn_implementation("eager" if name == "upstream-eager" else "sdpa")
        if build := runtimes.BUILD.get(name):
            self.runner = build(self.model, dtype, torch.get_num_threads())
        else:
            if name != "prepared":
                self.model.to(getattr(torch, dtype))
            self.runner = runtimes.model_runner(self.model)

    def case(self, name: str) -> Case:
        """The batch of a case."""
        rows = max(1, CASES[name].rows // (4 if self.settings.quick else 1))
        return make_case(name, rows, longest_sequence(self.model.config))

    def turn(self, case: Case, number: int) -> float:
        """See `Timed`; the seconds per row if each is a call of its own."""
        return super().turn(case, number) / (case.rows if case.one_by_one else 1)

    def call(self, case: Case, number: int) -> Callable[[], Any]:
        """The forward pass of the case's batch, or of all its rows, one after the other."""
        given = list(map(self.runner.convert, self._batches(case)))

        def compute() -> None:
            for each in given:
                self.runner.call(each)

        return compute

    def result(self, case: Case) -> Tensor:
        """(T, D) states at attended positions, float32 on the CPU."""
        results = []
        for batch in self._batches(case):
            states = self.runner.states(self.runner.call(self.runner.convert(batch)))
            results.append(states[batch["attention_mask"].bool().cpu()])
        return torch.cat(results)

    def _batches(self, case: Case) -> list[dict[str, Tensor]]:
        batch = make_batch(case, self.model.config.vocab_size, self.source.device)
        # Some families count positions over the ids that are not padding's.
        padding = ~batch["attention_mask"].bool()
        batch["input_ids"].masked_fill_(padding, self.model.config.pad_token_id or 0)
        if not case.one_by_one:
            return [batch]
        return [
            {name: value[row : row + 1, :length] for name, value in batch.items()}
            for row, length in enumerate(case.lengths)
        ]


class Texts(Timed):
    """Sentence vectors, by `TextEncoder` or by sentence-transformers with transformers' model.

    Args:
        name: `TextEncoder` or `sentence-transformers`.
        dtype: Its precision.
        source: The model.
        settings: Threads, the number of texts, and whether turns are short.

    Raises:
        Unavailable: The model has no tokenizer.
    """

    def __init__(self, name: str, dtype: str, source: Source, settings: Settings) -> None:
        super().__init__(source, settings)
        path = source.path
        if path is None:
            raise Unavailable("random weights have no tokenizer. Name a checkpoint.")
        if os.path.isdir(path) and not any((Path(path) / file).is_file() for file in TOKENIZERS):
            raise Unavailable("the checkpoint has no tokenizer")
        if name == "TextEncoder":
            from hf_bert_impl import TextEncoder

            self.encoder: Any = TextEncoder.from_pretrained(path, dtype=dtype, device=source.device)
        else:
            from sentence_transformers import SentenceTransformer

            self.encoder = SentenceTransformer(
                path,
                device=source.device,
                trust_remote_code=False,
                model_kwargs={"dtype": getattr(torch, dtype)},
            )
        self.model = self.encoder.transformers_model
        self.texts = sentences(200 if settings.quick else settings.sentences)[0]

    def case(self, name: str) -> Case:
        """The tokens of each text, cut at the model's maximum."""
        cut = {"truncation": True, "max_length": self.encoder.max_seq_length}
        ids = self.encoder.tokenizer(self.texts, **cut)["input_ids"]
        return Case(name, tuple(map(len, ids)), 0)

    def call(self, case: Case, number: int) -> Callable[[], Any]:
        """Encodes the round's part of the texts."""
        return functools.partial(self._encode, self.texts[number % PARTS :: PARTS])

    def result(self, case: Case) -> Tensor:
        """(texts, D) the vectors of the first texts."""
        return self._encode(self.texts[:CHECKED]).float().cpu()

    def _encode(self, texts: list[str]) -> Tensor:
        options = {"convert_to_tensor": True, "normalize_embeddings": True}
        return self.encoder.encode(texts, show_progress_bar=False, **options)
