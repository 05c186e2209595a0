"""The real tokens of a batch as one row, and attention inside of each sequence of it.

A stock encoder runs on one row, (1, T), that has the batch's real tokens end to end. Its own
modules compute it. Only attention has to know where a sequence ends: `RowsConfig` makes the
modules call `attend` while `ROWS` is set in this thread.

Notation: B batch, S sequence, T computed tokens, H heads, d head size, q and k tokens of a sequence
that ask and that are attended to.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

#: The name of `attend` in transformers.
NAME = "hf_bert_impl_rows"
#: Arguments of attention functions that change the scores in ways that `attend` does not know.
UNKNOWN = ("is_causal", "position_bias", "softcap", "s_aux", "block_mask")


class Group(NamedTuple):
    """Neighbouring sequences of equal length."""

    #: The number of sequences.
    texts: int
    #: Tokens that ask although the mask excludes them, such as a [CLS] at padding. They are first.
    extra: int
    #: Tokens that are attended to.
    keys: int


@dataclass
class Rows:
    """Where the tokens of a row are in the batch, and which of them attend to each other."""

    #: (B, S).
    shape: tuple[int, int]
    groups: list[Group]
    #: (T,) places in the flattened batch; None if the batch has no padding and is not packed.
    index: Tensor | None = None
    #: (T,) places in their sequence; None if they are 0, 1, 2, …
    columns: Tensor | None = None
    #: (texts,) the places of first tokens in the flattened batch, for packed texts.
    firsts: Tensor | None = None
    #: (1, T) as the model counts them; None for the model's own.
    positions: Tensor | None = None
    #: Distances and biases by group, which all layers share.
    shared: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of_mask(cls, mask: Tensor, required: Tensor | None = None) -> "Rows | None":
        """The rows of a padded batch, or None if a sequence has no tokens.

        Args:
            mask: (B, S) bool, true for tokens that are attended to.
            required: (B, S) bool, further tokens whose states are read.
        """
        computed = mask if required is None else mask | required
        counts = torch.stack([computed.sum(1) - mask.sum(1), mask.sum(1)]).t().tolist()
        if any(keys == 0 for _, keys in counts):
            return None
        order = sorted(range(len(counts)), key=counts.__getitem__)
        rows = torch.tensor(order, device=mask.device)
        place, columns = computed[rows].nonzero(as_tuple=True)
        index = rows[place] * mask.shape[1] + columns
        if any(extra for extra, _ in counts):  # they come first in their sequence
            last = (2 * place + mask.flatten()[index]).argsort(stable=True)
            index, columns = index[last], columns[last]
        groups = _groups([counts[row] for row in order])
        return cls((mask.shape[0], mask.shape[1]), groups, index, columns)

    @classmethod
    def of_lengths(cls, lengths: Sequence[int], device: Any) -> "Rows":
        """The rows of packed texts, (1, T)."""
        starts = [0, *accumulate(lengths)]
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        columns = torch.cat([torch.arange(lengths[text], device=device) for text in order])
        begins = torch.tensor([starts[text] for text in order], device=device)
        sizes = torch.tensor([lengths[text] for text in order], device=device)
        index = columns + begins.repeat_interleave(sizes)
        firsts = torch.tensor(starts[:-1], device=device)
        groups = _groups([(0, lengths[text]) for text in order])
        return cls((1, starts[-1]), groups, index, columns, firsts)

    def pick(self, values: Tensor) -> Tensor:
        """(B, S, …) to (1, T, …)."""
        return values if self.index is None else values.flatten(0, 1)[self.index][None]

    def pad(self, states: Tensor) -> Tensor:
        """(1, T, …) to (B, S, …), with zeros at padding."""
        if self.index is None:
            return states
        rows, columns = self.shape
        padded = states.new_zeros(rows * columns, *states.shape[2:])
        return padded.index_copy(0, self.index, states[0]).unflatten(0, (rows, columns))

    def apart(self) -> "list[Rows]":
        """The rows of each sequence alone."""
        index, columns = self.index, self.columns
        if index is None:
            index = torch.arange(self.shape[0] * self.shape[1])
            columns = index % self.shape[1]
        assert columns is not None
        alone = [group._replace(texts=1) for group in self.groups for _ in range(group.texts)]
        sizes = [group.extra + group.keys for group in alone]
        parts = zip(alone, index.split(sizes), columns.split(sizes), strict=True)
        return [Rows(self.shape, [group], places, own, self.firsts) for group, places, own in parts]

    def distances(self, start: int, group: Group) -> Tensor:
        """(count or 1, q, k) columns from query to key in a group that begins at `start`."""
        if ("distances", start) not in self.shared:
            count, extra, keys = group
            size = extra + keys
            if self.columns is None:
                columns = torch.arange(size)[None]
            else:
                columns = self.columns[start : start + count * size].view(count, size)
                if bool((columns - columns[:, :1] == columns[0] - columns[0, 0]).all()):
                    columns = columns[:1]
            self.shared["distances", start] = columns[:, None, extra:] - columns[:, :, None]
        distances: Tensor = self.shared["distances", start]
        return distances


def _groups(counts: Sequence[Sequence[int]]) -> list[Group]:
    groups: list[Group] = []
    for extra, keys in counts:
        if groups and groups[-1][1:] == (extra, keys):
            groups[-1] = groups[-1]._replace(texts=groups[-1].texts + 1)
        else:
            groups.append(Group(1, extra, keys))
    return groups


#: The rows that this thread computes; None outside of a call of packed rows.
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
    unknown = [name for name in UNKNOWN if options.get(name) is not None]
    unknown = [name for name in unknown if options[name] is not False]
    if unknown or (options.get("is_causal") is None and getattr(module, "is_causal", False)):
        raise NotByRows(f"attention with {', '.join(unknown) or 'a causal mask'}")

    def masks(start: int, group: Group) -> Tensor | None:
        if sliding_window is None or rows.shape[1] <= sliding_window:
            return None
        name = ("window", start, sliding_window)
        if name not in rows.shared:
            near = rows.distances(start, group).abs() < sliding_window
            if group.extra and not bool(near.any(-1).all()):
                # What stock then gives depends on its own attention function.
                raise NotByRows("padding without a token in its window")
            rows.shared[name] = None if bool(near.all()) else near[:, None].to(query.device)
        return rows.shared[name]

    return by_groups(rows, query, key, value, masks, scaling, dropout), None


def by_groups(
    rows: Rows,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masks: Callable[[int, Group], Tensor | None],
    scaling: float | None,
    dropout: float,
) -> Tensor:
    """Attention of sequences of equal length together: (1, H, T, d) to (1, T, H, d).

    Args:
        rows: The sequences.
        query: (1, H, T, d), or (B, H, S, d) if the batch has no padding.
        key: The same, with H or fewer heads.
        value: As `key`.
        masks: The mask or bias, (count or 1, 1 or H, q, k), of a group that begins at a place.
        scaling: Of the scores; None for 1/sqrt(d).
        dropout: Of the probabilities.
    """
    attention: Any = partial(
        nn.functional.scaled_dot_product_attention,
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    if rows.index is None:
        return attention(query, key, value, masks(0, rows.groups[0])).transpose(1, 2)
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))  # (T, H, d)
    contexts, start = [], 0
    for group in rows.groups:
        count, extra, keys = group
        end = start + count * (extra + keys)
        parts = [
            states[start:end].unflatten(0, (count, extra + keys)).transpose(1, 2)
            for states in (query, key, value)
        ]  # (count, H, q, d)
        if extra:
            parts[1:] = [states[:, :, extra:] for states in parts[1:]]
        context = attention(*parts, masks(start, group))
        contexts.append(context.transpose(1, 2).flatten(0, 1))  # (count·q, H, d)
        start = end
    return (contexts[0] if len(contexts) == 1 else torch.cat(contexts))[None]


AttentionInterface.register(NAME, attend)


class RowsConfig:
    """The config of a module inside of an encoder: it names `attend` while `ROWS` is set.

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


def own_config(config: Any) -> Any:
    """The config behind a `RowsConfig`, or the argument itself."""
    return config.config if type(config) is RowsConfig else config
