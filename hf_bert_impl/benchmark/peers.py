"""Who is measured: this package's model, transformers' own, other runtimes, and what each needs."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Mapping

from hf_bert_impl.benchmark.cases import CASES, FORWARD, FROM_TEXT, LIBRARY, Unavailable
from hf_bert_impl.benchmark.models import Source
from hf_bert_impl.errors import one_line

#: By our precision, those of transformers beside it: float32 too, since most people run it so.
BOTH = {"bfloat16": ("float32", "bfloat16"), "int8": ("float32",)}
NO_INT8: dict[str, tuple[str, ...]] = {"int8": ()}
ONNX = ("onnx", "onnxscript")


@dataclasses.dataclass(frozen=True)
class Peer:
    """Who ours is measured beside."""

    what: str
    cases: tuple[str, ...] = FORWARD
    packages: tuple[str, ...] = ()
    """What it needs, by the name that is imported."""
    precisions: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Beside ours in this precision, those of the peer, if it is not the same one."""
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Precisions that it has no kernels for, and how that is said."""
    cpu_only: bool = False


NO_BFLOAT16 = {"bfloat16": "has no bfloat16 kernels for the CPU"}
PEERS = {
    "self": Peer("ours beside itself: the ratio that noise alone gives", (*FORWARD, *FROM_TEXT)),
    "unchanged": Peer("the prepared model beside the unchanged call", precisions=NO_INT8),
    "upstream-sdpa": Peer(
        "transformers' own BERT, scaled-dot-product attention",
        (*FORWARD, "line", "train"),
        precisions=BOTH,
    ),
    "upstream-eager": Peer(
        "transformers' own BERT, eager attention", (*FORWARD, "train"), precisions=NO_INT8
    ),
    "upstream-compile": Peer(
        "transformers' own BERT under torch.compile (asked for by name: compiling takes a minute "
        "or more)",
        precisions=NO_INT8,
    ),
    "onnxruntime": Peer(
        "ONNX Runtime, all graph optimisations; int8 by its dynamic quantisation",
        packages=("onnxruntime", *ONNX),
        lacks=NO_BFLOAT16,
        cpu_only=True,
    ),
    "openvino": Peer(
        "OpenVINO, latency hint; int8 by NNCF's static quantisation",
        (*FORWARD, *LIBRARY),
        packages=("openvino", *ONNX),
        cpu_only=True,
    ),
    "ctranslate2": Peer("CTranslate2", packages=("ctranslate2",), lacks=NO_BFLOAT16, cpu_only=True),
    "flash-attention-2": Peer(
        "transformers' own BERT, flash_attention_2 (CUDA)", precisions=NO_INT8
    ),
    "sentence-transformers": Peer(
        "sentence-transformers as it comes (the cases that begin with text)",
        FROM_TEXT,
        packages=("sentence_transformers",),
        precisions=BOTH,
    ),
}
DEFAULT_PEERS = tuple(name for name in PEERS if name != "upstream-compile")
#: Beside these both of ours are measured: the unchanged call and the prepared model.
UPSTREAM = ("upstream-sdpa", "upstream-eager", "upstream-compile", "flash-attention-2")
PRECISIONS = ("float32", "bfloat16", "int8")


@dataclasses.dataclass(frozen=True)
class Entry:
    """Who computes in a process, and how."""

    name: str
    """`unchanged`, `prepared` or one of `PEERS`."""
    dtype: str
    source: Source
    threads: int
    scratch: str
    """A folder that all contestants of a run share."""
    sentences: int | None = None
    """Texts of a case of `cases.FROM_TEXT`; None for the case's usual number."""
    pairs: int | None = None
    """Of each source of `sts`; None for all."""
    turn_seconds: float = 0.0
    """How long a turn lasts at least."""

    def texts_of(self, case: str) -> int:
        """How many texts a case of `cases.FROM_TEXT` has."""
        return self.sentences or CASES[case].texts

    @classmethod
    def from_json(cls, text: str) -> Entry:
        """What `dataclasses.asdict` gave, written as JSON."""
        fields = json.loads(text)
        return cls(**fields | {"source": Source(**fields["source"])})


@dataclasses.dataclass(frozen=True)
class Check:
    """What one contestant's results on a case are worth, and what they take."""

    error: float | None = None
    """Largest difference from the reference."""
    rms: float | None = None
    """Root of the mean squared difference."""
    mib: float | None = None
    spearman: float | None = None
    notes: dict[str, float] = dataclasses.field(default_factory=dict)


def reason(error: BaseException) -> str:
    """Why something failed, short enough for a table."""
    text = one_line(error)
    if not isinstance(error, Unavailable):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= 200 else text[:197] + "..."


def check_peer(name: str, dtype: str, device: str) -> None:
    """Check what can be checked before a process is started.

    Raises:
        Unavailable: The peer cannot run here.
    """
    peer = PEERS[name]
    packages = peer.packages
    if peer.cpu_only and device != "cpu":
        raise Unavailable("compared on the CPU only")
    if name == "flash-attention-2":
        if device == "cpu":
            raise Unavailable("needs a CUDA device")
        if dtype != "bfloat16":
            raise Unavailable("computes in half precision only: choose bfloat16")
        packages = ("flash_attn",)
    if dtype in peer.lacks:
        raise Unavailable(peer.lacks[dtype])
    if name == "openvino" and dtype == "int8":
        packages = (*packages, "nncf")
    for package in packages:
        if importlib.util.find_spec(package) is None:
            shown = package.replace("_", "-")
            raise Unavailable(f"{shown} is not installed; pip install 'hf_bert_impl[bench]'")
