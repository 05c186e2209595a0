"""Input embeddings: word + position + token type, then LayerNorm (not in codertimo) and dropout.

Notation: B batch, S sequence, T computed tokens (see `padding.py`), D hidden size.
"""

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .configuration_bert import BertConfig
from .dropout import Dropout
from .linear import is_hooked
from .padding import Packing, is_traced


class SinusoidalPositions(nn.Module):
    """The fixed position table of Vaswani et al. 2017, section 3.5.

    `table[p, 2i] = sin(p / 10000^(2i/D))` and `table[p, 2i+1] = cos(p / 10000^(2i/D))`.
    It is computed, not learned, so it is no part of the state dict.
    """

    table: Tensor

    def __init__(self, num_positions: int, hidden_size: int) -> None:
        super().__init__()
        table = torch.empty(num_positions, hidden_size)
        self.register_buffer("table", table, persistent=False)
        self.reset_table()  # and again by `_init_weights`, where the model was built on meta

    @torch.no_grad()
    def reset_table(self) -> None:
        """Fills the table. In float64, so that far positions keep their phase."""
        num_positions, hidden_size = self.table.shape
        position = torch.arange(num_positions, dtype=torch.float64)[:, None]
        pair = torch.arange(0, hidden_size, 2, dtype=torch.float64)
        angle = position * torch.exp(pair * (-math.log(10000.0) / hidden_size))
        table = torch.empty(num_positions, hidden_size, dtype=torch.float64)
        table[:, 0::2] = angle.sin()
        table[:, 1::2] = angle.cos()[:, : hidden_size // 2]
        init.copy_(self.table, table.to(self.table))

    def forward(self, position_ids: Tensor) -> Tensor:
        """Position ids of any shape to `(..., D)`."""
        return self.table[position_ids]


class BertEmbeddings(nn.Module):
    """Sum of word, position and token-type embeddings.

    With relative positions the model keeps its (unused) `position_embeddings`, because checkpoints
    of that kind have them: transformers 4 saved them although it never added them.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(
            config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id
        )
        positions, width = config.max_position_embeddings, config.hidden_size
        self.position_embeddings: nn.Module
        if config.position_embedding_type == "sinusoidal":
            self.position_embeddings = SinusoidalPositions(positions, width)
        else:
            self.position_embeddings = nn.Embedding(positions, width)
        is_codertimo = config.variant == "codertimo"
        self.token_type_embeddings = nn.Embedding(
            config.type_vocab_size, config.hidden_size, padding_idx=0 if is_codertimo else None
        )
        self.LayerNorm: nn.Module = nn.Identity()
        if not is_codertimo:
            self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.adds_positions = not config.position_embedding_type.startswith("relative")
        #: The token type of a first sentence.
        self.first_type = 1 if is_codertimo else 0
        #: The id that tells padding where no mask is given, if the variant is one that looks.
        self.masked_id = config.pad_token_id if is_codertimo else None

    def own_mask(self, input_ids: Tensor | None) -> Tensor | None:
        """(B, S) bool: what a codertimo model attends to without a mask; None for other models."""
        if self.masked_id is None or input_ids is None:
            return None
        return input_ids != self.masked_id

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values_length: int = 0,
        packing: Packing | None = None,
    ) -> Tensor:
        """Embeds a batch, or its computed tokens only.

        Args:
            input_ids: (B, S) token ids; or give `inputs_embeds`.
            token_type_ids: (B, S), (1, S) or (S,); if None zeros, or ones in a codertimo model.
            position_ids: (B, S), (1, S) or (S,); if None 0, 1, 2, … after the cached tokens.
            inputs_embeds: (B, S, D) instead of word embeddings.
            past_key_values_length: Number of cached tokens before this batch.
            packing: Which tokens to embed; all if None.

        Returns:
            (B, S, D), or (T, D) when packed.
        """
        source = input_ids if input_ids is not None else inputs_embeds
        assert source is not None  # checked with a message in `validation.py`
        batch_shape = source.shape[:2]
        if packing is not None and packing.token_index is not None:
            if token_type_ids is not None:
                token_type_ids = packing.unpad(token_type_ids.expand(batch_shape))
            if position_ids is not None:
                position_ids = packing.unpad(position_ids.expand(batch_shape))
            if inputs_embeds is not None:
                inputs_embeds = packing.unpad(inputs_embeds)
            elif input_ids is not None:
                input_ids = packing.unpad(input_ids)
        if inputs_embeds is None:
            inputs_embeds = self.word_embeddings(input_ids)
        device = source.device
        # What is not given is alike for all rows or tokens, and is broadcast.
        if token_type_ids is None:
            types = _rows(self.token_type_embeddings, self.first_type, 1, device)
        else:
            types = self.token_type_embeddings(token_type_ids)
        embeddings = inputs_embeds + types
        if self.adds_positions:
            if position_ids is None and packing is not None:
                position_ids = packing.column
            if position_ids is None:
                start, count = past_key_values_length, batch_shape[1]
                positions = _rows(self.position_embeddings, start, count, device)
            else:
                positions = self.position_embeddings(position_ids)
            embeddings = embeddings + positions
        if packing is not None and packing.token_index is None:
            embeddings = embeddings.flatten(0, 1)
        return self.dropout(self.LayerNorm(embeddings))  # (B, S, D) or (T, D)


def _rows(table: nn.Module, start: int, count: int, device: torch.device) -> Tensor:
    """(count, D), neighbouring rows of a table: a view where nothing is to come of the lookup."""
    weight = table._parameters.get("weight")
    if (
        type(table) is nn.Embedding
        and type(weight) is nn.Parameter
        and table.max_norm is None
        and not torch.is_grad_enabled()
        and not is_traced(device)
        and not is_hooked(table)
    ):
        return weight[start : start + count]
    rows: Tensor = table(torch.arange(start, start + count, device=device))
    return rows
