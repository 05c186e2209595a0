"""Small models, one of them for questions with weights made of sines; and texts for encoders."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import hf_bert_impl
from tests.support.checkpoints import tiny_config

ANSWERING_WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] . , ? ! ' - the a cat dog sat on mat in paris anna lives and "
    "works not far from river who what where when is was did this example about text sport science "
    "play run jump quick brown fox ##s ##ing ##ed ##er ##na ##ris pa an li ##ves 东 京 我 爱 北 天 "
    "cafe et ##e na ##i ##ve 1 2 3 ##4"
)
TOLERANCE = 1e-5
SHORT = ["nice to meet you", "", "the river rose over night, and you.", "a"]
LONG = " ".join(["the river rose and"] * 12)  # more than the model has positions for
TEXTS = [*SHORT, LONG]


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    """Vectors are the same, but for rounding."""
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < TOLERANCE


@pytest.fixture(scope="session")
def answering_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with its tokenizer, as a folder."""
    folder = tmp_path_factory.mktemp("answering")
    sizes = {"hidden_size": 36, "num_attention_heads": 4, "intermediate_size": 45}
    sizes |= {"vocab_size": len(ANSWERING_WORDS.split()), "max_position_embeddings": 70}
    model = hf_bert_impl.BertForQuestionAnswering(tiny_config(**sizes))
    with torch.no_grad():
        for number, (name, weight) in enumerate(model.named_parameters()):
            if "LayerNorm" in name:
                continue
            # Sines of quickly growing numbers look random and are the same on every machine.
            phase = torch.arange(weight.numel(), dtype=torch.float64) * (1.7 + 0.37 * number)
            values = (phase + phase * phase * 0.011).sin() * (2 if "qa_outputs" in name else 0.4)
            weight.copy_(values.view_as(weight))
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text(ANSWERING_WORDS.replace(" ", "\n") + "\n", encoding="utf-8")
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder, model_max_length=70)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(models: Callable[..., str]) -> Path:
    """A random BERT with a tokenizer, as a folder."""
    return Path(models("BertModel"))


@pytest.fixture(scope="session")
def encoder(tiny: Path) -> hf_bert_impl.TextEncoder:
    """It, as an encoder."""
    return hf_bert_impl.TextEncoder.from_pretrained(tiny, device="cpu")
