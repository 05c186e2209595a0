"""Checkpoints as users have them, and ways to damage their files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.support.checkpoints import save_checkpoint, tokenizer_of

Damage = Callable[[Path], None]
#: JSON that is nested deeper than Python reads.
DEEP = "[" * 50_000 + "]" * 50_000
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
]
#: Where sentence-transformers keeps prompts, and the number of dimensions.
PROMPTS = "config_sentence_transformers.json"
DENSE = {"in_features": 30, "out_features": 7, "activation_function": "torch.nn.Tanh"}


def save_usable(folder: Path, name: str) -> Path:
    """Saves a model with all files of its tokenizer; BertModel as a sentence-transformers model."""
    save_checkpoint(folder, name, tokenizer=False, id2label={0: "a", 1: "b"})
    tokenizer = tokenizer_of()
    tokenizer.save_pretrained(folder)
    write("special_tokens_map.json", tokenizer.special_tokens_map)(folder)
    if name != "BertModel":
        return folder
    for file, content in {
        "modules.json": MODULES,
        "sentence_bert_config.json": {"max_seq_length": 16},
        PROMPTS: {"prompts": {}},
        "1_Pooling/config.json": {
            "word_embedding_dimension": 30,
            "pooling_mode_mean_tokens": True,
        },
        "2_Dense/config.json": DENSE,
    }.items():
        (folder / file).parent.mkdir(exist_ok=True)
        write(file, content)(folder)
    dense = {"linear.weight": torch.randn(7, 30), "linear.bias": torch.zeros(7)}
    save_file(dense, folder / "2_Dense" / "model.safetensors")
    return folder


def write(name: str, content: Any) -> Damage:
    """Puts this into a file of the folder: bytes, a text, or anything that JSON can hold."""

    def damage(folder: Path) -> None:
        file = folder / name
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            file.write_text(content if isinstance(content, str) else json.dumps(content))

    return damage


def fields(name: str, **values: Any) -> Damage:
    """Changes fields of a JSON file."""

    def damage(folder: Path) -> None:
        write(name, json.loads((folder / name).read_text()) | values)(folder)

    return damage


def cut(folder: Path) -> None:
    """Leaves the first bytes of the weights."""
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:9000])
