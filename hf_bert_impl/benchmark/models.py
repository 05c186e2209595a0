"""The models that race: where weights come from, who computes with them, and what each needs."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.benchmark.cases import CASES, FORWARD, FROM_TEXT, LIBRARY, Unavailable
from hf_bert_impl.checkpoints import TOKENIZERS, demo_folder
from hf_bert_impl.errors import InputError
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


#: By our precision, those of transformers beside it: float32 too, since most people run it so.
BOTH = {"bfloat16": ("float32", "bfloat16"), "int8": ("float32",)}
NO_INT8: dict[str, tuple[str, ...]] = {"int8": ()}
ONNX = ("onnx", "onnxscript")


@dataclasses.dataclass(frozen=True)
class Peer:
    """Who ours is measured beside."""

    cases: tuple[str, ...] = FORWARD
    packages: tuple[str, ...] = ()
    """What it needs, by the name that is imported."""
    precisions: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Beside ours in this precision, those of the peer, if it is not the same one."""
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Precisions that it has no kernels for, and how that is said."""
    device: str | None = None
    """The only device that it computes on, if not any."""


NO_BFLOAT16 = {"bfloat16": "has no bfloat16 kernels for the CPU"}
#: In the order of their races. sentence-transformers has the reference of texts, so it comes first.
#: Ours beside itself comes last. Then every case has its reference.
PEERS = {
    "sentence-transformers": Peer(FROM_TEXT, ("sentence_transformers",), BOTH),
    # transformers' own BERT with each attention, and under torch.compile, which has to be asked for
    # by name: compiling takes a minute or more.
    "upstream-sdpa": Peer((*FORWARD, "line", "train"), precisions=BOTH),
    "upstream-eager": Peer((*FORWARD, "train"), precisions=NO_INT8),
    "upstream-compile": Peer(precisions=NO_INT8),
    # All graph optimisations; int8 by its dynamic quantisation.
    "onnxruntime": Peer(packages=("onnxruntime", *ONNX), lacks=NO_BFLOAT16, device="cpu"),
    # Latency hint; int8 by NNCF's static quantisation.
    "openvino": Peer((*FORWARD, *LIBRARY), ("openvino", *ONNX), device="cpu"),
    "ctranslate2": Peer(packages=("ctranslate2",), lacks=NO_BFLOAT16, device="cpu"),
    "flash-attention-2": Peer(
        packages=("flash_attn",),
        precisions=NO_INT8,
        lacks={"float32": "computes in half precision only: choose bfloat16"},
        device="cuda",
    ),
    # The prepared model beside the unchanged call.
    "unchanged": Peer(precisions=NO_INT8),
    # Ours beside itself: the ratio that noise alone gives.
    "self": Peer((*FORWARD, *FROM_TEXT)),
}
DEFAULT_PEERS = tuple(name for name in PEERS if name != "upstream-compile")
#: Beside these both of ours are measured: the unchanged call and the prepared model.
UPSTREAM = ("upstream-sdpa", "upstream-eager", "upstream-compile", "flash-attention-2")
PRECISIONS = ("float32", "bfloat16", "int8")


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

    def config(self) -> Any:
        """The model's config, read without its weights."""
        import hf_bert_impl

        if self.path is None:
            return hf_bert_impl.BertConfig(**RANDOM[self.random])
        return hf_bert_impl.BertConfig.from_pretrained(self.path)

    def load(self, name: str = "BertModel", **fields: Any) -> PreTrainedModel:
        """The model as a class of this package (a base model with its pooler), float32, eval.

        Args:
            name: The class.
            fields: Of the config, where the checkpoint has no such head.
        """
        import torch

        import hf_bert_impl

        cls: Any = getattr(hf_bert_impl, name)
        torch.manual_seed(SEED)  # every process draws the same missing weights
        if self.path is None:
            model = cls(hf_bert_impl.BertConfig(**RANDOM[self.random] | fields))
        else:
            if name in (self.config().architectures or ()):
                fields = {}
            model = cls.from_pretrained(self.path, dtype=torch.float32, **fields)
        loaded: PreTrainedModel = model.to(self.device).eval()
        return loaded

    def sentence_folder(self, scratch: str) -> str:
        """A model with a tokenizer, as sentence encoders load it.

        Args:
            scratch: Where random weights are saved, once a run.

        Returns:
            The checkpoint itself, or random weights beside the tokenizer of the demo's weights.

        Raises:
            Unavailable: There is no tokenizer.
        """
        if self.path is not None:
            folder = Path(self.path)
            if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZERS):
                raise Unavailable("the checkpoint has no tokenizer")
            return self.path
        from transformers import AutoTokenizer

        try:
            folder = demo_folder()
        except InputError as error:
            raise Unavailable(f"random weights need the demo's tokenizer: {error}") from error
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        config = self.config()
        if len(tokenizer) > config.vocab_size:
            raise Unavailable(f"the size {self.random} has a smaller vocabulary than the tokenizer")
        # The sentence model that the tokenizer comes from stops at 128 or 256; this one need not.
        tokenizer.model_max_length = config.max_position_embeddings

        def save(folder: Path) -> None:
            self.load().save_pretrained(folder)
            tokenizer.save_pretrained(folder)

        return str(made_once(scratch, "sentences", save))


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


def check_peer(name: str, dtype: str, device: str) -> None:
    """Check what can be checked before a process is started.

    Raises:
        Unavailable: The peer cannot run here.
    """
    peer = PEERS[name]
    if peer.device not in (None, device):
        raise Unavailable(
            "compared on the CPU only" if peer.device == "cpu" else "needs a CUDA device"
        )
    if dtype in peer.lacks:
        raise Unavailable(peer.lacks[dtype])
    packages = (*peer.packages, "nncf") if (name, dtype) == ("openvino", "int8") else peer.packages
    for package in packages:
        if importlib.util.find_spec(package) is None:
            shown = package.replace("_", "-")
            raise Unavailable(f"{shown} is not installed; {install_remedy('bench')}")


def made_once(scratch: str, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the first contestant who needs it makes for all of a run.

    Args:
        scratch: Where all share files.
        name: The folder's name.
        make: Fills an empty folder.
    """
    place = Path(scratch) / name
    if not place.exists():
        fresh = Path(tempfile.mkdtemp(dir=scratch))
        make(fresh)
        fresh.rename(place)
    return place
