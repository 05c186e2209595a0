"""Sizes and times of files, which tell whether a job or a cached result is still valid."""

import datetime
from pathlib import Path


def model_files(model: str) -> dict[str, str]:
    """Sizes and times of a model's files, or the commit of a hub id."""
    folder = Path(model).expanduser()
    if not (folder / "modules.json").is_file():  # which may have BERT in a folder below
        from hf_bert_impl.checkpoints import open_checkpoint

        open_checkpoint(model, any_family=True)  # raises the error of a wrong folder
    if not folder.is_dir():
        from transformers.utils import cached_file
        from transformers.utils.hub import extract_commit_hash

        return {"commit": str(extract_commit_hash(cached_file(model, "config.json"), None))}
    known = (".safetensors", ".bin", ".json", ".txt", ".model")
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix in known)
    return {f"model file {file.relative_to(folder)}": facts_of(file) for file in files}


def facts_of(file: Path) -> str:
    """The size and time of a file."""
    status = file.stat()
    seconds, rest = divmod(status.st_mtime_ns, 10**9)
    return f"{status.st_size} bytes of {datetime.datetime.fromtimestamp(seconds)}.{rest:09}"
