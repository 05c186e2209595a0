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
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from hf_bert_impl.model.attention import attend_groups
from hf_bert_impl.model.layout import Layout

#: The name of `attend` in transformers.
NAME = "hf_bert_impl_rows"
#: Arguments of attention functions that change the scores in ways that `attend` does not know.
UNKNOWN = ("is_causal", "position_bias", "softcap", "s_aux", "block_mask")


@dataclass
class Rows:
    """The tokens that this thread computes."""

    layout: Layout
    #: (1, T) as the model counts them; None for the model's own.
    positions: Tensor | None = None
    #: Masks and biases of each group by name, which all layers share.
    shared: dict[Any, list[Tensor | None]] = field(default_factory=dict)

    def by_group(self, name: Any, make: Callable[[Tensor], Tensor | None]) -> list[Tensor | None]:
        """`make` of the distances, (rows or 1, q, k) from query to key, of each group; once."""
        if name not in self.shared:
            self.shared[name] = list(map(make, self._distances()))
        return self.shared[name]

    def _distances(self) -> Iterator[Tensor]:
        layout, start = self.layout, 0
        for number, (group, size) in enumerate(zip(layout.groups, layout.sizes, strict=True), 1):
            columns = torch.arange(size, device=layout.device)[None]
            if layout.column is not None:
                columns = layout.column[start : start + size].view(group.rows, -1)
            if layout.spare and number == len(layout.groups):  # any place will do
                spare = columns[:, :1].expand(-1, layout.spare)
                columns = torch.cat((columns[:, : -layout.spare], spare), dim=1)
            if bool((columns - columns[:, :1] == columns[0] - columns[0, 0]).all()):
                columns = columns[:1]
            yield columns[:, None, : group.keys] - columns[:, :, None]
            start += size


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

    def window(distances: Tensor) -> Tensor | None:
        near: Tensor = distances.abs() < sliding_window  # type: ignore[operator]
        if not bool(near.any(-1).all()):
            # What stock then gives depends on its own attention function.
            raise NotByRows("padding without a token in its window")
        return None if bool(near.all()) else near[:, None].to(query.device)

    masks: Sequence[Tensor | None] = ()
    if sliding_window is not None and rows.layout.grid[1] > sliding_window:
        masks = rows.by_group(("window", sliding_window), window)
    return by_groups(rows, query, key, value, masks, scaling, dropout), None


def by_groups(
    rows: Rows,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masks: Sequence[Tensor | None],
    scaling: float | None,
    dropout: float,
) -> Tensor:
    """`attend_groups` of (1, H, T, d), with H or fewer heads of keys and values: (1, T, H, d)."""
    times = query.shape[1] // key.shape[1]
    if times > 1:
        key, value = (part.repeat_interleave(times, 1) for part in (key, value))
    groups = rows.layout.groups
    return attend_groups(query[0], key[0], value[0], groups, scaling, dropout, masks)[None]


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
