"""Fixtures, random models and comparison for the tests of conversion."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import hf_bert_impl
from hf_bert_impl.conversion.formats import FORMATS as KNOWN
from hf_bert_impl.conversion.formats import Candidate
from hf_bert_impl.conversion.maps import names
from hf_bert_impl.conversion.maps.flax import FLAX
from hf_bert_impl.conversion.maps.google_tf1 import GOOGLE_TF1
from hf_bert_impl.conversion.maps.keras_h5 import KERAS_H5
from hf_bert_impl.conversion.maps.pytorch import PYTORCH_PRETRAINED_BERT, TRANSFORMERS
from hf_bert_impl.conversion.planning import same_bits
from hf_bert_impl.conversion.readers.tf1 import index_of
from hf_bert_impl.conversion.rules import Table
from hf_bert_impl.errors import InputError
from hf_bert_impl.head_names import HEADS

FIXTURES = Path(__file__).parents[1] / "fixtures"
CLASSES = tuple(HEADS.values())
PRETRAINING, CLASSIFICATION = "BertForPreTraining", "BertForSequenceClassification"
ANSWERING, TOKENS = "BertForQuestionAnswering", "BertForTokenClassification"
MASKED, CHOICE = "BertForMaskedLM", "BertForMultipleChoice"


COMPRESS: dict = {"tar": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
ARCHIVES = ("zip", "tar", "tar.gz", "tar.bz2", "tar.xz")


class Checkpoint(NamedTuple):
    """A fixture that the original software wrote."""

    folder: str
    file: str
    table: Table
    class_name: str
    num_labels: int | None


OLD, NEW = PYTORCH_PRETRAINED_BERT, TRANSFORMERS
CHECKPOINTS = (
    Checkpoint("tf1", "bert_model.ckpt", GOOGLE_TF1, PRETRAINING, None),
    Checkpoint("tf1_sharded", "bert_model.ckpt", GOOGLE_TF1, PRETRAINING, None),
    Checkpoint("tf1_squad", "model.ckpt-1000", GOOGLE_TF1, ANSWERING, None),
    Checkpoint("tf1_classifier", "model.ckpt-1000", GOOGLE_TF1, CLASSIFICATION, 3),
    Checkpoint("tf2_h5", "tf_model.h5", KERAS_H5, PRETRAINING, None),
    Checkpoint("tf2_h5_classifier", "tf_model.h5", KERAS_H5, CLASSIFICATION, 3),
    Checkpoint("tf2_h5_sharded", "tf_model.h5.index.json", KERAS_H5, CLASSIFICATION, 3),
    Checkpoint("tf2_h5_qa", "tf_model.h5", KERAS_H5, ANSWERING, None),
    Checkpoint("flax", "flax_model.msgpack", FLAX, PRETRAINING, None),
    Checkpoint("flax_classifier", "flax_model.msgpack", FLAX, CLASSIFICATION, 3),
    Checkpoint("flax_sharded", "flax_model.msgpack.index.json", FLAX, CLASSIFICATION, 3),
    Checkpoint("pytorch_pretrained_bert", "pytorch_model.bin", OLD, PRETRAINING, None),
    Checkpoint("pytorch_pretrained_bert_0.6.2", "pytorch_model.bin", NEW, PRETRAINING, None),
    Checkpoint("pytorch_pretrained_bert_classifier", "pytorch_model.bin", OLD, CLASSIFICATION, 3),
    Checkpoint("pytorch_pretrained_bert_squad", "pytorch_model.bin", OLD, ANSWERING, None),
    Checkpoint("hf_legacy", "pytorch_model.bin", NEW, PRETRAINING, None),
    Checkpoint("hf_legacy_sharded", "pytorch_model.bin.index.json", NEW, PRETRAINING, None),
    Checkpoint("hf_legacy_fp16_token_classifier", "pytorch_model.bin", NEW, TOKENS, 3),
    Checkpoint("hf_safetensors", "model.safetensors", NEW, PRETRAINING, None),
    Checkpoint("hf_safetensors_sharded", "model.safetensors.index.json", NEW, PRETRAINING, None),
    Checkpoint("hf_base_no_prefix", "model.safetensors", NEW, "BertModel", None),
    Checkpoint("hf_mlm_no_pooler", "model.safetensors", NEW, MASKED, None),
    Checkpoint("hf_bf16_classifier", "model.safetensors", NEW, CLASSIFICATION, 3),
    Checkpoint("head_mask", "model.safetensors", NEW, CLASSIFICATION, 4),
    Checkpoint("head_mask_pruned", "model.safetensors", NEW, CLASSIFICATION, 4),
    Checkpoint("positions_relative_key", "model.safetensors", NEW, MASKED, None),
    Checkpoint("positions_relative_key_query", "model.safetensors", NEW, MASKED, None),
)


@dataclass(frozen=True)
class Format:
    """The readers of a format."""

    name: str
    suffixes: tuple[str, ...]
    """Those of its files among the fixtures."""
    library: Callable | None = None
    """Reads a file by other code than ours: tensors by name, in the order of the file."""

    @property
    def is_file(self) -> Callable[[Path], bool]:
        return KNOWN[self.name].is_file

    def read(self, path: Path) -> Any:
        is_prefix = self.name == "tf1" and len(path.name) < 100
        return Candidate((is_prefix and index_of(path)) or path, self.name).read()

    def read_all(self, path: Path) -> dict[str, torch.Tensor]:
        """All tensors of a checkpoint that torch has the dtype of."""
        found = self.read(path).tensors
        return {name: item for name, item in found.items() if isinstance(item, torch.Tensor)}

    def refuse(self, path: Path, match: str | None = None) -> str:
        """Hold that reading everything ends in one short line that names the file; the line."""
        line = refused(lambda: self.read(path), match)
        assert path.name.split(".")[0] in line
        return line


def refused(run: Callable[[], Any], match: str | None = None) -> str:
    """Hold that a call ends in one short line; the line."""
    with pytest.raises(InputError, match=match) as raised:
        run()
    line = str(raised.value)
    assert line.isprintable()
    assert len(line) < 900
    return line


def by_torch(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def by_tensorflow(path: Path) -> dict[str, torch.Tensor]:
    """The tensors that TensorFlow's own reader gave for a fixture, bfloat16 as uint16."""
    with np.load(path.with_name("expected.npz")) as arrays:
        halves = {name for name in arrays if arrays[name].dtype == np.uint16}
        return {
            name: torch.from_numpy(arrays[name].view(np.int16)).view(torch.bfloat16)
            if name in halves
            else torch.from_numpy(arrays[name])
            for name in sorted(arrays)
        }


FORMATS = {
    "safetensors": Format("safetensors", (".safetensors",)),
    "torch": Format("torch", (".bin", ".pt", ".ep0"), by_torch),
    "flax": Format("flax", (".msgpack",)),
    "h5": Format("h5", (".h5",)),
    "tf1": Format("tf1", (".index",), by_tensorflow),
}
EVERY_FORMAT = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


class Runs:
    """It pickles as a call."""

    def __init__(self, function: Callable, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable, tuple]:
        return self.call


def tar(*members: tuple[Any, bytes | None], form: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar of (name or TarInfo, content); without content (None) it is a folder."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as out:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            if content is None:
                info.type = tarfile.DIRTYPE
            info.size = len(content or b"")
            out.addfile(info, io.BytesIO(content or b""))
    return file.getvalue()


def zipped(*members: tuple[Any, bytes | None], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of (name or ZipInfo, content); without content (None) it is a folder."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as out:
        for member, content in members:
            out.writestr(f"{member}/" if content is None else member, content or b"", method)
    return file.getvalue()


def pack(path: Path, files: dict[str, bytes | None]) -> Path:
    """Write files (None: a folder) into an archive of the kind that the name says."""
    kind = path.suffix[1:]
    content = zipped(*files.items()) if kind == "zip" else COMPRESS[kind](tar(*files.items()))
    path.write_bytes(content)
    return path


def zeros(shapes: dict[str, tuple]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


def tensors_of(folder: str) -> dict[str, Any]:
    """The tensors of a fixture."""
    known = next(known for known in CHECKPOINTS if known.folder == folder)
    marks = {".ckpt": "tf1", ".h5": "h5", ".msgpack": "flax", ".safetensors": "safetensors"}
    form = next((marks[mark] for mark in marks if mark in known.file), "torch")
    return dict(FORMATS[form].read(FIXTURES / folder / known.file).tensors)


def assert_same(found: Mapping, expected: Mapping) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert same_bits(found[name], tensor.detach().contiguous()), name


def random_model(class_name: str, seed: int = 0, **sizes: Any) -> tuple[dict, dict]:
    """The state of a random model, without its tied tensors, and its config."""
    fields: dict = dict(vocab_size=13, hidden_size=6, num_hidden_layers=2, num_attention_heads=3)
    fields |= dict(intermediate_size=7, max_position_embeddings=11, type_vocab_size=5) | sizes
    config = hf_bert_impl.BertConfig(**fields)
    with torch.device("meta"):
        shapes = getattr(hf_bert_impl, class_name)(config).state_dict()
    generator = torch.Generator().manual_seed(seed)
    tied = names.TIED if config.tie_word_embeddings else ()
    state = {
        name: torch.randn(tensor.shape, generator=generator)
        for name, tensor in shapes.items()
        if name not in tied
    }
    return state, fields
