"""The computed tokens of a batch as one row, and attention inside each sequence of it.

A stock encoder runs on one row, (1, T), that has the batch's tokens in the order of `Layout`. Its
own modules compute it. Only attention has to know where a sequence ends: `RowsConfig` makes the
modules call `attend` while `ROWS` is set in this thread.

Notation: T computed tokens, H heads, d head size, q and k tokens of a sequence that ask and that
are attended to.
"""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from hf_bert_impl.model.attention import attend_groups
from hf_bert_impl.model.layout import Layout, RowGroup

#: The name of `attend` in transformers.
NAME = "hf_bert_impl_rows"
#: Arguments of attention functions that change the scores in ways that `attend` does not know.
UNKNOWN = ("is_causal", "position_bias", "softcap", "s_aux", "block_mask")
#: Queries of a block of `attend_band`, at least, and the blocks of a sequence that is worth it. On
#: one thread of an AMD Zen 4, ModernBERT then takes 0.88 of the time at 1024 tokens, 0.76 at 2048.
#: Half as many tokens gain nothing.
SMALLEST_BLOCK, FEWEST_BLOCKS = 64, 10


class Band(NamedTuple):
    """In place of a mask: each token attends to the `reach` tokens before and after it."""

    reach: int

    @property
    def block(self) -> int:
        """The queries of a block."""
        return max(self.reach, SMALLEST_BLOCK)


#: Of a group: bool or added to the scores.
Mask = Tensor | Band | None


@dataclass
class Rows:
    """The tokens that this thread computes."""

    layout: Layout
    #: (1, T) as the model counts them; None for the model's own.
    positions: Tensor | None = None
    #: Masks and biases of each group by name, which all layers share.
    shared: dict[Any, list[Any]] = field(default_factory=dict)

    def by_group(self, name: Any, make: Callable[[Tensor, int, int], Any]) -> list[Any]:
        """The result of `make` for each group, made once.

        It gets the columns of the group's queries, (rows, q), or (1, q) if their distances are the
        same in all rows; how many of them are keys; how many are spare.
        """
        if name not in self.shared:
            self.shared[name] = [make(*each) for each in self._columns()]
        return self.shared[name]

    def _columns(self) -> Iterator[tuple[Tensor, int, int]]:
        layout, start = self.layout, 0
        for number, (group, size) in enumerate(zip(layout.groups, layout.sizes, strict=True), 1):
            spare = layout.spare if number == len(layout.groups) else 0
            columns = torch.arange(size, device=layout.device)[None]
            if layout.column is not None:
                columns = layout.column[start : start + size].view(group.rows, -1)
            if spare:  # any place will do
                of_spare = columns[:, :1].expand(-1, spare)
                columns = torch.cat((columns[:, :-spare], of_spare), dim=1)
            if bool((columns - columns[:, :1] == columns[0] - columns[0, 0]).all()):
                columns = columns[:1]
            yield columns, group.keys, spare
            start += size


def distances(columns: Tensor, keys: int) -> Tensor:
    """From each query to each key, (rows, q, k); arguments as in `Rows.by_group`."""
    return columns[:, None, :keys] - columns[:, :, None]


#: The rows that this thread computes; None outside a call of packed rows.
ROWS: ContextVar[Rows | None] = ContextVar("rows", default=None)


class NotByRows(Exception):
    """A model attends in a way that `attend` does not know."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers for `ROWS`: (1, H, T, d) to (1, T, H, d).

    Raises:
        NotByRows: The call has an argument of `UNKNOWN`, is causal, or a token attends to none.
    """
    rows = ROWS.get()
    assert rows is not None
    if options or getattr(module, "is_causal", False):
        unknown = [name for name in UNKNOWN if options.get(name) not in (None, False)]
        if unknown or (options.get("is_causal") is None and getattr(module, "is_causal", False)):
            raise NotByRows(f"attention with {', '.join(unknown) or 'a causal mask'}")

    def window(columns: Tensor, keys: int, spare: int) -> Mask:
        assert sliding_window is not None
        band, own = Band(sliding_window - 1), columns[:, :keys]
        is_long = keys >= FEWEST_BLOCKS * band.block and columns.shape[1] == keys + spare
        if is_long and len(own) == 1 and bool((own.diff() == 1).all()):
            return band
        near = distances(columns, keys).abs() < sliding_window
        if not bool(near.any(-1).all()):
            # What stock then gives depends on its own attention function.
            raise NotByRows("padding without a token in its window")
        return None if bool(near.all()) else near[:, None].to(query.device)

    masks: Sequence[Mask] = ()
    if sliding_window is not None and rows.layout.grid[1] > sliding_window:
        masks = rows.by_group(("window", sliding_window), window)
    return by_groups(rows, query, key, value, masks, scaling, dropout), None


def by_groups(
    rows: Rows,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masks: Sequence[Mask],
    scaling: float | None,
    dropout: float,
) -> Tensor:
    """`attend_groups` of (1, H, T, d), with H or fewer heads of keys and values: (1, T, H, d)."""
    times = query.shape[1] // key.shape[1]
    if times > 1:
        key, value = (part.repeat_interleave(times, 1) for part in (key, value))
    groups, whole = rows.layout.groups, (query[0], key[0], value[0])
    full = [mask for mask in masks if not isinstance(mask, Band)]
    if len(full) == len(masks):
        return attend_groups(*whole, groups, scaling, dropout, full)[None]
    contexts = []
    parts: Any = zip(*(part.split(rows.layout.sizes, dim=1) for part in whole), strict=True)
    for group, (q, k, v), mask in zip(groups, parts, masks, strict=True):
        if isinstance(mask, Band):
            contexts.append(attend_band(q, k, v, group, mask, scaling, dropout))
        else:
            contexts.append(attend_groups(q, k, v, [group], scaling, dropout, [mask]))
    return torch.cat(contexts)[None]


def attend_band(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: RowGroup,
    band: Band,
    scaling: float | None,
    dropout: float,
) -> Tensor:
    """Attention of a group by blocks of queries, with the keys that one of them reaches.

    So the time grows with the length, and not with its square (Beltagy et al. 2020, section 3.1).

    Args:
        query: (H, rows · queries, d), of which each row's first `group.keys` are computed; likewise
            key and value.

    Returns:
        (rows · queries, H, d), zero for other queries.
    """
    (rows, queries, keys), block, reach = group, band.block, band.reach
    blocks = -(-keys // block)
    fill = blocks * block - keys
    # To (rows · H, keys + fill, d), for the keys with `reach` more around them.
    query, key, value = (
        nn.functional.pad(
            part.unflatten(1, (rows, queries)).transpose(0, 1)[:, :, :keys].flatten(0, 1),
            (0, 0, before, before + fill),
        )
        for part, before in ((query, 0), (key, reach), (value, reach))
    )
    query = query.unflatten(1, (blocks, block))  # (rows · H, blocks, block, d)
    key, value = (part.unfold(1, block + 2 * reach, block).mT for part in (key, value))
    asks = torch.arange(block, device=query.device)[:, None]
    place = torch.arange(block + 2 * reach, device=query.device) - reach  # of a key in the block
    column = place + block * torch.arange(blocks, device=query.device)[:, None, None]
    mask = ((place - asks).abs() <= reach) & (column >= 0) & (column < keys)
    context = nn.functional.scaled_dot_product_attention(
        query, key, value, mask, dropout, scale=scaling
    )
    context = context.flatten(1, 2)[:, :keys].unflatten(0, (rows, -1)).transpose(1, 2)
    # (rows, keys, H, d)
    return nn.functional.pad(context, (0, 0, 0, 0, 0, queries - keys)).flatten(0, 1)


AttentionInterface.register(NAME, attend)


class RowsConfig:
    """The config of a module inside an encoder: it names `attend` while `ROWS` is set.

    All else is the config's own. transformers' modules read the name of their attention function
    from their config at each call, so no other thread sees a change.
    """

    def __init__(self, config: Any) -> None:
        vars(self)["config"] = config

    @property
    def _attn_implementation(self) -> Any:
        if torch.compiler.is_compiling() or ROWS.get() is None:
            return self.config._attn_implementation
        return NAME

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.config)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["config"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.config, name, value)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return RowsConfig, (self.config,)
