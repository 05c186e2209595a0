"""Items of concurrent awaiting calls, joined into batches that one thread computes.

An item is a text, a pair of texts or a question with its context; its tokens are whatever the model
takes, and `len` of them is their number.

No call waits for others to come: the thread takes what is there, and what comes while the model
works is the next batch. The event loops, of which there may be several, only queue and await.

The thread ends with the object, or with the interpreter; there is nothing to close.
"""

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

#: A call waits before it queues its texts while so many are in the queue.
QUEUED_TEXTS = 1024
#: Texts that are tokenized together, ahead of the batches that they become.
TOKENIZED_TEXTS = 256


class _Call:
    """The items of one call, and what is known of their results.

    Args:
        items: One or more.
        kind: Only calls of the same kind share a batch.
        finish: From the results of its items to that of the call, in the thread.
    """

    def __init__(self, items: Sequence[Any], kind: int, finish: Callable[[list[Any]], Any]) -> None:
        self.items = items
        self.kind = kind
        self.finish = finish
        self.rows: list[Any] = [None] * len(items)
        self.missing = len(items)
        self.tokens = 0
        self.loop = asyncio.get_running_loop()
        self.future: Future[Any] = Future()

    @property
    def is_over(self) -> bool:
        """Whether nobody awaits it any more."""
        return self.future.done() or self.loop.is_closed()

    def put(self, index: int, tokens: int, row: Any) -> None:
        """Takes the result of an item, and with the last one makes that of the call."""
        self.rows[index] = row
        self.tokens += tokens
        self.missing -= 1
        if not self.missing:
            result = self.finish(self.rows)
            if not self.is_over and self.future.set_running_or_notify_cancel():
                self.future.set_result((result, self.tokens))

    def fail(self, error: BaseException) -> None:
        """Gives its caller the error."""
        if not self.is_over and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


#: An item of a call by its index, and its tokens once they are known.
_Item = tuple[_Call, int, Sized]


class _Room:
    """A call that waits until the queue has room."""

    def __init__(self, texts: int) -> None:
        self.texts = texts
        self.loop = asyncio.get_running_loop()
        self.future: Future[None] = Future()


class JoinedCalls:
    """Computes what comes from many coroutines.

    Args:
        tokenize: Items to their tokens.
        compute: The tokens of a batch, and the kind of its calls, to a result for each.
        token_budget: Most tokens of a batch; a longer item is a batch of its own.
    """

    def __init__(
        self,
        tokenize: Callable[[list[Any]], Sequence[Sized]],
        compute: Callable[[list[Any], int], Iterable[Any]],
        token_budget: int,
    ) -> None:
        _ALIVE.add(self)
        self._arguments = (tokenize, compute, token_budget)
        self._tokenize, self._compute, self._token_budget = self._arguments
        # Below: what the lock guards. The end of a coroutine, in which it is taken, can come by the
        # garbage collection of a thread that has it.
        self._lock = threading.RLock()
        self._queue: deque[tuple[_Call, int]] = deque()
        self._waiting: deque[_Room] = deque()
        #: Texts that are queued, or tokenized and in no batch yet.
        self._held = 0
        self._is_working = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hf_bert_impl-encoder")

    def __getstate__(self) -> tuple[Any, ...]:
        return self._arguments  # a copy has a queue of its own

    def __setstate__(self, arguments: tuple[Any, ...]) -> None:
        self.__init__(*arguments)  # type: ignore[misc]

    async def run(
        self, items: Sequence[Any], kind: int, finish: Callable[[list[Any]], Any]
    ) -> tuple[Any, int]:
        """Queues the items of a call and awaits its result.

        Args:
            items: One or more.
            kind: Only calls of the same kind share a batch.
            finish: From the results of all items to the result, in the thread that computes.

        Returns:
            What `finish` gives, and how many tokens the items had.

        Raises:
            Exception: Whatever the tokenizer or the model raise for these items.
        """
        await self._make_room(len(items))
        call = _Call(items, kind, finish)
        with self._lock:
            self._queue.extend((call, index) for index in range(len(items)))
        # After the other coroutines that are ready now, whose texts then share the first batch.
        asyncio.get_running_loop().call_soon(self._start)
        try:
            return await asyncio.wrap_future(call.future)
        except (asyncio.CancelledError, Exception):  # a closed loop's calls are dropped in a batch
            call.future.cancel()
            self._drop(call)
            raise

    async def _make_room(self, texts: int) -> None:
        with self._lock:
            if not self._waiting and self._held < QUEUED_TEXTS:
                self._held += texts
                return
            room = _Room(texts)
            self._waiting.append(room)
        room.loop.call_soon(self._start)  # where a loop was closed before it could
        try:
            await asyncio.wrap_future(room.future)
        except BaseException:  # also where the loop is closed and the coroutine thrown away
            if not room.future.cancel():
                self._let_go(texts)
            raise

    def _let_go(self, texts: int) -> None:
        """Gives room back, and to those that wait for it, in their order."""
        with self._lock:
            self._held -= texts
            while self._waiting and self._held < QUEUED_TEXTS:
                room = self._waiting.popleft()
                # Nobody would ever give back what a closed loop was given.
                if not room.loop.is_closed() and room.future.set_running_or_notify_cancel():
                    self._held += room.texts
                    room.future.set_result(None)

    def _drop(self, call: _Call) -> None:
        """Takes the items of a call that has ended out of the queue, and frees their slots."""
        with self._lock:
            before = len(self._queue)
            self._queue = deque(item for item in self._queue if item[0] is not call)
            self._let_go(before - len(self._queue))

    def _start(self) -> None:
        with self._lock:
            if self._is_working or not self._queue:
                return
            self._is_working = True
        try:
            self._thread.submit(self._work)
        except RuntimeError as error:  # no thread can be made any more: the interpreter ends
            self._give_up([], error)

    def _give_up(self, taken: Iterable[_Call], error: BaseException) -> None:
        """Fails all calls that are there: nobody may wait for ever."""
        with self._lock:
            calls = [*taken, *(call for call, _ in self._queue)]
            self._queue.clear()
            self._is_working = False
        self._let_go(len(calls))
        for call in calls:
            call.fail(error)

    def _work(self) -> None:
        """Computes batch after batch until the queue is empty."""
        fresh: list[tuple[_Call, int]] = []
        ready: deque[_Item] = deque()
        try:
            while True:
                with self._lock:
                    count = min(len(self._queue), TOKENIZED_TEXTS - len(ready))
                    fresh = [self._queue.popleft() for _ in range(count)]
                    if not fresh and not ready:
                        self._is_working = False
                        return
                before = len(ready) + len(fresh)
                ready.extend(self._tokenized(fresh))
                fresh = []
                batch = self._cut(ready)
                self._let_go(before - len(ready))
                self._run(batch)
        except BaseException as error:  # those of texts go to their calls below
            self._give_up([*(call for call, _ in fresh), *(call for call, *_ in ready)], error)

    def _tokenized(self, fresh: list[tuple[_Call, int]]) -> list[_Item]:
        """The same with their token ids, without the calls whose texts cannot be tokenized."""
        try:
            ids = self._tokenize([call.items[index] for call, index in fresh])
        except BaseException as error:
            return _apart(fresh, self._tokenized, error)
        return [(call, index, row) for (call, index), row in zip(fresh, ids, strict=True)]

    def _cut(self, ready: deque[_Item]) -> list[_Item]:
        """Takes the first batch, and drops what nobody awaits any more."""
        batch: list[_Item] = []
        tokens = 0
        while ready:
            call, _, ids = ready[0]
            if not call.is_over:
                is_other = bool(batch) and call.kind != batch[0][0].kind
                if is_other or (batch and tokens + len(ids) > self._token_budget):
                    break
                batch.append(ready[0])
                tokens += len(ids)
            ready.popleft()
        return batch

    def _run(self, batch: list[_Item]) -> list[_Item]:
        """Computes a batch; no item is left of it."""
        if not batch:
            return []
        try:
            rows = self._compute([ids for _, _, ids in batch], batch[0][0].kind)
        except BaseException as error:
            return _apart(batch, self._run, error)
        for (call, index, ids), row in zip(batch, rows, strict=True):
            try:
                call.put(index, len(ids), row)
            except BaseException as error:
                call.fail(error)
        return []


_ALIVE: weakref.WeakSet[JoinedCalls] = weakref.WeakSet()


def _start_again() -> None:
    """In a forked child: threads of the parent are not there, and its calls are nobody's."""
    for joined in list(_ALIVE):
        joined.__setstate__(joined.__getstate__())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_again)


def _apart(
    items: list[Any], function: Callable[[list[Any]], list[_Item]], error: BaseException
) -> list[_Item]:
    """Tries again, each call by itself, so that an error comes to the call that it is of."""
    of_call: dict[_Call, list[Any]] = {}
    for item in items:
        of_call.setdefault(item[0], []).append(item)
    if len(of_call) == 1:
        items[0][0].fail(error)
        return []
    return [item for own in of_call.values() for item in function(own)]
