"""A checkpoint of the Hugging Face hub: which of a repository's files are fetched, and where to."""

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
#: Endings of what can only be a file.
_FILE = re.compile(
    r".*\.(ckpt|json|zip|tar|gz|tgz|npz|" + r"bin|pt|pth|pkl|msgpack|h5|safetensors)"
)
#: What a checkpoint is converted with: config, tokenizer, the further modules of a sentence model.
#: Tokenizers of other classes than BERT's have models of sentencepiece, dictionaries and code.
_BESIDE = re.compile(r"[^/]+\.(json|txt|model|spm|vocab|bpe|dic|tiktoken|jinja|py)|[0-9]+_[^/]+/.*")
#: The weights of sentence-transformers' first releases lie one below.
_BELOW = re.compile(r"0_[^/]+/[^/]+\.(bin|safetensors)")
_TF1_PART = re.compile(r"[^/]+\.(index|data-[0-9]{5}-of-[0-9]{5})|checkpoint")
_SHARD = re.compile(r"-[0-9]{5}-of-[0-9]{5}$")


def is_hub_id(path: Path | str) -> bool:
    """Whether a name that is nothing here can be one of the hub's."""
    text = str(path)
    if len(text) > _LONGEST_ID or _ID.fullmatch(text) is None or _FILE.fullmatch(text):
        return False
    here = Path(text)
    owner = here.parent if "/" in text else None
    return not here.exists() and index_of(here) is None and not (owner and owner.exists())


def fetch(
    name: str, revision: str | None = None, from_format: str | None = None, every: bool = False
) -> Path:
    """Fetches what a conversion needs of a repository, and no other weights.

    Args:
        name: The hub id.
        revision: A branch, a tag or a commit; None for the newest.
        from_format: A key of `FORMATS`; None for the best that is there.
        every: All formats that are there.

    Returns:
        The folder in the hub's cache; its name is the commit's.

    Raises:
        InputError: There is no such repository, revision or format, it is not open to this user,
            or the hub cannot be reached and nothing was fetched before.
    """
    from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    try:
        files = [it.rfilename for it in HfApi().model_info(name, revision=revision).siblings or ()]
        wanted = _wanted(name, files, from_format, every)
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
    except HfHubHTTPError as error:
        raise _explained(name, revision, error) from error
    except (OSError, HTTPError) as error:  # no answer
        config = try_to_load_from_cache(name, "config.json", revision=revision)
        if not isinstance(config, str):  # nothing was fetched before
            raise _explained(name, revision, error) from error
        return Path(config).parent


def _wanted(name: str, files: list[str], from_format: str | None, every: bool) -> list[str]:
    """The files to fetch."""
    weights = {kind: _weights(kind, files) for kind in FORMATS}
    there = [kind for kind, found in weights.items() if found]
    below = [file for file in files if _BELOW.fullmatch(file)]
    if not there and not below:
        raise InputError(
            f"{name} on the hub has no weights that can be read, but {listing(files, 'file')}",
            f"weights in one of the formats {', '.join(FORMATS)}",
            "name another model",
        )
    if from_format is not None and from_format not in there:
        raise missing_format(name, from_format, there)
    chosen = there if every else [from_format] if from_format else there[:1]
    fetched = {file for kind in chosen for file in weights[kind]}
    others = {file for found in weights.values() for file in found} - fetched
    # An index without its shards would be taken for a damaged checkpoint.
    others |= {file for file in files if file.endswith(".index.json")} - fetched
    beside = {file for file in files if _BESIDE.fullmatch(file)} - others
    return [file for file in files if file in fetched | beside]


def _weights(kind: str, files: Iterable[str]) -> list[str]:
    """A format's files in the repository's own folder: those of the usual name, or else all."""
    known = FORMATS[kind]
    if kind == "tf1":
        found = [file for file in files if _TF1_PART.fullmatch(file)]
        return found if any(file.endswith(".index") for file in found) else []
    index, stem = f"{known.name}.index.json", PurePosixPath(known.name).stem
    found = [
        file
        for file in files
        if "/" not in file
        and not LEFTOVERS.fullmatch(file)
        and (file == index or re.fullmatch(known.suffix, PurePosixPath(file).suffix))
    ]
    usual = [f for f in found if f == index or _SHARD.sub("", PurePosixPath(f).stem) == stem]
    return usual or found


def missing_format(name: object, from_format: str, there: Iterable[str]) -> InputError:
    """The error for a format that a source does not have."""
    given = f"`from_format` is {from_format!r}, which {name} does not have"
    return InputError(given, f"one that it has ({', '.join(there)})", "choose one of these")


def _explained(name: str, revision: str | None, error: Exception) -> InputError:
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    nothing = f"there is no file or folder {name}"
    match error:
        case GatedRepoError():
            given, expected = f"{name} on the hub is gated", "the token of somebody who was let in"
            remedy = "ask for access on its page, and set HF_TOKEN"
        case RepositoryNotFoundError():
            given = f"{nothing}, nor a model of this name on the hub"
            expected = "a path, or a hub id (google-bert/bert-base-cased)"
            remedy = "check the name, and HF_TOKEN for a private model"
        case RevisionNotFoundError():
            given = f"{name} on the hub has no revision {revision!r}"
            expected, remedy = "a branch, a tag or a commit", "check `revision`"
        case _:
            given = f"{nothing}, and the hub could not be read ({one_line(error)[:200]})"
            expected = "a path, or a hub id and a connection"
            remedy = "check the path or the connection, and HF_HUB_OFFLINE"
    return InputError(given, expected, remedy)
