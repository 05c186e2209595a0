"""Batches within a budget of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
#: The default number of tokens per batch.
TOKEN_BUDGET = 4096


def cut_batches(
    items: Iterable[Item],
    length: Callable[[Item], int],
    *,
    token_budget: int | None = None,
    batch_size: int | None = None,
) -> Iterator[list[Item]]:
    """Cuts items into batches, in order; none is empty.

    Args:
        items: Any number.
        length: The tokens of an item.
        token_budget: Maximum number of tokens per batch; a longer item is a batch alone. None for
            no limit.
        batch_size: Maximum number of items per batch; None for no limit.
    """
    batch: list[Item] = []
    tokens = 0
    for item in items:
        size = length(item)
        if batch and token_budget is not None and tokens + size > token_budget:
            yield batch
            batch, tokens = [], 0
        batch.append(item)
        tokens += size
        if len(batch) == batch_size:  # at once, without waiting for the next item
            yield batch
            batch, tokens = [], 0
    if batch:
        yield batch
