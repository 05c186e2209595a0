"""Joins the items of concurrent awaiting calls into batches, which one thread computes.

An item is a text, a pair of texts, or a question with its context.

No call waits for others: the thread takes the items that are queued, and items that arrive during
a batch form the next one. The event loops, of which there may be several, only queue and await.

The thread ends with the object or with the interpreter, so it needs no `close`.
"""

import asyncio
import dataclasses
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hf_bert_impl.data.token_budget import TOKEN_BUDGET, cut_batches

#: Maximum number of characters per batch: an estimate of `TOKEN_BUDGET` for European languages.
CHARACTERS = 4 * TOKEN_BUDGET


@dataclasses.dataclass(eq=False)
class _Piece:
    """Neighbouring items of one call, which are computed together."""

    items: list[Any]
    kind: Any
    characters: int
    future: Future[list[Any]]


class JoinedCalls:
    """Computes the items of many coroutines.

    Args:
        compute: Turns items, and the kind of their calls, into a result per item.
        length: The number of characters of an item.
        characters: Maximum number of characters per batch; a longer item is its own batch.
    """

    def __init__(
        self,
        compute: Callable[[list[Any], Any], Iterable[Any]],
        length: Callable[[Any], int],
        characters: int = CHARACTERS,
    ) -> None:
        self._compute, self._length, self._characters = compute, length, characters
        self._renew()

    def __reduce__(self) -> tuple[Any, ...]:  # a copy has its own queue
        return type(self), (self._compute, self._length, self._characters)

    def _renew(self) -> None:
        self._process = os.getpid()
        self._queue: deque[_Piece] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hf_bert_impl-encoder")

    async def run(self, items: Sequence[Any], kind: Any = None) -> list[Any]:
        """Queues the items of a call and awaits their results.

        Args:
            items: Any number.
            kind: Only calls of the same kind share a batch.

        Raises:
            Exception: An error of `compute` for these items.
        """
        if self._process != os.getpid():  # a forked child has no threads
            self._renew()
        pieces = [
            _Piece(some, kind, sum(map(self._length, some)), Future())
            for some in cut_batches(items, self._length, token_budget=self._characters)
        ]
        self._queue.extend(pieces)
        try:
            await asyncio.sleep(0)  # so that other coroutines that are ready share the first batch
            self._thread.submit(self._work)
            results = [await asyncio.wrap_future(piece.future) for piece in pieces]
        finally:
            for piece in pieces:  # the rest, if the call is cancelled or has failed
                piece.future.cancel()
        return list(itertools.chain.from_iterable(results))

    def _work(self) -> None:
        """Computes batch after batch until the queue is empty."""
        while self._queue:
            batch = [self._queue.popleft()]
            free = self._characters - batch[0].characters
            while self._queue:
                piece = self._queue[0]
                if piece.kind != batch[0].kind or piece.characters > free:
                    break
                free -= piece.characters
                batch.append(self._queue.popleft())
            self._run([one for one in batch if one.future.set_running_or_notify_cancel()])

    def _run(self, batch: list[_Piece]) -> None:
        """Computes pieces together, and each alone if that fails."""
        if not batch:
            return
        try:
            rows = self._compute([item for one in batch for item in one.items], batch[0].kind)
        except BaseException as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
            else:
                for one in batch:
                    self._run([one])
            return
        rest = iter(rows)
        for one in batch:
            one.future.set_result(list(itertools.islice(rest, len(one.items))))
