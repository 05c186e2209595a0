"""An opened source: the checkpoint's tensors, its config and the files next to it."""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import parse_json
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS, EXTENDED_MODEL_TYPE

from .formats import Candidate, candidates, several
from .from_hub import fetch, is_hub_id, missing_format
from .maps.codertimo import CODERTIMO
from .maps.tables import detect
from .options import LoadOptions
from .planning import Plan, plan, same_bits
from .readers.archive import open_archive
from .readers.mapped import read_at
from .tensors import Checkpoint

#: The preferred name first.
CONFIG_NAMES = ("config.json", "bert_config.json")
_TOKENIZER_NAMES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
_MAX_JSON_BYTES = 64 << 20
#: The field that distinguishes a config from other JSON files.
_CONFIG_FIELD = "num_attention_heads"


@dataclass(frozen=True)
class Source:
    """An opened checkpoint. `plan` raises an error if it holds no BERT."""

    given: Path
    """The path of the user; the folder in the cache for a hub id."""
    hub_id: str | None
    archive: Path | None
    """The archive that it was unpacked from."""
    places: tuple[Path, ...]
    """Its own folders, where its config and vocabulary may be, the nearest first."""
    checkpoint: Checkpoint
    others: tuple[Candidate, ...]
    """Checkpoints of other formats in the same folder."""
    options: LoadOptions
    notes: Sequence[str]
    """Choices of files that the user should check."""

    @property
    def name(self) -> str:
        """The hub id, or the last part of the path."""
        return self.hub_id or self.given.resolve().name

    @functools.cached_property
    def plan(self) -> Plan:
        """The fate of every tensor, for any head."""
        return plan(detect(self.checkpoint.tensors), self.checkpoint.tensors)

    @functools.cached_property
    def config_file(self) -> Path | None:
        """The config of the options, or else the one next to the checkpoint."""
        if self.options.config is None:
            return _find(self.places)
        path = Path(self.options.config).expanduser()
        check_path(path)
        file = _find([path]) if path.is_dir() else path
        if file is None or not file.is_file():
            raise InputError(f"`config` is {path}, which has no config. Check the path.", "config")
        return file

    @property
    def folders(self) -> tuple[Path, ...]:
        """`places`, and the config's folder last."""
        more = (self.config_file.parent,) if self.config_file else ()
        return tuple(dict.fromkeys((*self.places, *more)))

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """Fields of the file and constants of the software; {} without a file."""
        file, heads = self.config_file, self.options.num_attention_heads
        fields = {} if file is None else read_object(file)
        kind = fields.get("model_type")
        if kind not in (None, "bert", EXTENDED_MODEL_TYPE):
            raise InputError(f"{file} has model_type {str(kind)[:60]!r}. Use a BERT checkpoint.")
        if self.plan.table is CODERTIMO:
            fields = {**CODERTIMO_FIELDS, **_codertimo_sizes(self.checkpoint), **fields}
        if heads is not None and (said := fields.setdefault(_CONFIG_FIELD, heads)) != heads:
            raise InputError(
                f"`num_attention_heads` is {heads}, but the config has {said}. Leave it out.",
                "num_attention_heads",
            )
        if self.options.hidden_act is not None:
            fields["hidden_act"] = self.options.hidden_act
        return fields


@contextlib.contextmanager
def open_source(
    path: Path | str, options: LoadOptions | None = None, every: bool = False
) -> Iterator[Source]:
    """Find and open a checkpoint.

    Args:
        path: A folder, a TensorFlow prefix, a file, an archive, or a hub id. An archive is unpacked
            into a temporary folder, which is removed at the end.
        options: How it is read.
        every: Whether all formats are fetched from the hub.

    Raises:
        InputError: There is no checkpoint, or more than one, or it is damaged.
    """
    options = options or LoadOptions()
    revision, from_format = options.revision, options.from_format
    where, hub_id, archive = Path(path).expanduser(), None, None
    check_path(where)
    if is_hub_id(path):
        hub_id = str(path)
        where = fetch(hub_id, revision, from_format, every)
    elif revision is not None:
        raise InputError(f"`revision` needs a hub id, but {path} is a path. Remove it.", "revision")
    start = where
    _check_links(where)
    choices = candidates(where)
    with contextlib.ExitStack() as stack:
        if choices[0][0].format == "archive":
            archive = choices[0][0].path
            if len(choices) > 1:
                raise several(files[0] for files in choices)
            into = stack.enter_context(tempfile.TemporaryDirectory(prefix="hf-bert-convert-"))
            where = open_archive(archive, Path(into))
            choices = candidates(where)
            if choices[0][0].format == "archive":
                raise InputError(f"{archive} holds another archive. Unpack it, and give that one.")
        if from_format is not None:
            kinds = [files[0].format for files in choices]
            if from_format not in kinds:
                raise missing_format(hub_id or start, from_format, kinds)
            choices.sort(key=lambda files: files[0].format != from_format)
        checkpoint = _choose(choices[0])
        folder = checkpoint.files[0].parent
        places = tuple(dict.fromkeys((folder, where if where.is_dir() else where.parent)))
        others = tuple(files[0] for files in choices[1:] if len(files) == 1)
        notes = [f"{hub_id} of the hub, commit {start.name}"] if hub_id else []
        if archive is not None:
            notes += _take_from_beside(archive, places, options.config)
        yield Source(start, hub_id, archive, places, checkpoint, others, options, notes)


def check_path(path: Path) -> None:
    """Check that a path can be looked up; it may not exist.

    Raises:
        InputError: Its name is too long, or it is a link to itself.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise InputError(f"{str(path)[:80]} cannot be read ({error.strerror}).") from None


def _check_links(place: Path) -> None:
    """Refuse a link to nothing or to itself, which would count as a file that is not there."""
    is_folder, known = place.is_dir(), (*CONFIG_NAMES, *_TOKENIZER_NAMES)
    for path in sorted((place if is_folder else place.parent).glob("[!.]*")):
        if path.is_symlink() and not path.exists() and (is_folder or path.name in known):
            raise InputError(
                f"{path} is a link to nothing. Copy the files behind the links too (cp -rL), or "
                "remove it."
            )


def _choose(files: list[Candidate]) -> Checkpoint:
    """The checkpoint to read, with the attributes of all.

    Several files are one model if their common tensors are equal bit for bit, and the most complete
    one is read. For example, codertimo's trainer writes the encoder alone, and its users save a
    state dict with the heads next to it.
    """
    read = [file.read() for file in files]
    if len(read) == 1:
        return read[0]
    plans = [plan(detect(one.tensors), one.tensors).tensors for one in read]
    number = max(range(len(read)), key=lambda n: (len(plans[n]), len(read[n].attributes)))
    best = plans[number]
    for other in plans:
        if not all(name in best and same_bits(best[name], t) for name, t in other.items()):
            raise several(files)
    attributes = {name: value for one in read for name, value in one.attributes.items()}
    return replace(read[number], attributes=attributes)


def _codertimo_sizes(checkpoint: Checkpoint) -> dict[str, Any]:
    """Config fields from the attributes of a pickled module (bert_pytorch/model/bert.py)."""
    fields: dict[str, Any] = {}
    for name, value in checkpoint.attributes.items():
        # The attributes of BERT itself, or of a BERTLM with a `bert`.
        if name in ("attn_heads", "bert.attn_heads") and isinstance(value, int):
            fields.setdefault(_CONFIG_FIELD, value)
        if name.endswith("embedding.dropout.p") and isinstance(value, float):
            fields.setdefault("hidden_dropout_prob", value)
            fields.setdefault("attention_probs_dropout_prob", value)
    return fields


def _find(folders: Iterable[Path]) -> Path | None:
    """The config in the first of the folders that has one."""
    for folder in dict.fromkeys(folders):
        for name in CONFIG_NAMES:
            if (folder / name).is_file():
                return folder / name
        configs = [path for path in sorted(folder.glob("*.json")) if _is_config(path)]
        if len(configs) > 1:
            names = ", ".join(path.name for path in configs)
            raise InputError(
                f"The checkpoint has several configs ({names}). Choose one with `config`.",
                "config",
            )
        if configs:
            return configs[0]
    return None


def _is_config(path: Path) -> bool:
    try:
        return path.is_file() and _CONFIG_FIELD in read_object(path)
    except InputError:
        return False  # another kind of JSON file


def _take_from_beside(
    archive: Path, places: Sequence[Path], config: Path | str | None
) -> Iterator[str]:
    """Copy the config and the vocabulary that an archive lacks from its own folder.

    Only files named after the archive, as bert-base-uncased-vocab.txt is, or with a usual name:
    others may be of any model.

    Yields:
        A note on each file with a usual name.
    """
    stem = re.escape(re.sub(r"(\.tar)?\.\w+$", "", archive.name))
    has_vocabulary = any(
        any(place.glob("*vocab*")) or (place / "tokenizer.json").is_file() for place in places
    )
    for is_there, names, own in (
        (config or _find(places), CONFIG_NAMES, r"([-_.](bert_)?config)?\.json"),
        (has_vocabulary, _TOKENIZER_NAMES, r"[-_.](vocab\.txt|tokenizer\.json)"),
    ):
        files = [path for path in sorted(archive.parent.iterdir()) if path.is_file()]
        named = [path for path in files if re.fullmatch(stem + own, path.name)]
        for path in [] if is_there else named or [path for path in files if path.name in names]:
            shutil.copyfile(path, places[0] / path.name)
            if path not in named:
                yield (
                    f"{archive.name} has no {path.name}: the one beside it was taken, which may be "
                    "another model's"
                )


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from the checkpoint's folder, of limited size."""
    return dict(parse_json(read_at(path, 0, _MAX_JSON_BYTES), str(path)))
