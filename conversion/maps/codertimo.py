"""codertimo/BERT-pytorch (`bert_pytorch`), which becomes a model of ours of that variant.

Names as in bert_pytorch/model of https://github.com/codertimo/BERT-pytorch. Its LayerNorms come
before the sublayer, under our names of those after it. The decoder is not tied, and there is no
pooler. The trainer saves the encoder alone, without `bert.`.
"""

import math

import torch
from torch import Tensor

from ..rules import Ignore, Rule, Table
from . import names
from .pytorch import SLOTS


def position_table(positions: int, width: int) -> Tensor:
    """(1, positions, width) sinusoids, in float32 as `model/embedding/position.py` has them."""
    rates = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * -(math.log(10000.0) / width))
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * rates
    table = torch.zeros(positions, width)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()[:, : width // 2]
    return table[None]


BLOCK = "[{wrapper}][{base}]transformer_blocks.{layer}"
LAYER = names.LAYER

#: Modules of bert_pytorch to ours, weight and bias.
LINEARS = (
    (f"{BLOCK}.attention.linear_layers.0", f"{LAYER}.attention.self.query"),
    (f"{BLOCK}.attention.linear_layers.1", f"{LAYER}.attention.self.key"),
    (f"{BLOCK}.attention.linear_layers.2", f"{LAYER}.attention.self.value"),
    (f"{BLOCK}.attention.output_linear", f"{LAYER}.attention.output.dense"),
    (f"{BLOCK}.feed_forward.w_1", f"{LAYER}.intermediate.dense"),
    (f"{BLOCK}.feed_forward.w_2", f"{LAYER}.output.dense"),
    ("[{wrapper}]mask_lm.linear", names.DECODER),
    # Label 1 means "is the next sentence" there; the rows keep their order.
    ("[{wrapper}]next_sentence.linear", names.NEXT_SENTENCE),
)
NORMS = (
    (f"{BLOCK}.input_sublayer.norm", f"{LAYER}.attention.output.LayerNorm"),
    (f"{BLOCK}.output_sublayer.norm", f"{LAYER}.output.LayerNorm"),
)

CODERTIMO = Table(
    software="codertimo/BERT-pytorch",
    rules=(
        Rule("[{wrapper}][{base}]embedding.token.weight", f"{names.WORDS}.weight"),
        Rule("[{wrapper}][{base}]embedding.segment.weight", f"{names.TOKEN_TYPES}.weight"),
        *(Rule(f"{theirs}.weight", f"{ours}.weight") for theirs, ours in LINEARS),
        *(Rule(f"{theirs}.bias", f"{ours}.bias") for theirs, ours in LINEARS),
        *(Rule(f"{theirs}.a_2", f"{ours}.weight") for theirs, ours in NORMS),
        *(Rule(f"{theirs}.b_2", f"{ours}.bias") for theirs, ours in NORMS),
    ),
    ignores=(
        Ignore(
            "[{wrapper}][{base}]embedding.position.pe",
            "sinusoidal positions, which are computed",
            lambda shape: position_table(*shape[-2:]) if len(shape) == 3 else torch.empty(0),
        ),
    ),
    slots=SLOTS,
)
