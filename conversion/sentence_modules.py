"""The further modules of a sentence-transformers model."""

from __future__ import annotations

import os
from pathlib import Path

from hf_bert_impl.errors import one_line
from hf_bert_impl.inference.sentence_folder import MODULES, read_modules

from .checks import OUTPUT_TOLERANCE, Check
from .source import Source

_TEXTS = ("A cat naps.", "one two three four five six seven eight nine ten " * 60, "")


def sentence_folder(source: Source) -> Path | None:
    """The folder whose modules.json has the source's BERT as its first module; None without one.

    Raises:
        InputError: modules.json is damaged, or names a folder outside.
    """
    weights = os.path.realpath(source.checkpoint.files[0].parent)
    for folder in source.folders:
        if (folder / MODULES).is_file():
            modules = read_modules(folder)
            if modules and os.path.realpath(folder / modules[0][1].strip("/")) == weights:
                return folder
    return None


def check_vectors(source: Path, folder: Path) -> Check:
    """Compare the sentence vectors of a result's folder with its source's."""
    from hf_bert_impl.text_encoder import TextEncoder

    name = "sentence vectors compared with the source"
    try:
        first, second = (
            TextEncoder.from_pretrained(path, dtype="float32", device="cpu", prepare=False)
            for path in (source, folder)
        )
    except (OSError, ValueError, RuntimeError) as error:
        return Check(name, None, note=f"not compared: {one_line(error)[:200]}")
    largest = float(abs(first.encode(_TEXTS) - second.encode(_TEXTS)).max())
    numbers, tokens = second.get_embedding_dimension(), second.max_seq_length
    note = f"{numbers} numbers, texts truncated to {tokens} tokens"
    return Check(name, largest <= OUTPUT_TOLERANCE, largest, OUTPUT_TOLERANCE, note)
