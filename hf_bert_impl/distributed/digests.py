"""What tells whether files are the same."""

import hashlib
from pathlib import Path

from hf_bert_impl import checkpoints


def weights_digest(model: str) -> str:
    """What tells whether a model's files are the same: a digest of them, or the hub's commit."""
    folder = Path(model).expanduser()
    if not (folder / "modules.json").is_file():  # BERT may be in a folder below that one
        checkpoints.open_checkpoint(model, any_family=True)  # which says what is wrong with it
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
