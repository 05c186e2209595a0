"""Which checkpoint a path means, and in which format it is: by signature, not by name.

Names only decide where nothing else can: which of several files a folder's checkpoint is, and which
reader says what is wrong with a file whose first bytes are damaged.
"""

from __future__ import annotations

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
#: What training loops leave beside the weights, in PyTorch's format.
LEFTOVERS = re.compile(
    r"(optimizer|scheduler|scaler)\.(pt|bin)|training_args\.bin|rng_state(_[0-9]+)?\.pth"
)
_SHOWN = 8


@dataclass(frozen=True)
class Format:
    """One format of checkpoint files."""

    read: Callable[[Path], Checkpoint]
    is_file: Callable[[Path], bool]
    """Whether a file has the format's signature; False for what is no file or cannot be read."""
    suffix: str
    """A regular expression of the suffixes that promise it."""
    name: str
    """What the libraries call its file in a folder, without `.index.json`."""


#: In the order in which they are preferred where a folder has several. PyTorch's come first: the
#: others were mostly converted from them.
FORMATS = {
    "safetensors": Format(read_safetensors, is_safetensors, r"\.safetensors", "model.safetensors"),
    "torch": Format(read_torch, is_torch, r"\.(bin|pt|pth|ep[0-9]*|pkl)", "pytorch_model.bin"),
    "flax": Format(read_flax, is_flax, r"\.msgpack", "flax_model.msgpack"),
    "h5": Format(read_h5, is_h5, r"\.(h5|hdf5)", "tf_model.h5"),
    "tf1": Format(read_tf1, is_tf1, r"\.index", "bert_model.ckpt.index"),
}


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
        if not read_at(self.path, 0, 1):  # a pipe would be waited for
            raise InputError(
                f"{self.path} is empty or cannot be read", "a checkpoint", "download it again"
            )
        if self.path.suffix != ".json":
            whole = read(self.path)
            return replace(whole, format=self.format, files=whole.files or (self.path,))
        weight_map = read_shard_index(self.path)
        shards = {file: read(file) for file in sorted(set(weight_map.values()))}
        names = {file: shard.tensors.keys() for file, shard in shards.items()}
        if self.format == "h5":
            # The index begins each name with the model's, which the files leave out.
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
    """The format of a file: by its signature, else by its name; None if neither tells.

    Args:
        path: A file, or the index of several.
    """
    if path.name.endswith(_INDEX):
        # By the first shard: an index says nothing of the format.
        return format_of(shards_of(path)[0])
    for name, known in FORMATS.items():
        if known.is_file(path):
            return name
    for name, known in FORMATS.items():
        if re.fullmatch(known.suffix, path.suffix):
            return name  # its reader says what is wrong with it
    return None


def candidates(path: Path) -> list[list[Candidate]]:
    """The checkpoints that a path could mean.

    Args:
        path: A folder (TensorFlow's SavedModel and the first releases of sentence-transformers have
            the weights one below), a file of a checkpoint, a prefix such as `bert_model.ckpt`, or
            an archive.

    Returns:
        For each format the files that could be it, best format first. Where a format has a file by
        the name that the libraries give it, there is this one alone; so there is where
        TensorFlow's `checkpoint` file names the newest.

    Raises:
        InputError: There is no such path, nothing in it is in a known format, it cannot be read, or
            an index in it is damaged.
    """
    if not path.is_dir():
        return [[_of_file(path)]]
    choices = _in_folder(path)
    if not choices and (path / "saved_model.pb").is_file() and (path / "variables").is_dir():
        choices = _in_folder(path / "variables")
    if not choices and (path / "modules.json").is_file():
        below = [folder for folder in sorted(path.glob("0_*")) if folder.is_dir()]
        choices = _in_folder(below[0]) if below else []
    if not choices:
        files = [place.name for place in sorted(path.iterdir()) if place.is_file()]
        folders = (place for place in sorted(path.iterdir()) if place.is_dir())
        inside = next((place for place in folders if any(_in_folder(place))), None)
        given = f"{path} has no checkpoint, but {listing(files, 'file')}"
        expected = f"weights in one of the formats {', '.join(FORMATS)}"
        raise InputError(
            given, expected, f"give {inside or 'the folder or the file with the weights'}"
        )
    return choices


def _of_file(path: Path) -> Candidate:
    """The checkpoint that a file or a TensorFlow prefix belongs to, or the archive."""
    index = index_of(path)
    if index is not None:
        return Candidate(index, "tf1")
    if not path.exists():
        raise InputError(
            f"there is no {path}",
            "a folder, a checkpoint's prefix (bert_model.ckpt), a file or an archive",
            "check the path; a model of the hub is named by its id (google-bert/bert-base-cased)",
        )
    if not path.is_file():
        raise InputError(f"{path} is no regular file", "a file", "give a file or a folder")
    if path.name == _STATE_FILE and (named := _named_in_state(path.parent)):
        return Candidate(named, "tf1")
    if path.suffix == ".json" and not path.name.endswith(_INDEX):
        raise InputError(
            f"{path} holds no tensors", "a file of weights", f"give the folder {path.parent}"
        )
    if _SHARD.search(path.name) and (home := _index_naming(path)):
        path = home
    kind = format_of(path)
    if kind is None and is_archive(path):
        return Candidate(path, "archive")
    if kind is None:
        start = read_at(path, 0, 8)
        if start[:1] == b"\x80":  # how a pickle begins, and PyTorch's oldest files are pickles
            return Candidate(path, "torch")
        raise InputError(
            f"{path} is in no known format (it begins with {start.hex(' ') or 'nothing'})",
            f"a checkpoint ({', '.join(FORMATS)}), or a zip or tar archive of one",
            "get the file again, or give the checkpoint's folder",
        )
    return Candidate(path, kind)


def _in_folder(folder: Path) -> list[list[Candidate]]:
    """The checkpoints of a folder itself, as `candidates` gives them."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise InputError(
            f"{folder} cannot be read ({error.strerror})", "a folder of files", "check it"
        ) from None
    indexes = [path for path in files if path.name.endswith(_INDEX)]
    shards = {shard for index in indexes for shard in shards_of(index)}
    by_format: dict[str, list[Candidate]] = {name: [] for name in FORMATS}
    for path in files:
        if path in shards or path.name.startswith(".") or LEFTOVERS.fullmatch(path.name):
            continue
        kind = None if path.suffix == ".json" and path not in indexes else format_of(path)
        if kind is not None:
            by_format[kind].append(Candidate(path, kind))
    choices = [_by_name(folder, name, some) for name, some in by_format.items() if some]
    return choices or [[Candidate(path, "archive")] for path in files if is_archive(path)]


def several(files: Iterable[Candidate]) -> InputError:
    """The error for checkpoints of which none is the one that is meant."""
    names = [file.path.name for file in files]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    listed = f"{', '.join(names[:_SHOWN])}{more}"
    given = f"the folder has several checkpoints that differ ({listed})"
    return InputError(given, "one", "give the file that you mean")


def _by_name(folder: Path, kind: str, files: list[Candidate]) -> list[Candidate]:
    if kind == "tf1" and len(files) > 1 and (named := _named_in_state(folder)):
        return [Candidate(named, "tf1")]
    name = FORMATS[kind].name
    usual = [file for file in files if file.path.name in (name, name + _INDEX)]
    return usual[:1] or files


def _named_in_state(folder: Path) -> Path | None:
    """The index that a `checkpoint` file names; its path is of the machine that wrote it."""
    text = read_at(folder / _STATE_FILE, 0, _MAX_STATE_BYTES).decode(errors="replace")
    name = re.split(r"[/\\]", match[1])[-1] if (match := _STATE.search(text)) else ""
    index = folder / f"{name}.index"
    return index if name and index.is_file() else None


def _index_naming(shard: Path) -> Path | None:
    """The index beside a shard that lists it."""
    indexes = sorted(shard.parent.glob(f"*{_INDEX}"))
    return next((index for index in indexes if shard in shards_of(index)), None)
