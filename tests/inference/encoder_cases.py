"""Texts for the tests of sentence vectors, and how vectors and folders are compared."""

from pathlib import Path

import numpy as np
import torch
import transformers

TOLERANCE = 1e-5
POSITIONS = 31
SHORT = ["nice to meet you", "", "the river rose over night, and you.", "a"]
LONG = " ".join(["the river rose and"] * 12)  # more than the model has positions for
TEXTS = [*SHORT, LONG]


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < TOLERANCE


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def plain_states(folder: Path, texts: list[str], layer: int = -1) -> list[torch.Tensor]:
    """The (S, H) states of each text alone, by transformers' own BERT."""
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    found = []
    for text in texts:
        batch = tokenizer(text, truncation=True, max_length=POSITIONS, return_tensors="pt")
        with torch.no_grad():
            found.append(model(**batch, output_hidden_states=True).hidden_states[layer][0])
    return found


def plain_vectors(folder: Path, texts: list[str]) -> np.ndarray:
    """The mean of each text's states."""
    return np.stack([states.mean(dim=0).numpy() for states in plain_states(folder, texts)])
