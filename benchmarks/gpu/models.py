"""Models with random weights and their batches, the same on every machine."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hf_bert_impl
from hf_bert_impl.parity.batches import Batch, parity_batches, random_tokens

HEADS = (
    *("BertModel", "BertForPreTraining", "BertForMaskedLM", "BertLMHeadModel"),
    *("BertForNextSentencePrediction", "BertForSequenceClassification", "BertForMultipleChoice"),
    *("BertForTokenClassification", "BertForQuestionAnswering"),
)
#: Sizes of the compared models: heads of 64 numbers, for which flash attention has kernels.
COMPARED = {
    "vocab_size": 2003,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
#: The same for a run that only shows that everything runs.
SMALL = COMPARED | {
    "vocab_size": 211,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 44,
    "max_position_embeddings": 64,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
#: Biases and LayerNorms are random too, so that no mix-up hides.
SPREAD = 0.05
WORDS = ("the", "river", "rose", "over", "night", "and", "music", "market", "window", "paper")


def random_model(head: str, small: bool, device: str, **fields: Any) -> Any:
    """A model in float32 and eval mode, drawn on the CPU.

    Args:
        head: Its class.
        small: Of the sizes `SMALL` instead of `COMPARED`.
        device: Where it computes.
        **fields: Of the config.
    """
    sizes = (SMALL if small else COMPARED) | fields
    torch.manual_seed(0)
    config = hf_bert_impl.BertConfig(**sizes, is_decoder=head == "BertLMHeadModel")
    model = getattr(hf_bert_impl, head)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(SPREAD * torch.randn_like(parameter))
    return model.to(device).eval()


def batches(head: str, config: Any) -> dict[str, Batch]:
    """Every kind of padding, the longest sequences, and single tokens."""
    choices = 2 if head == "BertForMultipleChoice" else 0
    longest = config.max_position_embeddings

    def of(*lengths: int) -> dict[str, Batch]:
        return parity_batches(random_tokens(config, lengths), config, choices=choices)

    made = of(5, 23, 37, 14)
    made["long"] = of(longest, longest // 2)["padded right"]
    made["one token"] = of(1, 1)["unpadded"]
    return made


def packed(batch: Batch) -> Batch:
    """The real tokens of a padded batch end to end in one row."""
    here = batch["attention_mask"].bool()
    row = {name: batch[name][here][None] for name in ("input_ids", "token_type_ids")}
    ends: list[int] = [0, *accumulate(here.sum(dim=1).tolist())]
    return row | {"cu_seq_lens_q": torch.tensor(ends, dtype=torch.int32)}


def masked_words(batch: Batch, vocab_size: int) -> Tensor:
    """Labels of a masked language model: every seventh token of a batch, -100 elsewhere."""
    mask = batch["attention_mask"]
    chosen = mask.bool() & (torch.arange(mask.shape[1], device=mask.device) % 7 == 1)
    return torch.where(chosen, (batch["input_ids"] + 1) % vocab_size, -100)


def save_folder(folder: Path, small: bool, **fields: Any) -> Path:
    """Saves a masked language model with a vocabulary of a few words, and gives the folder."""
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ".", ",", "?")
    sizes = {"vocab_size": len(words), "max_position_embeddings": 512}
    random_model("BertForMaskedLM", small, "cpu", **sizes | fields).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return folder
