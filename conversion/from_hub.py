"""A checkpoint of the Hugging Face hub: the files that a conversion needs, and their folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from hf_bert_impl.errors import InputError, one_line

from .formats import FORMATS, LEFTOVERS
from .planning import listing
from .readers.tf1 import index_of

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_LONGEST_ID = 96
#: Endings of file names, which no hub id has.
_FILE = re.compile(
    r".*\.(ckpt|json|zip|tar|gz|tgz|npz|" + r"bin|pt|pth|pkl|msgpack|h5|safetensors)"
)
#: Config, tokenizer, and the further modules of a sentence model. Tokenizers of other classes than
#: BERT's have models of sentencepiece, dictionaries and code.
_COMPANIONS = re.compile(
    r"[^/]+\.(json|txt|model|spm|vocab|bpe|dic|tiktoken|jinja|py)|[0-9]+_[^/]+/.*"
)
#: sentence-transformers' first releases kept the weights one folder below.
_BELOW = re.compile(r"0_[^/]+/[^/]+\.(bin|safetensors)")
_TF1_PART = re.compile(r"[^/]+\.(index|data-[0-9]{5}-of-[0-9]{5})|checkpoint")
_SHARD = re.compile(r"-[0-9]{5}-of-[0-9]{5}$")


def is_hub_id(path: Path | str) -> bool:
    """Whether a name that does not exist here can be a hub id."""
    text = str(path)
    if len(text) > _LONGEST_ID or _ID.fullmatch(text) is None or _FILE.fullmatch(text):
        return False
    here = Path(text)
    owner = here.parent if "/" in text else None
    return not here.exists() and index_of(here) is None and not (owner and owner.exists())


def fetch(
    name: str, revision: str | None = None, from_format: str | None = None, every: bool = False
) -> Path:
    """Fetch the files of a repository that a conversion needs, and no other weights.

    Args:
        name: The hub id.
        revision: A branch, a tag or a commit; None for the newest.
        from_format: A key of `FORMATS`; None for the best available one.
        every: Whether all available formats are fetched.

    Returns:
        The folder in the hub's cache; its name is the commit's.

    Raises:
        InputError: There is no such repository, revision or format, it is not open to this user,
            or the hub cannot be reached and the cache has no copy.
    """
    from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    try:
        info = HfApi().model_info(name, revision=revision)
        files = [sibling.rfilename for sibling in info.siblings or ()]
        needed = _needed(name, files, from_format, every)
        return Path(snapshot_download(name, revision=revision, allow_patterns=needed))
    except HfHubHTTPError as error:
        raise _explained(name, revision, error) from error
    except (OSError, HTTPError) as error:  # no answer
        config = try_to_load_from_cache(name, "config.json", revision=revision)
        if not isinstance(config, str):  # no copy in the cache
            raise _explained(name, revision, error) from error
        return Path(config).parent


def _needed(name: str, files: list[str], from_format: str | None, every: bool) -> list[str]:
    weights = {kind: _weights(kind, files) for kind in FORMATS}
    available = [kind for kind, some in weights.items() if some]
    if not available and not any(map(_BELOW.fullmatch, files)):
        raise InputError(
            f"{name} on the hub has {listing(files, 'file')} and no weights "
            f"({', '.join(FORMATS)}). Choose another model."
        )
    if from_format is not None and from_format not in available:
        raise missing_format(name, from_format, available)
    chosen = available if every else [from_format] if from_format else available[:1]
    fetched = {file for kind in chosen for file in weights[kind]}
    others = {file for some in weights.values() for file in some} - fetched
    # An index without its shards would be read as a damaged checkpoint.
    others |= {file for file in files if file.endswith(".index.json")} - fetched
    companions = {file for file in files if _COMPANIONS.fullmatch(file)} - others
    return [file for file in files if file in fetched | companions]


def _weights(kind: str, files: Iterable[str]) -> list[str]:
    """A format's files in the repository's top folder: only the usual name, or else all."""
    known = FORMATS[kind]
    if kind == "tf1":
        parts = [file for file in files if _TF1_PART.fullmatch(file)]
        return parts if any(file.endswith(".index") for file in parts) else []
    index, stem = f"{known.name}.index.json", PurePosixPath(known.name).stem
    matching = [
        file
        for file in files
        if "/" not in file
        and not LEFTOVERS.fullmatch(file)
        and (file == index or re.fullmatch(known.suffix, PurePosixPath(file).suffix))
    ]
    usual = [f for f in matching if f == index or _SHARD.sub("", PurePosixPath(f).stem) == stem]
    return usual or matching


def missing_format(name: object, from_format: str, available: Iterable[str]) -> InputError:
    """The error for a format that a source does not have."""
    choices = ", ".join(available)
    return InputError(f"{name} has no {from_format} weights. Choose `from_format` from: {choices}.")


def _explained(name: str, revision: str | None, error: Exception) -> InputError:
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    match error:
        case GatedRepoError():
            said = f"{name} on the hub is gated. Ask for access on its page, and set HF_TOKEN."
        case RepositoryNotFoundError():
            said = f"{name} is no path, and no model on the hub. Check the name, and HF_TOKEN."
        case RevisionNotFoundError():
            said = f"{name} on the hub has no revision {revision!r}. Check `revision`."
        case _:
            said = f"{name} is no path, and the hub cannot be read ({one_line(error)[:200]}). "
            said += "Check the path, the connection and HF_HUB_OFFLINE."
    return InputError(said)
