"""The models that race: where weights come from, who computes with them, and what each needs."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.benchmark.cases import CASES, Unavailable
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.extras import install_remedy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SEED = 0
#: Sizes of `--random`. Fields that are not given here are those of BERT-base.
RANDOM: dict[str, dict[str, Any]] = {
    "base": {},
    # Both have 12 heads, as BERT-base has.
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    "small": {"hidden_size": 384, "num_hidden_layers": 12, "intermediate_size": 1536},
    # For tests and for trying the command itself.
    "tiny": {
        "hidden_size": 60,
        "num_hidden_layers": 2,
        "num_attention_heads": 5,
        "intermediate_size": 88,
        "vocab_size": 1031,
        "max_position_embeddings": 64,
    },
}


#: Precisions of transformers for each of ours: float32 too, since most people run it so.
BOTH = {"bfloat16": ("float32", "bfloat16"), "int8": ("float32",)}
ONNX = ("onnx", "onnxscript")
#: The name of `model/kernels.py`, which imports torch.
HALF_WEIGHTS = "float16-weights"
NO_BFLOAT16 = {"bfloat16": "has no bfloat16 kernels for the CPU"}


@dataclasses.dataclass(frozen=True)
class Peer:
    """A runtime that ours is compared with."""

    packages: tuple[str, ...] = ()
    """Packages that it needs, by the names that are imported."""
    precisions: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Precisions of the peer for each precision of ours, where they differ."""
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Precisions that it has no kernels for, and the reason for the report."""
    is_cpu_only: bool = False
    """Whether it is compared on the CPU alone."""

    def beside(self, dtype: str) -> tuple[str, ...]:
        """Its precisions beside one of ours."""
        return self.precisions.get(dtype, ("float32" if dtype == HALF_WEIGHTS else dtype,))


TEXT_PEER = "sentence-transformers"
#: In the order of their races.
PEERS = {
    # transformers' own BERT with each attention.
    "upstream-sdpa": Peer(precisions=BOTH),
    "upstream-eager": Peer(precisions={"int8": ()}),
    # All graph optimisations; int8 by its dynamic quantisation.
    "onnxruntime": Peer(("onnxruntime", *ONNX), lacks=NO_BFLOAT16, is_cpu_only=True),
    # Latency hint.
    "openvino": Peer(
        ("openvino", *ONNX),
        lacks={"int8": "is calibrated for int8: benchmarks/static_int8.py does that"},
        is_cpu_only=True,
    ),
    "ctranslate2": Peer(("ctranslate2",), lacks=NO_BFLOAT16, is_cpu_only=True),
    # The prepared model compared with the unchanged call.
    "unchanged": Peer(precisions={"int8": (), HALF_WEIGHTS: ()}),
    # It takes text: the peer of `encode`, and of nothing else.
    TEXT_PEER: Peer(("sentence_transformers",), BOTH),
}
#: Peers that both of ours are compared with: the unchanged call and the prepared model.
UPSTREAM = ("upstream-sdpa", "upstream-eager")
PRECISIONS = ("float32", "bfloat16", "int8", HALF_WEIGHTS)
#: Those of prepared models alone.
PREPARED = ("int8", HALF_WEIGHTS)


@dataclasses.dataclass(frozen=True)
class Source:
    """A model by its name."""

    path: str | None = None
    """A folder or hub id; None for random weights."""
    random: str = "base"
    """Which of `RANDOM`."""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """What the report calls it; only a folder's own name, so that results can be shared."""
        if self.path is None:
            return f"random weights, {self.random} size"
        return Path(self.path).resolve().name if os.path.isdir(self.path) else self.path

    def load(self, name: str = "BertModel", **fields: Any) -> PreTrainedModel:
        """The model as a class of this package (a base model with its pooler), float32, eval.

        Args:
            name: The class.
            fields: Of the config, for a head that the checkpoint lacks.
        """
        import torch

        import hf_bert_impl

        cls: Any = getattr(hf_bert_impl, name)
        torch.manual_seed(SEED)  # every process draws the same missing weights
        if self.path is None:
            model = cls(hf_bert_impl.BertConfig(**RANDOM[self.random] | fields))
        else:
            model = cls.from_pretrained(self.path, dtype=torch.float32, **fields)
        loaded: PreTrainedModel = model.to(self.device).eval()
        return loaded


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure."""

    cases: str | None = None
    """Some of short, uniform, long, full, sentence and, with a MODEL, encode; None for all."""
    peers: str | None = None
    """Some of upstream-sdpa, upstream-eager, onnxruntime, openvino, ctranslate2, unchanged and
    sentence-transformers; None for all."""
    dtype: str = "float32"
    """One or several of float32, bfloat16, int8 and float16-weights."""
    rounds: int = 9
    """How many times each pair runs."""
    threads: int | None = None
    """Threads of every contestant; None for the cores of this process."""
    sentences: int = 5000
    """Texts of the case encode."""
    quick: bool = False
    """MiniLM's size, small batches, few rounds: to see that it runs."""

    def __post_init__(self) -> None:
        for name, known in (("cases", CASES), ("peers", PEERS), ("dtype", PRECISIONS)):
            for one in self.chosen(name, known):
                check_choice(f"`{name}`", one, known)
        for name in ("rounds", "threads", "sentences"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"`{name}` is {value}", "a number from 1", "change it")

    def chosen(self, name: str, known: Iterable[str]) -> list[str]:
        """The names in a field, which are separated by commas."""
        given = getattr(self, name)
        return [*known] if given is None else [it.strip() for it in given.split(",")]


def check_peer(name: str, dtype: str, device: str) -> None:
    """Check what can be checked before a process is started.

    Raises:
        Unavailable: The peer cannot run here.
    """
    peer = PEERS[name]
    if peer.is_cpu_only and device != "cpu":
        raise Unavailable("compared on the CPU only")
    if dtype in peer.lacks:
        raise Unavailable(peer.lacks[dtype])
    for package in peer.packages:
        if importlib.util.find_spec(package) is None:
            shown = package.replace("_", "-")
            raise Unavailable(f"{shown} is not installed. {install_remedy('bench')}")
