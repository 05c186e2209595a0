"""Contestants of the cases that begin with text: models of sentence-transformers, and ours.

Every contestant makes the same call on the same texts. Ours is the library's model after
`hf_bert_impl.optimize(model, dtype)`, and for `encode` a `TextEncoder`. OpenVINO takes the place of
the transformers model inside of the library's, as its own backend does, whose packages do not
install beside transformers 5.23.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer
from transformers.utils import ModelOutput

import hf_bert_impl
from hf_bert_impl.benchmark import memory, texts
from hf_bert_impl.benchmark.cases import PARTS
from hf_bert_impl.benchmark.models import SEED, Entry, made_once
from hf_bert_impl.benchmark.runtimes import kernels_of, open_vino
from hf_bert_impl.benchmark.texts import CALIBRATION_TEXTS
from hf_bert_impl.export.program import INPUTS
from hf_bert_impl.measuring.batches import Case

#: How many texts are compared: a vector of SPLADE has 30,522 numbers, one of ColBERT 128 a token.
CHECKED = 64


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of model."""

    cls: str
    """Its class in sentence-transformers."""
    holds: str
    """The class of the BERT in it."""
    method: str
    """What is timed."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """How it is called."""
    paired: bool = False
    """Whether it takes pairs of texts."""


KINDS = {
    "encode": Kind(
        "SentenceTransformer",
        "BertModel",
        "encode",
        {"convert_to_tensor": True, "normalize_embeddings": True},
    ),
    "dense": Kind("SentenceTransformer", "BertModel", "encode", {"convert_to_tensor": True}),
    "cross-encoder": Kind(
        "CrossEncoder",
        "BertForSequenceClassification",
        "predict",
        # Scores as they are: a sigmoid would make errors look small.
        {"convert_to_tensor": True, "activation_fn": nn.Identity()},
        paired=True,
    ),
    "sparse": Kind("SparseEncoder", "BertForMaskedLM", "encode_document"),
    "multi-vector": Kind("MultiVectorEncoder", "BertModel", "encode_document"),
}


class TextModel:
    """A model that takes texts.

    Args:
        entry: Who it is: `prepared` is ours in the entry's precision, `sentence-transformers` is
            the library's as it comes.
        case: One of `KINDS`.

    Raises:
        Unavailable: It cannot run here.
    """

    def __init__(self, entry: Entry, case: str) -> None:
        self.entry, self.kind = entry, KINDS[case]
        folder, device = _folder(entry, case), entry.source.device
        ours = entry.name == "prepared"
        if ours and case == "encode":
            self.model: Any = hf_bert_impl.TextEncoder.from_pretrained(
                folder, dtype=entry.dtype, device=device
            )
        else:
            library = entry.name == "sentence-transformers"
            self.model = load(self.kind, folder, device, entry.dtype if library else None)
        number = entry.texts_of(case)
        self.inputs = _inputs(case, self.model.tokenizer, number)
        if ours and case != "encode":
            self.model = hf_bert_impl.optimize(self.model, dtype=entry.dtype)
        elif entry.name == "openvino":
            further = number + CALIBRATION_TEXTS // (1 if case == "dense" else 3)
            others = _inputs(case, self.model.tokenizer, further)[number:]
            inside = self.model[0]
            inside.model = OpenVinoModel(inside.model, entry, [self._tokens(it) for it in others])
        self.run = functools.partial(
            getattr(self.model, self.kind.method), show_progress_bar=False, **self.kind.options
        )

    @property
    def kernels(self) -> str | None:
        """What computes the BERT of one of ours, in one line."""
        held = self.model.modules() if isinstance(self.model, nn.Module) else [self.model.model]
        for module in held:
            if isinstance(module, hf_bert_impl.BertPreTrainedModel):
                return kernels_of(module)
        return None

    def lengths(self) -> list[int]:
        """Tokens of each text, or of each pair, as the model cuts them."""
        return [self._tokens(given)["input_ids"].shape[1] for given in self.inputs]

    def call(self, case: Case, number: int) -> Callable[[], Any]:
        """What a turn times: the part of the texts whose turn it is."""
        return functools.partial(self.run, self.inputs[number % PARTS :: PARTS])

    def result(self, case: Case) -> dict[str, Tensor]:
        """What the first texts give: vectors, scores, or the vectors of all tokens."""
        found = self.run(self.inputs[:CHECKED])
        if isinstance(found, list):
            found = torch.cat(found)
        return {"values": (found.to_dense() if found.is_sparse else found).float().cpu()}

    def check(self, case: Case, reference: dict[str, Tensor] | None) -> dict[str, Any]:
        """Errors beside the reference's numbers; memory of a part of the texts."""
        found = errors(self.result(case), reference)
        found["mib"] = memory.peak(self.call(case, 0), self.entry.source.device)
        if self.entry.source.device == "cpu" and found["mib"] is not None:
            found["notes"] = {"process_mib": memory.process_peak()}
        return found

    def _tokens(self, given: Any) -> Any:
        """A text or a pair as a batch of one."""
        words = given if self.kind.paired else (given,)
        longest = getattr(self.model, "max_length", None)  # else the tokenizer's own
        return self.model.tokenizer(
            *words, truncation=True, max_length=longest, return_tensors="pt"
        )


def errors(result: dict[str, Tensor], reference: dict[str, Tensor] | None) -> dict[str, Any]:
    """The largest difference and the root of the mean squared one; none without a reference."""
    if reference is None:
        return {}
    gaps = (result["values"] - reference["values"]).double()
    return {"error": gaps.abs().max().item(), "rms": gaps.square().mean().sqrt().item()}


def load(kind: Kind, folder: str, device: str = "cpu", dtype: str | None = None) -> Any:
    """A model of sentence-transformers as it comes.

    Args:
        kind: Which.
        folder: A folder of its kind, or a bare BERT.
        device: Where it computes.
        dtype: Its precision; None for float32.
    """
    cls = getattr(importlib.import_module("sentence_transformers"), kind.cls)
    options = {"dtype": getattr(torch, dtype or "float32")}
    return cls(folder, device=device, trust_remote_code=False, model_kwargs=options)


def _folder(entry: Entry, case: str) -> str:
    """The measured model as a folder of its kind, made once a run.

    A folder that was saved as this kind is taken as it is. Otherwise it is the BERT that is named,
    with the tokenizer's limit at its positions; layers that it lacks are random.
    """
    kind, bert = KINDS[case], entry.source.sentence_folder(entry.scratch)
    named = Path(bert) / "config_sentence_transformers.json"
    saved_as = json.loads(named.read_text(encoding="utf-8")) if named.is_file() else {}
    if case in ("encode", "dense") or saved_as.get("model_type") == kind.cls:
        return bert

    def save(folder: Path) -> None:
        held = entry.source.load(kind.holds, **({"num_labels": 1} if kind.paired else {}))
        held.save_pretrained(folder / "bert")
        tokenizer = AutoTokenizer.from_pretrained(bert, trust_remote_code=False)
        tokenizer.model_max_length = held.config.max_position_embeddings
        tokenizer.save_pretrained(folder / "bert")
        torch.manual_seed(SEED)
        load(kind, str(folder / "bert")).save_pretrained(str(folder / "whole"))

    return str(made_once(entry.scratch, case, save) / "whole")


def _inputs(case: str, tokenizer: Any, number: int) -> list[Any]:
    """What a case encodes."""
    if case == "encode":
        return texts.sentences(number)[0]
    if case == "dense":
        return texts.sts_sentences(number)
    passages = texts.passages(number, tokenizer)
    return texts.with_questions(passages) if KINDS[case].paired else passages


class OpenVinoModel(nn.Module):
    """OpenVINO where a model of sentence-transformers holds one of transformers.

    Args:
        model: transformers' model, float32, in eval mode.
        entry: Precision and threads.
        samples: Batches of one, on which int8 is calibrated.
    """

    def __init__(self, model: Any, entry: Entry, samples: list[Any]) -> None:
        super().__init__()
        self.config, self.device, self.dtype = model.config, model.device, model.dtype
        self.runner = open_vino(model, entry, INPUTS, lambda: samples)
        self.output = "logits" if hasattr(model, "bert") else "last_hidden_state"

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
