"""Joins the items of concurrent awaiting calls into batches, which one thread computes.

An item is a text, a pair of texts, or a question with its context.

No call waits for others: the thread takes the items that are queued, and items that arrive during
a batch form the next one. The event loops, of which there may be several, only queue and await.

The thread ends with the object or with the interpreter, so it needs no `close`.
"""

import asyncio
import dataclasses
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

#: Items that are tokenized together, ahead of their batches.
TOKENIZED_ITEMS = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Counted:
    """An item with its number of tokens."""

    item: Any
    tokens: int

    def __len__(self) -> int:
        return self.tokens


class _Call:
    """The items of one call and their results so far.

    Args:
        items: One or more.
        kind: Only calls of the same kind share a batch.
        finish: Turns the results of the items into the result of the call, in the thread.
    """

    def __init__(self, items: Sequence[Any], kind: Any, finish: Callable[[list[Any]], Any]) -> None:
        self.items = items
        self.kind = kind
        self.finish = finish
        self.rows: list[Any] = [None] * len(items)
        self.missing = len(items)
        self.tokens = 0
        self.loop = asyncio.get_running_loop()
        self.future: Future[Any] = Future()

    @property
    def is_abandoned(self) -> bool:
        """Whether the caller has its result or an error, or has gone away."""
        return self.future.done() or self.loop.is_closed()

    def put(self, index: int, tokens: int, row: Any) -> None:
        """Stores the result of an item. The last one completes the call."""
        self.rows[index] = row
        self.tokens += tokens
        self.missing -= 1
        if not self.missing:
            result = self.finish(self.rows)
            if not self.is_abandoned and self.future.set_running_or_notify_cancel():
                self.future.set_result((result, self.tokens))

    def fail(self, error: BaseException) -> None:
        """Raises the error in the caller."""
        if not self.is_abandoned and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


#: A call, the index of one of its items, and the item's tokens.
_Item = tuple[_Call, int, Sized]


class JoinedCalls:
    """Computes the items of many coroutines.

    Args:
        tokenize: Turns items into objects whose length is their number of tokens.
        compute: Turns a batch of these, and the kind of its calls, into a result per item.
        token_budget: Maximum number of tokens per batch; a longer item is a batch of its own.
    """

    def __init__(
        self,
        tokenize: Callable[[list[Any]], Sequence[Sized]],
        compute: Callable[[list[Any], Any], Iterable[Any]],
        token_budget: int,
    ) -> None:
        _ALIVE.add(self)
        self._arguments = (tokenize, compute, token_budget)
        self._tokenize, self._compute, self._token_budget = self._arguments
        # The lock guards the two attributes below it.
        self._lock = threading.Lock()
        self._queue: deque[tuple[_Call, int]] = deque()
        self._is_working = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hf_bert_impl-encoder")

    def __getstate__(self) -> tuple[Any, ...]:
        return self._arguments  # a copy has its own queue

    def __setstate__(self, arguments: tuple[Any, ...]) -> None:
        self.__init__(*arguments)  # type: ignore[misc]

    async def run(
        self, items: Sequence[Any], kind: Any, finish: Callable[[list[Any]], Any]
    ) -> tuple[Any, int]:
        """Queues the items of a call and awaits its result.

        Args:
            items: One or more.
            kind: Only calls of the same kind share a batch.
            finish: Turns the results of all items into the result, in the computing thread.

        Returns:
            The result of `finish`, and the number of tokens of the items.

        Raises:
            Exception: An error of the tokenizer or the model for these items.
        """
        call = _Call(items, kind, finish)
        with self._lock:
            self._queue.extend((call, index) for index in range(len(items)))
        # After the other coroutines that are ready now, whose items then share the first batch.
        call.loop.call_soon(self._start)
        return await asyncio.wrap_future(call.future)

    def _start(self) -> None:
        with self._lock:
            if self._is_working or not self._queue:
                return
            self._is_working = True
        try:
            self._thread.submit(self._work)
        except RuntimeError as error:  # no new thread can start: the interpreter ends
            self._give_up([], error)

    def _give_up(self, taken: Iterable[_Call], error: BaseException) -> None:
        """Fails all calls, so that none of them waits forever."""
        with self._lock:
            calls = [*taken, *(call for call, _ in self._queue)]
            self._queue.clear()
            self._is_working = False
        for call in calls:
            call.fail(error)

    def _work(self) -> None:
        """Computes batch after batch until the queue is empty."""
        fresh: list[tuple[_Call, int]] = []
        ready: deque[_Item] = deque()
        try:
            while True:
                with self._lock:
                    while self._queue and len(ready) + len(fresh) < TOKENIZED_ITEMS:
                        fresh.append(self._queue.popleft())
                        if fresh[-1][0].is_abandoned:
                            fresh.pop()
                    if not fresh and not ready:
                        self._is_working = False
                        return
                ready.extend(self._tokenized(fresh))
                fresh = []
                self._run(self._cut(ready))
        except BaseException as error:  # errors of single calls go to their callers below
            self._give_up([*(call for call, _ in fresh), *(call for call, *_ in ready)], error)

    def _tokenized(self, fresh: list[tuple[_Call, int]]) -> list[_Item]:
        """The items with their tokens. Calls whose items cannot be tokenized fail."""
        try:
            ids = self._tokenize([call.items[index] for call, index in fresh])
        except BaseException as error:
            return _one_by_one(fresh, self._tokenized, error)
        return [(call, index, row) for (call, index), row in zip(fresh, ids, strict=True)]

    def _cut(self, ready: deque[_Item]) -> list[_Item]:
        """Takes the first batch, without the items of abandoned calls."""
        batch: list[_Item] = []
        tokens = 0
        while ready:
            call, _, ids = ready[0]
            if not call.is_abandoned:
                is_other = bool(batch) and call.kind != batch[0][0].kind
                if is_other or (batch and tokens + len(ids) > self._token_budget):
                    break
                batch.append(ready[0])
                tokens += len(ids)
            ready.popleft()
        return batch

    def _run(self, batch: list[_Item]) -> list[_Item]:
        """Computes a batch; returns an empty list."""
        if not batch:
            return []
        try:
            rows = self._compute([ids for _, _, ids in batch], batch[0][0].kind)
        except BaseException as error:
            return _one_by_one(batch, self._run, error)
        for (call, index, ids), row in zip(batch, rows, strict=True):
            try:
                call.put(index, len(ids), row)
            except BaseException as error:
                call.fail(error)
        return []


_ALIVE: weakref.WeakSet[JoinedCalls] = weakref.WeakSet()


def _start_again() -> None:
    """Renews all objects in a forked child, which has no threads and no calls of its parent."""
    for joined in list(_ALIVE):
        joined.__setstate__(joined.__getstate__())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_again)


def _one_by_one(
    items: list[Any], function: Callable[[list[Any]], list[_Item]], error: BaseException
) -> list[_Item]:
    """Tries each call alone, so that an error reaches only its own call."""
    of_call: dict[_Call, list[Any]] = {}
    for item in items:
        of_call.setdefault(item[0], []).append(item)
    if len(of_call) == 1:
        items[0][0].fail(error)
        return []
    return [item for own in of_call.values() for item in function(own)]
