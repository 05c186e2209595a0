"""The upload to the hub.

This module imports neither torch nor transformers, so that invalid names are reported at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.constants import CONFIG_NAME
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.files.json_files import parse_json
from hf_bert_impl.model_card import CARD

MAIN = "main"
#: Files of a repository without a model.
_NO_MODEL = {".gitattributes", CARD, "LICENSE", "LICENSE.md", "LICENSE.txt"}
#: Weights of an earlier model, deleted unless the push replaces them.
_WEIGHTS = [
    f"{stem}{ending}"
    for stem, kind in (
        ("model", ".safetensors"),
        ("pytorch_model", ".bin"),
        ("tf_model", ".h5"),
        ("flax_model", ".msgpack"),
    )
    for ending in (kind, f"-?????-of-?????{kind}", f"{kind}.index.json")
]
#: Remedies by the hub's status.
_REMEDIES = {
    401: "Run `hf auth login`, or renew HF_TOKEN",
    403: "Choose a repository of your own, or use another token",
    **dict.fromkeys((408, 429, 500, 502, 503, 504), "Wait a little and try again"),
}


class PushError(InputError, OSError):
    """The hub cannot be reached or refuses."""


@dataclasses.dataclass(frozen=True)
class Repository:
    """A repository of the hub that can take a model."""

    repo_id: str
    """With its owner."""
    revision: str = MAIN
    """The branch."""
    card: str = ""
    """Its model card."""


def check_repo_id(repo_id: str) -> None:
    """Raises InputError for an invalid repository id."""
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError(
            f"{repo_id!r} is not a repository id. Write NAME or OWNER/NAME with letters, "
            "digits, '-', '_' and '.'."
        ) from error


def open_repository(
    repo_id: str,
    class_name: str,
    *,
    revision: str | None = None,
    private: bool | None = None,
    api: HfApi | None = None,
) -> Repository:
    """Checks that a repository can take a model.

    Args:
        repo_id: NAME or OWNER/NAME; the repository may be new.
        class_name: The class of the model.
        revision: The branch; None for the main one.
        private: Whether the repository must be private.
        api: None for the usual address and the saved token.

    Raises:
        ValueError: The name is invalid.
        PushError: There is no token or no connection, the hub refuses, or the repository holds
            another kind of model.
    """
    check_repo_id(repo_id)
    api = api or HfApi()
    if not (get_token() if api.token in (None, True) else api.token):
        raise PushError(
            "There is no token for the hub. Run `hf auth login`, set HF_TOKEN, or use `dry_run`.",
            "dry_run",
        )
    branch = revision or MAIN
    with hub_errors(api, repo_id, "be read"):
        user = api.whoami()["name"]
        full = repo_id if "/" in repo_id else f"{user}/{repo_id}"
        try:
            info = api.model_info(full, revision=branch)
        except RevisionNotFoundError:
            info = api.model_info(full)
        except RepositoryNotFoundError:
            return Repository(full, branch)
        if private and not info.private:
            raise PushError(
                f"{full} exists and is public. Make it private on its settings page, or choose "
                "another name."
            )
        files = {file.rfilename for file in info.siblings or ()}
        texts = {
            name: _read(api, full, name, info.sha) for name in (CONFIG_NAME, CARD) if name in files
        }
    others = sorted(files - _NO_MODEL)
    held = _class_in(texts[CONFIG_NAME]) if CONFIG_NAME in texts else "no model"
    if others and held != class_name:
        names = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if others[3:] else "")
        raise PushError(
            f"{full} holds {held} ({names}), not a {class_name}. Choose another name, or "
            "delete these files."
        )
    return Repository(full, branch, texts.get(CARD, ""))


def reserve(repo_id: str, class_name: str, *, api: HfApi | None = None) -> None:
    """Creates a repository before a long training run; arguments as for `open_repository`."""
    api = api or HfApi()
    repository = open_repository(repo_id, class_name, api=api)
    with hub_errors(api, repository.repo_id, "be written"):
        api.create_repo(repository.repo_id, exist_ok=True)


def _read(api: HfApi, repo_id: str, name: str, revision: str | None) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = api.hf_hub_download(repo_id, name, revision=revision, local_dir=folder)
        return Path(file).read_text(encoding="utf-8", errors="replace")


def _class_in(config: str) -> str:
    try:
        return str(parse_json(config, CONFIG_NAME)["architectures"][0])
    except (ValueError, KeyError, IndexError, TypeError):
        return "a config without a class"


def upload(
    folder: Path,
    repository: Repository,
    *,
    private: bool | None = None,
    api: HfApi | None = None,
) -> str:
    """Uploads a folder as one commit, which also deletes the earlier model's weights and code.

    Args:
        folder: The folder.
        repository: From `open_repository`.
        private: Whether a new repository is private; None for the owner's default.
        api: As for `open_repository`.

    Returns:
        The address of the repository at that branch.

    Raises:
        PushError: The hub cannot be reached or refuses.
    """
    from hf_bert_impl.hub.saving import code_files

    api = api or HfApi()
    repo_id, branch = repository.repo_id, repository.revision
    with hub_errors(api, repo_id, "be written"):
        url = api.create_repo(repo_id, private=private, exist_ok=True)
        if branch != MAIN:
            api.create_branch(repo_id, branch=branch, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=branch,
            commit_message="Upload BERT by hf-bert push",
            # Files of the folder are replaced, not deleted.
            delete_patterns=[*_WEIGHTS, *(path.name for path in code_files())],
        )
    return str(url) if branch == MAIN else f"{url}/tree/{branch}"


@contextlib.contextmanager
def hub_errors(api: HfApi, repo_id: str, to_do: str) -> Iterator[None]:
    """Turns errors of huggingface_hub into a `PushError`.

    Args:
        api: Used for the hub's address.
        repo_id: The repository.
        to_do: The failed action, as in "be written".
    """
    failed = f"{repo_id} could not {to_do}"
    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        said = one_line(error.server_message or error)[:300]
        remedy = _REMEDIES.get(status, "Fix this, or choose another repository")
        raise PushError(f"{failed}: the hub answers {status} ({said}). {remedy}.") from error
    # The transfer of large files raises RuntimeError.
    except (HTTPError, ConnectionError, TimeoutError, RuntimeError) as error:
        raise PushError(
            f"{failed} at {api.endpoint} ({one_line(error)[:300]}). Check the network and "
            "HF_ENDPOINT, and try again."
        ) from error
