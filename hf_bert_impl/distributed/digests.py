"""Digests of files and models."""

import hashlib
from pathlib import Path

from hf_bert_impl import checkpoints


def weights_digest(model: str) -> str:
    """A digest of a model's files, or the commit of a hub id."""
    folder = Path(model).expanduser()
    if not (folder / "modules.json").is_file():  # which may have BERT in a folder below
        checkpoints.open_checkpoint(model, any_family=True)  # raises the error of a wrong folder
    if not folder.is_dir():
        from transformers.utils import cached_file
        from transformers.utils.hub import extract_commit_hash

        return str(extract_commit_hash(cached_file(model, "config.json"), None))
    digest = hashlib.sha256()
    endings = (".safetensors", ".bin", ".json", ".txt")
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix in endings:
            digest.update(f"{file.relative_to(folder)} {file_digest(file)}\n".encode())
    return digest.hexdigest()


def file_digest(file: Path) -> str:
    """The SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
