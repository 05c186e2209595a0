"""The checkpoint that a path names, and its format: by signature, not by name.

Names decide only two cases: which file of a folder is the checkpoint, and which reader reports a
file whose first bytes are damaged.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from hf_bert_impl.errors import InputError

from .planning import listing
from .readers.archive import is_archive
from .readers.flax import is_flax, read_flax
from .readers.h5 import is_h5, read_h5
from .readers.mapped import read_at
from .readers.safetensors import is_safetensors, read_safetensors
from .readers.sharded import check_places, read_shard_index, shards_of
from .readers.tf1 import index_of, is_tf1, read_tf1
from .readers.torch import is_torch, read_torch
from .tensors import Checkpoint

_INDEX = ".index.json"
_SHARD = re.compile(r"-[0-9]{5}-of-[0-9]{5}\.[a-z0-9]+")
#: TensorFlow's note of the newest checkpoint in a folder.
_STATE_FILE = "checkpoint"
_STATE = re.compile(r'^\s*model_checkpoint_path:\s*"([^"\n]*)"', re.MULTILINE)
_MAX_STATE_BYTES = 1 << 20
#: Files of training loops in PyTorch's format that hold no weights.
LEFTOVERS = ("optimizer.*", "scheduler.*", "scaler.*", "training_args.bin", "rng_state*.pth")


@dataclass(frozen=True)
class Format:
    """One format of checkpoint files."""

    read: Callable[[Path], Checkpoint]
    is_file: Callable[[Path], bool]
    """Whether a file has the format's signature; False for a path that cannot be read."""
    suffixes: tuple[str, ...]
    """Patterns of the suffixes of its files."""
    name: str
    """The libraries' name for its file in a folder, without `.index.json`."""


#: The preferred format of a folder first: most files of the later ones were converted from these.
FORMATS = {
    "safetensors": Format(read_safetensors, is_safetensors, (".safetensors",), "model.safetensors"),
    "torch": Format(
        read_torch,
        is_torch,
        (".bin", ".pt", ".pth", ".ep", ".ep[0-9]*", ".pkl"),
        "pytorch_model.bin",
    ),
    "flax": Format(read_flax, is_flax, (".msgpack",), "flax_model.msgpack"),
    "h5": Format(read_h5, is_h5, (".h5", ".hdf5"), "tf_model.h5"),
    "tf1": Format(read_tf1, is_tf1, (".index",), "bert_model.ckpt.index"),
}
_KNOWN = ", ".join(FORMATS)


@dataclass(frozen=True)
class Candidate:
    """A checkpoint that could be read."""

    path: Path
    """A file, or the index of several."""
    format: str
    """A key of `FORMATS`, or "archive"."""

    def read(self) -> Checkpoint:
        """Read it.

        Raises:
            InputError: A file cannot be read or is damaged, or index and files do not agree.
        """
        read = FORMATS[self.format].read
        if not read_at(self.path, 0, 1):  # a pipe would block
            raise InputError(f"{self.path} is empty or cannot be read. Download it again.")
        if self.path.suffix != ".json":
            whole = read(self.path)
            return replace(whole, format=self.format, files=whole.files or (self.path,))
        weight_map = read_shard_index(self.path)
        shards = {file: read(file) for file in sorted(set(weight_map.values()))}
        names = {file: shard.tensors.keys() for file, shard in shards.items()}
        if self.format == "h5":
            # The index starts each name with the model's, which the files omit.
            shorter = {name.partition("/")[2]: file for name, file in weight_map.items()}
            weight_map = shorter if set().union(*names.values()) & shorter.keys() else weight_map
        check_places(self.path, weight_map, names)
        return Checkpoint(
            {name: tensor for shard in shards.values() for name, tensor in shard.tensors.items()},
            next((shard.software for shard in shards.values() if shard.software), None),
            {name: value for shard in shards.values() for name, value in shard.attributes.items()},
            (self.path, *shards),
            self.format,
        )


def format_of(path: Path) -> str | None:
    """The format of a file by its signature, else by its name, else None.

    Args:
        path: A file, or the index of several.
    """
    if path.name.endswith(_INDEX):
        # An index does not name the format, so its first shard decides.
        return format_of(shards_of(path)[0])
    for name, known in FORMATS.items():
        if known.is_file(path):
            return name
    for name, known in FORMATS.items():
        if matches(path.suffix, known.suffixes):
            return name  # its reader reports the damage
    return None


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name or a suffix fits one of the patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def candidates(path: Path) -> list[list[Candidate]]:
    """The checkpoints that a path could name.

    Args:
        path: A folder (TensorFlow's SavedModel and the first releases of sentence-transformers have
            the weights one below), a file of a checkpoint, a prefix such as `bert_model.ckpt`, or
            an archive.

    Returns:
        For each format the files that could be it, best format first. A file with the libraries'
        usual name, or the one that TensorFlow's `checkpoint` file names, is the only one.

    Raises:
        InputError: There is no such path, it has no known format, it cannot be read, or an index
            in it is damaged.
    """
    if not path.is_dir():
        return [[_of_file(path)]]
    saved_model = [path / "variables"] if (path / "saved_model.pb").is_file() else []
    modules = sorted(path.glob("0_*")) if (path / "modules.json").is_file() else []
    for folder in (path, *saved_model, *modules):
        if folder.is_dir() and (choices := _in_folder(folder)):
            return choices
    places = sorted(path.iterdir())
    files = [place.name for place in places if place.is_file()]
    inside = next((place for place in places if place.is_dir() and any(_in_folder(place))), None)
    raise InputError(
        f"{path} has {listing(files, 'file')} and no checkpoint ({_KNOWN}). "
        f"Give {inside or 'the folder or the file with the weights'}."
    )


def _of_file(path: Path) -> Candidate:
    """The checkpoint that a file or a TensorFlow prefix belongs to, or the archive."""
    index = index_of(path)
    if index is not None:
        return Candidate(index, "tf1")
    if not path.exists():
        raise InputError(
            f"{path} does not exist. Check the path, or give a hub id "
            "(google-bert/bert-base-cased)."
        )
    if not path.is_file():
        raise InputError(f"{path} is no regular file. Give a file or a folder.")
    if path.name == _STATE_FILE and (named := _named_in_state(path.parent)):
        return Candidate(named, "tf1")
    if path.suffix == ".json" and not path.name.endswith(_INDEX):
        raise InputError(f"{path} holds no weights. Give the folder {path.parent}.")
    if _SHARD.search(path.name) and (home := _index_naming(path)):
        path = home
    kind = format_of(path)
    if kind is None and is_archive(path):
        return Candidate(path, "archive")
    if kind is None:
        start = read_at(path, 0, 8)
        if start[:1] == b"\x80":  # the start of a pickle, and PyTorch's oldest files are pickles
            return Candidate(path, "torch")
        raise InputError(
            f"{path} begins with {start.hex(' ') or 'no byte'}, which is no known format "
            f"({_KNOWN}, zip, tar). Download it again, or give the checkpoint's folder."
        )
    return Candidate(path, kind)


def _in_folder(folder: Path) -> list[list[Candidate]]:
    """The checkpoints of a folder itself, as in `candidates`."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror}).") from None
    indexes = [path for path in files if path.name.endswith(_INDEX)]
    shards = {shard for index in indexes for shard in shards_of(index)}
    by_format: dict[str, list[Candidate]] = {name: [] for name in FORMATS}
    for path in files:
        if path in shards or matches(path.name, (".*", *LEFTOVERS)):
            continue
        kind = None if path.suffix == ".json" and path not in indexes else format_of(path)
        if kind is not None:
            by_format[kind].append(Candidate(path, kind))
    choices = [_by_name(folder, name, some) for name, some in by_format.items() if some]
    return choices or [[Candidate(path, "archive")] for path in files if is_archive(path)]


def several(files: Iterable[Candidate]) -> InputError:
    """The error for several checkpoints without a way to choose."""
    names = ", ".join(file.path.name for file in files)
    return InputError(f"The folder has checkpoints that differ: {names:.300}. Give one file.")


def _by_name(folder: Path, kind: str, files: list[Candidate]) -> list[Candidate]:
    if kind == "tf1" and len(files) > 1 and (named := _named_in_state(folder)):
        return [Candidate(named, "tf1")]
    name = FORMATS[kind].name
    usual = [file for file in files if file.path.name in (name, name + _INDEX)]
    return usual[:1] or files


def _named_in_state(folder: Path) -> Path | None:
    """The index that a `checkpoint` file names; its folder is of another machine."""
    text = read_at(folder / _STATE_FILE, 0, _MAX_STATE_BYTES).decode(errors="replace")
    name = re.split(r"[/\\]", match[1])[-1] if (match := _STATE.search(text)) else ""
    index = folder / f"{name}.index"
    return index if name and index.is_file() else None


def _index_naming(shard: Path) -> Path | None:
    """The index in a shard's folder that lists it."""
    indexes = sorted(shard.parent.glob(f"*{_INDEX}"))
    return next((index for index in indexes if shard in shards_of(index)), None)
