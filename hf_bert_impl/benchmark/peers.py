"""The models of a benchmark: sources of weights, peers, and their requirements."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.benchmark.cases import CASES, Unavailable
from hf_bert_impl.data.option_ranges import COUNT, check_ranges
from hf_bert_impl.errors import check_choice
from hf_bert_impl.extras import install_remedy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SEED = 0
#: Sizes of `--random`; other fields are BERT-base's.
RANDOM: dict[str, dict[str, Any]] = {
    "base": {},
    # Both have 12 heads, as BERT-base has.
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    "small": {"hidden_size": 384, "num_hidden_layers": 12, "intermediate_size": 1536},
    # For tests and trials of the command.
    "tiny": {
        "hidden_size": 60,
        "num_hidden_layers": 2,
        "num_attention_heads": 5,
        "intermediate_size": 88,
        "vocab_size": 1031,
        "max_position_embeddings": 64,
    },
}


#: Precisions of transformers for each of ours, with float32 as most users run it.
BOTH = {"bfloat16": ("float32", "bfloat16"), "int8": ("float32",)}
ONNX = ("onnx", "onnxscript")
NO_BFLOAT16 = {"bfloat16": "has no bfloat16 kernels for the CPU"}


@dataclasses.dataclass(frozen=True)
class Peer:
    """A runtime for comparison.

    `packages` are import names. `precisions` maps our precisions to the peer's where they differ,
    and `lacks` maps missing ones to the reason.
    """

    packages: tuple[str, ...] = ()
    precisions: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_cpu_only: bool = False

    def precisions_for(self, dtype: str) -> tuple[str, ...]:
        """Its precisions to compare with one of ours."""
        return self.precisions.get(dtype, (dtype,))


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
    # Compares the prepared model with the unchanged call.
    "unchanged": Peer(precisions={"int8": ()}),
    # It takes text: the only peer of `encode`.
    TEXT_PEER: Peer(("sentence_transformers",), BOTH),
}
#: Peers of both the unchanged call and the prepared model.
UPSTREAM = ("upstream-sdpa", "upstream-eager")
PRECISIONS = ("float32", "bfloat16", "int8")


@dataclasses.dataclass(frozen=True)
class Source:
    """A model: a folder or hub id, or (None) random weights of a size in `RANDOM`."""

    path: str | None = None
    random: str = "base"
    device: str = "cpu"

    @property
    def name(self) -> str:
        """Its name in the report, without the path of a folder."""
        if self.path is None:
            return f"random weights, {self.random} size"
        return Path(self.path).resolve().name if os.path.isdir(self.path) else self.path

    def load(self, name: str = "BertModel", **fields: Any) -> PreTrainedModel:
        """The model in float32 and eval mode, a base model with its pooler.

        A BERT has a class of this package, another family that of transformers.

        Args:
            name: The class.
            fields: Config fields of a head that the checkpoint lacks.
        """
        import torch

        import hf_bert_impl
        from hf_bert_impl.checkpoints import open_checkpoint
        from hf_bert_impl.inference.loading import class_to_load

        torch.manual_seed(SEED)  # every process draws the same missing weights
        if self.path is None:
            cls: Any = getattr(hf_bert_impl, name)
            model = cls(hf_bert_impl.BertConfig(**RANDOM[self.random] | fields))
        else:
            cls = class_to_load(open_checkpoint(self.path, any_family=True), name)
            model = cls.from_pretrained(self.path, dtype=torch.float32, **fields)
        return model.to(self.device).eval()


@dataclasses.dataclass(frozen=True)
class Settings:
    """A benchmark's options."""

    cases: str | None = None
    """Some of short, uniform, long, full, sentence, queries and, with a MODEL, encode; None for
    all."""
    peers: str | None = None
    """Some of upstream-sdpa, upstream-eager, onnxruntime, openvino, ctranslate2, unchanged and
    sentence-transformers; None for all."""
    dtype: str = dataclasses.field(default="float32", metadata={"choices": ()})
    """One or several of float32, bfloat16 and int8."""
    rounds: int = 9
    """Number of rounds per pair."""
    threads: int | None = None
    """Threads of every contestant; None for the cores of this process."""
    sentences: int = 5000
    """Number of texts of the case encode."""
    quick: bool = False
    """MiniLM's size, small batches and few rounds, as a trial."""

    def __post_init__(self) -> None:
        for name, known in (("cases", CASES), ("peers", PEERS), ("dtype", PRECISIONS)):
            for one in self.chosen(name, known):
                check_choice(name, one, known)
        check_ranges(self, rounds=COUNT, threads=COUNT, sentences=COUNT)

    def chosen(self, name: str, known: Iterable[str]) -> list[str]:
        """The comma-separated names in a field."""
        given = getattr(self, name)
        return [*known] if given is None else [name.strip() for name in given.split(",")]


def check_peer(name: str, dtype: str, device: str) -> None:
    """Raises Unavailable if a peer cannot run here, before a process is started."""
    peer = PEERS[name]
    if peer.is_cpu_only and device != "cpu":
        raise Unavailable("compared on the CPU only")
    if dtype in peer.lacks:
        raise Unavailable(peer.lacks[dtype])
    for package in peer.packages:
        if importlib.util.find_spec(package) is None:
            shown = package.replace("_", "-")
            raise Unavailable(f"{shown} is not installed. {install_remedy('bench')}")
