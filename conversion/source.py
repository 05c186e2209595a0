"""An opened source: the checkpoint's tensors, its config and what else came with it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
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
from .readers.mapped import read_small
from .tensors import Checkpoint

#: In the order in which they are preferred.
CONFIG_NAMES = ("config.json", "bert_config.json")
_MAX_JSON_BYTES = 64 << 20
#: By which a config is told from other JSON files.
_CONFIG_FIELD = "num_attention_heads"


@dataclass(frozen=True)
class Files:
    """A checkpoint of which nothing is known but its tensors."""

    given: Path
    """What the user named; of the hub's models what was fetched."""
    hub_id: str | None
    """The name of the hub's model."""
    archive: Path | None
    """The archive that it was unpacked from."""
    folders: tuple[Path, ...]
    """Where to look for what came with it, nearest first."""
    checkpoint: Checkpoint
    siblings: tuple[Checkpoint, ...]
    """All checkpoints of the same model, `checkpoint` among them."""
    others: tuple[Candidate, ...]
    """Checkpoints of other formats beside it."""

    @property
    def name(self) -> str:
        """The hub id, or the last part of the path."""
        return self.hub_id or self.given.resolve().name


@dataclass(frozen=True)
class Source(Files):
    """The checkpoint of a BERT."""

    plan: Plan
    """What becomes of every tensor, whatever the head."""
    config: dict[str, Any]
    """Its fields, from the file and from what the software has hard-wired; {} without a file."""
    config_file: Path | None


@contextlib.contextmanager
def open_files(
    path: Path | str, options: LoadOptions | None = None, every: bool = False
) -> Iterator[Files]:
    """Find and open a checkpoint, whatever its names.

    Args:
        path: A folder, a TensorFlow prefix, a file, an archive, or a hub id. An archive is unpacked
            into a temporary folder, which is gone afterwards.
        options: `revision` and `from_format` of these are read.
        every: Whether all formats are fetched from the hub.

    Yields:
        The open files.

    Raises:
        InputError: There is no checkpoint, or more than one, or it is damaged.
    """
    options = options or LoadOptions()
    revision, from_format = options.revision, options.from_format
    given, hub_id = Path(path).expanduser(), None
    try:
        given.exists()
    except OSError as error:  # a name that is too long, say
        raise InputError(
            f"{str(path)[:80]} cannot be read ({error.strerror})",
            "a path or a hub id",
            "check the name",
        ) from None
    if is_hub_id(path):
        hub_id = str(path)
        given = fetch(hub_id, revision, from_format, every)
    elif revision is not None:
        raise InputError(
            f"`revision` was given for {path}, which is a path",
            "it for a hub id alone",
            "leave it out",
        )
    with contextlib.ExitStack() as stack:
        archive, where = None, given
        choices = candidates(where)
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
                raise missing_format(hub_id or given, from_format, kinds)
            choices.sort(key=lambda files: files[0].format != from_format)
        checkpoint, siblings = _choose(choices[0])
        folders = [checkpoint.files[0].parent, where if where.is_dir() else where.parent]
        folders.append(given if given.is_dir() else given.parent)
        yield Files(
            given=given,
            hub_id=hub_id,
            archive=archive,
            folders=tuple(dict.fromkeys(folders)),
            checkpoint=checkpoint,
            siblings=siblings,
            others=tuple(files[0] for files in choices[1:] if len(files) == 1),
        )


@contextlib.contextmanager
def open_source(
    path: Path | str, options: LoadOptions | None = None, every: bool = False
) -> Iterator[Source]:
    """Find and open the checkpoint of a BERT; arguments as for `open_files`.

    Yields:
        The source.

    Raises:
        InputError: As for `open_files`; or it is no BERT, or the config is damaged.
    """
    options = options or LoadOptions()
    config, heads = options.config, options.num_attention_heads
    with open_files(path, options, every) as files:
        folders = list(files.folders)
        file = _config_file(Path(config).expanduser()) if config else _find(folders)
        if file is not None:
            folders.append(file.parent)
        whole = plan(detect(files.checkpoint.tensors), files.checkpoint.tensors)
        fields = _read_config(file) if file else {}
        if whole.table is CODERTIMO:
            fields = {**CODERTIMO_FIELDS, **_codertimo_sizes(files.siblings), **fields}
        if heads is not None:
            said = fields.setdefault(_CONFIG_FIELD, heads)
            if said != heads:
                raise InputError(
                    f"`num_attention_heads` is {heads}, and the config says {said}",
                    "one number",
                    "leave it out, or mend the config",
                )
        if options.hidden_act is not None:
            fields["hidden_act"] = options.hidden_act
        places = {**vars(files), "folders": tuple(dict.fromkeys(folders))}
        yield Source(**places, plan=whole, config=fields, config_file=file)


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


def _config_file(path: Path) -> Path:
    file = _find([path]) if path.is_dir() else path
    if file is None or not file.is_file():
        raise InputError(
            f"`config` is {path}, where there is no config",
            "a JSON file with the sizes of the model",
            "check the path",
        )
    return file


def _find(folders: list[Path]) -> Path | None:
    """The config in the first of the folders that has one."""
    for folder in dict.fromkeys(folders):
        for name in CONFIG_NAMES:
            if (folder / name).is_file():
                return folder / name
        configs = [path for path in sorted(folder.glob("*.json")) if _is_config(path)]
        if len(configs) > 1:
            raise InputError(
                f"{folder} has several configs ({', '.join(path.name for path in configs)})",
                "one",
                "choose it with `config`",
            )
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
    """Read a JSON object that came with a checkpoint.

    Args:
        path: The file.
        expected: What it should be, for errors.
        remedy: What to do about another one, for errors.

    Raises:
        InputError: It cannot be read, is too large, or is no JSON object.
    """
    content = read_small(path, _MAX_JSON_BYTES, expected)
    try:
        fields: dict[str, Any] = parse_json(content, str(path), expected)
    except ValueError as error:
        given = str(error).partition("; expected ")[0]
        raise InputError(given, expected, remedy) from None
    return fields


def _read_config(path: Path) -> dict[str, Any]:
    fields = _read_object(path)
    kind = fields.get("model_type")
    if kind not in (None, "bert", EXTENDED_MODEL_TYPE):
        raise InputError(
            f"{path} is the config of a {str(kind)[:60]!r}",
            "a BERT (model_type 'bert' or none)",
            "give the checkpoint of a BERT, or mend model_type",
        )
    return fields
