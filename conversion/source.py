"""An opened source: the checkpoint's tensors, its config and what else came with it."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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

#: In the order in which they are preferred.
CONFIG_NAMES = ("config.json", "bert_config.json")
_MAX_JSON_BYTES = 64 << 20
#: By which a config is told from other JSON files.
_CONFIG_FIELD = "num_attention_heads"


@dataclass(frozen=True)
class Source:
    """An opened checkpoint. Whether it is one of BERT shows when `plan` is asked for."""

    given: Path
    """What the user named; of the hub's models what was fetched."""
    hub_id: str | None
    archive: Path | None
    """The archive that it was unpacked from."""
    places: tuple[Path, ...]
    """Where to look for what came with it, nearest first."""
    checkpoint: Checkpoint
    siblings: tuple[Checkpoint, ...]
    """All checkpoints of the same model, `checkpoint` among them."""
    others: tuple[Candidate, ...]
    """Checkpoints of other formats beside it."""
    options: LoadOptions

    @property
    def name(self) -> str:
        """The hub id, or the last part of the path."""
        return self.hub_id or self.given.resolve().name

    @functools.cached_property
    def plan(self) -> Plan:
        """What becomes of every tensor, whatever the head."""
        return plan(detect(self.checkpoint.tensors), self.checkpoint.tensors)

    @functools.cached_property
    def config_file(self) -> Path | None:
        """The config that the user named, or that came with the checkpoint."""
        if self.options.config is None:
            return _find(self.places)
        path = Path(self.options.config).expanduser()
        file = _find([path]) if path.is_dir() else path
        if file is None or not file.is_file():
            given = f"`config` is {path}, where there is no config"
            raise InputError(given, "a JSON file with the sizes of the model", "check the path")
        return file

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where to look for what came with it, the config's folder last."""
        more = (self.config_file.parent,) if self.config_file else ()
        return tuple(dict.fromkeys((*self.places, *more)))

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """Its fields, from the file and from what the software has hard-wired; {} without one."""
        file, heads = self.config_file, self.options.num_attention_heads
        variant = self.plan.table is CODERTIMO
        fields = {} if file is None else _read_object(file)
        kind = fields.get("model_type")
        if kind not in (None, "bert", EXTENDED_MODEL_TYPE):
            raise InputError(
                f"{file} is the config of a {str(kind)[:60]!r}",
                "a BERT (model_type 'bert' or none)",
                "give the checkpoint of a BERT, or mend model_type",
            )
        if variant:
            fields = {**CODERTIMO_FIELDS, **_codertimo_sizes(self.siblings), **fields}
        if heads is not None and fields.setdefault(_CONFIG_FIELD, heads) != heads:
            given = f"`num_attention_heads` is {heads}, and the config says {fields[_CONFIG_FIELD]}"
            raise InputError(given, "one number", "leave it out, or mend the config")
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
            into a temporary folder, which is gone afterwards.
        options: How it is read.
        every: Whether all formats are fetched from the hub.

    Raises:
        InputError: There is no checkpoint, or more than one, or it is damaged.
    """
    options = options or LoadOptions()
    revision, from_format = options.revision, options.from_format
    where, hub_id, archive = Path(path).expanduser(), None, None
    try:
        where.exists()
    except OSError as error:  # a name that is too long, say
        given = f"{str(path)[:80]} cannot be read ({error.strerror})"
        raise InputError(given, "a path or a hub id", "check the name") from None
    if is_hub_id(path):
        hub_id = str(path)
        where = fetch(hub_id, revision, from_format, every)
    elif revision is not None:
        given = f"`revision` was given for {path}, which is a path"
        raise InputError(given, "it for a hub id alone", "leave it out")
    start = where
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
                raise InputError(
                    f"{archive} holds an archive and no checkpoint",
                    "an archive of a checkpoint",
                    "unpack it, and give what is inside",
                )
        if from_format is not None:
            kinds = [files[0].format for files in choices]
            if from_format not in kinds:
                raise missing_format(hub_id or start, from_format, kinds)
            choices.sort(key=lambda files: files[0].format != from_format)
        checkpoint, siblings = _choose(choices[0])
        homes = (place if place.is_dir() else place.parent for place in (where, start))
        places = tuple(dict.fromkeys((checkpoint.files[0].parent, *homes)))
        others = tuple(files[0] for files in choices[1:] if len(files) == 1)
        yield Source(start, hub_id, archive, places, checkpoint, siblings, others, options)


def _choose(files: list[Candidate]) -> tuple[Checkpoint, tuple[Checkpoint, ...]]:
    """The checkpoint to read, and all those that hold the same model (itself among them).

    Several files are one model if they agree bit for bit in what they have in common: codertimo's
    trainer writes the encoder alone, and people save its state dict and the heads beside it. The
    one with most of the model is taken.
    """
    # max takes the first of equals: prefer the one that knows its attention heads.
    found = sorted(
        (file.read() for file in files), key=lambda known: not _codertimo_sizes((known,))
    )
    if len(found) == 1:
        return found[0], (found[0],)
    plans = [plan(detect(known.tensors), known.tensors).tensors for known in found]
    place = max(range(len(plans)), key=lambda number: len(plans[number]))
    best = plans[place]
    for other in plans:
        if not all(name in best and same_bits(best[name], t) for name, t in other.items()):
            raise several(files)
    return found[place], tuple(found)


def _codertimo_sizes(checkpoints: tuple[Checkpoint, ...]) -> dict[str, Any]:
    """What the attributes of a pickled module tell of its config (bert_pytorch/model/bert.py)."""
    fields: dict[str, Any] = {}
    for checkpoint in checkpoints:
        for name, value in checkpoint.attributes.items():
            # The attributes are those of BERT, or of a BERTLM that holds one as `bert`.
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
            given = f"{folder} has several configs ({', '.join(path.name for path in configs)})"
            raise InputError(given, "one", "choose it with `config`")
        if configs:
            return configs[0]
    return None


def _is_config(path: Path) -> bool:
    try:
        return path.is_file() and _CONFIG_FIELD in _read_object(path)
    except InputError:
        return False  # some other JSON file, which is nobody's business here


def _read_object(path: Path) -> dict[str, Any]:
    remedy = "get the file again, or give another one with `config`"
    return read_object(path, "a JSON object with the sizes of the model", remedy)


def read_object(path: Path, expected: str, remedy: str) -> dict[str, Any]:
    """Read a JSON object that came with a checkpoint; what to say of anything else."""
    return dict(parse_json(read_at(path, 0, _MAX_JSON_BYTES), str(path), expected, dict, remedy))
