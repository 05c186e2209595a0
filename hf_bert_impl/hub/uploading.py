"""The upload to the hub: what is there is looked at first, and every failure is one clear line."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.files.json_files import parse_json
from hf_bert_impl.hub.saving import CONFIG, code_files, file_sizes
from hf_bert_impl.model_card import CARD

MAIN = "main"
#: A repository with nothing but these files holds no model yet.
_NO_MODEL = {".gitattributes", CARD, "LICENSE", "LICENSE.md", "LICENSE.txt"}
#: Weights at the top of a repository. Those that a push does not replace are an earlier model's.
_WEIGHTS = re.compile(
    r"(model|pytorch_model|tf_model|flax_model)(-\d+-of-\d+)?\.(safetensors|bin|h5|msgpack)"
    r"(\.index\.json)?"
)


class PushError(InputError, OSError):
    """The hub cannot be used, or refuses."""


@dataclasses.dataclass(frozen=True)
class Repository:
    """A repository of the hub that may take a model."""

    repo_id: str
    """With its owner."""
    revision: str
    """The branch."""
    has_branch: bool
    """False where the branch, or the repository, has to be made."""
    files: tuple[str, ...] = ()
    """What the branch holds, or that which it will begin from."""
    card: str = ""
    """Its model card."""


def check_repo_id(repo_id: str) -> None:
    """Check a repository's name.

    Raises:
        ValueError: It is none.
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError(
            f"the repository is {repo_id!r}",
            "NAME or OWNER/NAME of letters, digits, '-', '_' and '.'",
            "choose another name",
        ) from error


def open_repository(
    repo_id: str,
    class_name: str,
    *,
    revision: str | None = None,
    private: bool | None = None,
    api: HfApi | None = None,
) -> Repository:
    """Look at a repository before anything is prepared or made.

    Args:
        repo_id: NAME or OWNER/NAME; the repository need not exist.
        class_name: The class of the model that is to go there.
        revision: The branch; None for the main one.
        private: Whether the repository has to be private.
        api: How the hub is reached; None for its usual address and the saved token.

    Returns:
        The repository.

    Raises:
        ValueError: The name is none.
        PushError: There is no token or no connection, the hub refuses, or the repository holds
            something else.
    """
    check_repo_id(repo_id)
    api = api or HfApi()
    if api.token is False or not (api.token or get_token()):
        raise PushError(
            "there is no token for the hub",
            "one that may write",
            "log in with `hf auth login`, or set HF_TOKEN; `dry_run` needs none",
        )
    branch = revision or MAIN
    with hub_errors(api, repo_id, "be read"):
        user = api.whoami()["name"]
        full = repo_id if "/" in repo_id else f"{user}/{repo_id}"
        try:
            info = api.model_info(full)
        except RepositoryNotFoundError:
            return Repository(full, branch, has_branch=False)
        if private and not info.private:
            raise PushError(
                f"{full} exists and is public",
                "a private repository",
                "make it private on its settings page, or choose another name",
            )
        has_branch = True
        try:
            files = api.list_repo_files(full, revision=branch)
        except RevisionNotFoundError:
            has_branch = False
            files = api.list_repo_files(full)
        texts = {
            name: _read(api, full, name, branch if has_branch else MAIN)
            for name in (CONFIG, CARD)
            if name in files
        }
    others = sorted(set(files) - _NO_MODEL)
    held = _class_in(texts[CONFIG]) if CONFIG in texts else "no model"
    if others and held != class_name:
        names = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if others[3:] else "")
        raise PushError(
            f"{full} holds {held} ({names})",
            f"a new or empty repository, or one with a {class_name}",
            "choose another name, or delete what is there",
        )
    return Repository(full, branch, has_branch, tuple(files), texts.get(CARD, ""))


def reserve(repo_id: str, class_name: str, *, api: HfApi | None = None) -> None:
    """Make a repository for a model that is yet to be trained, which may take days.

    Args:
        repo_id: NAME or OWNER/NAME; it may exist.
        class_name: The class of the model that is to go there.
        api: How the hub is reached; None for its usual address and the saved token.

    Raises:
        ValueError: The name is none.
        PushError: As in `open_repository`, or the token may not write there.
    """
    api = api or HfApi()
    repository = open_repository(repo_id, class_name, api=api)
    with hub_errors(api, repository.repo_id, "be written"):
        api.create_repo(repository.repo_id, exist_ok=True)


def _read(api: HfApi, repo_id: str, name: str, revision: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = api.hf_hub_download(repo_id, name, revision=revision, local_dir=folder)
        return Path(file).read_text(encoding="utf-8", errors="replace")


def _class_in(config: str) -> str:
    try:
        return str(parse_json(config, "config.json")["architectures"][0])
    except (ValueError, KeyError, IndexError, TypeError):
        return "a config without a class"


def upload(
    folder: Path,
    repository: Repository,
    *,
    private: bool | None = None,
    api: HfApi | None = None,
) -> str:
    """Upload a folder as a commit, and compare what the hub then has with it.

    Weights of the earlier model that the folder does not replace are deleted in the same commit, as
    is code that it does not bring along; the repository's history keeps both.

    Args:
        folder: What goes up.
        repository: From `open_repository`.
        private: Whether a new repository is private; None for the owner's default.
        api: As there.

    Returns:
        The address of the repository at that branch.

    Raises:
        PushError: The hub cannot be reached or refuses, or has other files afterwards.
    """
    api = api or HfApi()
    repo_id, branch = repository.repo_id, repository.revision
    with hub_errors(api, repo_id, "be written"):
        url = api.create_repo(repo_id, private=private, exist_ok=True)
        if not repository.has_branch and branch != MAIN:
            api.create_branch(repo_id, branch=branch, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=branch,
            commit_message="Upload BERT by hf-bert push",
            delete_patterns=stale_files(folder, repository.files) or None,
        )
        _compare(api, folder, repo_id, commit.oid)
    return str(url) if branch == MAIN else f"{url}/tree/{branch}"


def stale_files(folder: Path, held: tuple[str, ...]) -> list[str]:
    """Weights and code of an earlier push that this one does not replace."""
    code = {path.name for path in code_files()}
    return [
        name
        for name in held
        if (_WEIGHTS.fullmatch(name) or name in code) and not (folder / name).exists()
    ]


def _compare(api: HfApi, folder: Path, repo_id: str, commit: str) -> None:
    """Raises unless the commit has every file of the folder, of the same size and content."""
    sizes = file_sizes(folder)
    entries: dict[str, Any] = {
        entry.path: entry for entry in api.get_paths_info(repo_id, list(sizes), revision=commit)
    }
    for name, size in sizes.items():
        entry = entries.get(name)
        is_same = entry is not None and entry.size == size
        # The hub keeps a sum of large files. Small ones are text, which git's own sums protect.
        if is_same and entry is not None and entry.lfs is not None:
            is_same = entry.lfs.sha256 == _sha256(folder / name)
        if not is_same:
            raise PushError(
                f"{repo_id} has another {name} than was uploaded",
                "the same file",
                "push again; if it stays so, look at the repository on the hub",
            )


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextlib.contextmanager
def hub_errors(api: HfApi, repo_id: str, to_do: str) -> Iterator[None]:
    """Turns what huggingface_hub raises into a `PushError` of one line.

    Args:
        api: It knows the hub's address.
        repo_id: The repository.
        to_do: What was to happen to it, as in "be written".
    """
    again = "try again"
    if to_do == "be written":
        again += "; the same command goes on from what is there by now"
    try:
        yield
    except LocalTokenNotFoundError as error:
        raise PushError(
            "there is no token for the hub", "one that may write", "log in with `hf auth login`"
        ) from error
    except OfflineModeIsEnabled as error:
        raise PushError(
            "HF_HUB_OFFLINE is set", "a connection to the hub", "unset it, or use `dry_run`"
        ) from error
    except HfHubHTTPError as error:
        raise _refusal(error, repo_id, to_do, again) from error
    except (HTTPError, ConnectionError, TimeoutError) as error:
        why = f"{api.endpoint} cannot be reached ({one_line(error)[:300]})"
        raise PushError(
            f"{repo_id} could not {to_do}: {why}",
            "a connection to the hub",
            f"check the network and HF_ENDPOINT, and {again}",
        ) from error
    except RuntimeError as error:  # the transfer of large files has errors of its own
        raise PushError(
            f"{repo_id} could not {to_do}: the transfer failed ({one_line(error)[:300]})",
            "an upload to the end",
            again,
        ) from error


def _refusal(error: HfHubHTTPError, repo_id: str, to_do: str, again: str) -> PushError:
    status = error.response.status_code
    said = one_line(error.server_message or error)[:300]
    failed = f"{repo_id} could not {to_do}: the hub"
    if status == 401:
        parts = (
            f"the hub does not accept the token ({said})",
            "a valid one",
            "log in with `hf auth login`, or renew HF_TOKEN",
        )
    elif status == 403:
        parts = (
            f"the token may not let {repo_id} {to_do} ({said})",
            "a token with the right to write there",
            "choose a repository of your own, or a token with that right",
        )
    elif status in (408, 429) or status >= 500:
        parts = (f"{failed} answers {status} ({said})", "an answer", f"wait a little and {again}")
    else:
        what = "a repository that takes the files"
        parts = (f"{failed} refuses with {status} ({said})", what, "mend what it names")
    return PushError(*parts)
