"""A checkpoint of the Hugging Face hub: the files of one format, and their folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

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
#: Patterns of each format's files. The best format first.
_WEIGHTS = {
    kind: (*(f"*{suffix}" for suffix in form.suffixes), f"{form.name}.index.json")
    for kind, form in FORMATS.items()
}
_WEIGHTS["tf1"] += ("*.data-*-of-*", "checkpoint")
#: The further modules of a sentence model, in folders.
_MODULES = "[0-9]*_*/*"
#: Config, tokenizer and modules. Tokenizers of other classes than BERT's have models of
#: sentencepiece, dictionaries and code.
_COMPANIONS = (
    *("*config*.json", "*token*.json", "modules.json", "*vocab*", "*.txt", "*.model", "*.spm"),
    *("*.bpe", "*.dic", "*.tiktoken", "*.jinja", "*.py", _MODULES),
)
#: Other folders, and files without weights.
_IGNORED = ("[!0-9]*/*", *LEFTOVERS)


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
        files = [
            item.rfilename for item in HfApi().model_info(name, revision=revision).siblings or ()
        ]
        patterns = [*_weights(name, files, from_format, every), *_COMPANIONS]
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=patterns, ignore_patterns=[*_IGNORED]
            )
        )
    except HfHubHTTPError as error:
        raise _explained(name, revision, error) from error
    except (OSError, HTTPError) as error:  # no answer
        config = try_to_load_from_cache(name, "config.json", revision=revision)
        if not isinstance(config, str):  # no copy in the cache
            raise _explained(name, revision, error) from error
        return Path(config).parent


def _weights(name: str, files: list[str], from_format: str | None, every: bool) -> list[str]:
    """The patterns of the weights to fetch, all in the repository's top folder."""
    top = [file for file in files if "/" not in file]
    available = [kind for kind, patterns in _WEIGHTS.items() if any(_matching(top, patterns))]
    if not available and not any(_matching(files, [_MODULES])):
        raise InputError(
            f"{name} on the hub has {listing(files, 'file')} and no weights "
            f"({', '.join(_WEIGHTS)}). Choose another model."
        )
    if from_format is not None and from_format not in available:
        raise missing_format(name, from_format, available)
    chosen = available if every else [from_format] if from_format else available[:1]
    return [pattern for kind in chosen for pattern in _WEIGHTS[kind]]


def _matching(files: Iterable[str], patterns: Iterable[str]) -> Iterable[str]:
    from huggingface_hub.utils import filter_repo_objects

    return filter_repo_objects(files, allow_patterns=[*patterns], ignore_patterns=[*_IGNORED])


def missing_format(name: object, from_format: str, available: Iterable[str]) -> InputError:
    """The error for a format that a source does not have."""
    choices = ", ".join(available)
    return InputError(
        f"{name} has no {from_format} weights. Choose `from_format` from: {choices}.", "from_format"
    )


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
            said = (
                f"{name} is not a path, and no model on the hub has this name. Check the name, "
                "and HF_TOKEN."
            )
        case RevisionNotFoundError():
            said = f"{name} on the hub has no revision {revision!r}. Check `revision`."
        case _:
            said = f"{name} is not a path, and the hub cannot be read ({one_line(error)[:200]}). "
            said += "Check the path, the connection and HF_HUB_OFFLINE."
    return InputError(said)
