"""MPNet's attention on packed rows: it adds a bias of relative positions to the scores."""

from typing import Any

from torch import Tensor, nn
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder, MPNetSelfAttention

from hf_bert_impl.encoders.rows import ROWS, by_groups, distances


class RowsEncoder(MPNetEncoder):
    """An encoder that computes no bias for packed rows; its layers do, by sequence."""

    def compute_position_bias(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """None for packed rows, else as upstream."""
        return None if ROWS.get() is not None else super().compute_position_bias(x, *args, **kwargs)


class RowsSelfAttention(MPNetSelfAttention):
    """Self-attention of padded states as upstream, and of packed rows by sequence."""

    #: The encoder, outside this module's tree.
    encoder: MPNetEncoder

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """(B, S, D), or (1, T, D) packed rows, to a tuple of the same."""
        rows = ROWS.get()
        if rows is None:
            return super().forward(hidden_states, *args, **kwargs)

        def bias(columns: Tensor, keys: int, _: int) -> Tensor:
            encoder, apart = self.encoder, distances(columns, keys)
            buckets = encoder.relative_position_bucket(apart.to(hidden_states.device))
            values: Tensor = encoder.relative_attention_bias(buckets)
            return values.movedim(-1, 1).contiguous()  # (rows or 1, H, q, k)

        shape = (*hidden_states.shape[:-1], -1, self.attention_head_size)
        layers = (self.q, self.k, self.v)
        query, key, value = (layer(hidden_states).view(shape).transpose(1, 2) for layer in layers)
        biases = rows.by_group("bias", bias)
        dropout = self.dropout.p if self.training else 0.0
        context = by_groups(rows, query, key, value, biases, None, dropout)
        return (self.o(context.flatten(-2)),)


#: Classes for packed rows to upstream's.
UPSTREAM = {RowsEncoder: MPNetEncoder, RowsSelfAttention: MPNetSelfAttention}


def exchange(bare: nn.Module) -> None:
    """Gives the modules of an MPNet the classes for packed rows."""
    encoder: Any = bare.encoder
    encoder.__class__ = RowsEncoder
    for part in encoder.modules():
        if type(part) is MPNetSelfAttention:
            part.__class__ = RowsSelfAttention
            vars(part)["encoder"] = encoder


def exchange_back(bare: nn.Module) -> None:
    """Undoes `exchange`."""
    for part in bare.modules():
        if type(part) in UPSTREAM:
            part.__class__ = UPSTREAM[type(part)]
            vars(part).pop("encoder", None)
