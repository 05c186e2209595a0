"""`encode_async`: what is joined, what waits, and whom errors and cancellation concern.

The model's thread is held by events, so that no test depends on how quick anything is.
"""

import asyncio
import gc
import multiprocessing
import threading
import weakref

import pytest

from hf_bert_impl import TextEncoder
from hf_bert_impl.inference.joined_calls import JoinedCalls

SECONDS = 20  # after which a test fails that would hang


async def gathered(*calls):
    """The results and errors of calls that are made together."""
    return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), SECONDS)


class Gated:
    """Joined calls in upper case, in batches of 6 characters, with a gate before each batch."""

    def __init__(self):
        self.batches, self.threads = [], set()
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()
        self.joined = JoinedCalls(self.compute, len, 6)

    def compute(self, items, kind):
        self.batches.append((kind, list(items)))
        self.threads.add(threading.current_thread())
        self.begun.set()
        assert self.gate.wait(SECONDS)
        if "bad" in items:
            raise RuntimeError
        return [item.upper() for item in items]

    def call(self, *items, kind=0):
        return asyncio.ensure_future(self.joined.run(items, kind))

    async def hold(self, *items):
        """A call that is being computed until the gate opens."""
        self.gate.clear()
        self.begun.clear()
        call = self.call(*items)
        await asyncio.to_thread(self.begun.wait, SECONDS)
        return call


@pytest.fixture
def gated():
    gated = Gated()
    yield gated
    gated.gate.set()


def test_batches_keep_to_the_budget_the_order_and_the_kind(gated):
    """Calls that are ready together are joined, also behind a batch at work; a long call is cut."""
    given = [(["a"], 0), (["bbb", "c"], 0), (["d" * 31], 0), (["e"], 0), (["f"], 0), (["g"], 3)]
    given += [(["hhh", "ii", "jj"], 3), ([], 3), (["k"], 0)]
    expected = [(0, ["a", "bbb", "c"]), (0, ["d" * 31]), (0, ["e", "f"])]
    expected += [(3, ["g", "hhh", "ii"]), (3, ["jj"]), (0, ["k"])]

    async def calls(held):
        first = [await gated.hold("held")] if held else []
        later = [gated.call(*items, kind=kind) for items, kind in given]
        await asyncio.sleep(0)
        gated.gate.set()
        return (await gathered(*first, *later))[held:]

    for held in (0, 1):
        gated.batches.clear()
        found = asyncio.run(calls(held))
        assert found == [[item.upper() for item in items] for items, _ in given]
        assert gated.batches[held:] == expected
    assert len(gated.threads) == 1 and threading.main_thread() not in gated.threads


def test_a_cancelled_call_is_not_computed(gated):
    """Nor the rest of a call that is cut into batches."""

    async def calls():
        held = await gated.hold("a" * 6, "b")
        dropped, waits = gated.call("c"), gated.call("d", "e")
        await asyncio.sleep(0)
        dropped.cancel()
        held.cancel()  # while it is computed
        await asyncio.wait([dropped, held])
        gated.gate.set()
        return await waits

    assert asyncio.run(calls()) == ["D", "E"]
    assert gated.batches == [(0, ["a" * 6]), (0, ["d", "e"])]


def test_an_error_comes_to_its_own_caller(gated, monkeypatch):
    async def failed():
        found = await gathered(*map(gated.call, ["a", "bad", "c"]))
        return [isinstance(one, RuntimeError) for one in found]

    def refuse(*_):
        raise RuntimeError

    assert asyncio.run(failed()) == [False, True, False]
    with monkeypatch.context() as patch:  # as an executor when the interpreter ends
        patch.setattr(gated.joined._thread, "submit", refuse)
        assert asyncio.run(failed()) == [True, True, True]
    assert asyncio.run(failed()) == [False, True, False]


def test_the_thread_ends_with_the_encoder(tiny):
    encoder = TextEncoder.from_pretrained(tiny, device="cpu")
    before = set(threading.enumerate())
    asyncio.run(gathered(encoder.encode_async("a")))
    begun = set(threading.enumerate()) - before  # also a library's
    (thread,) = (one for one in begun if one.name.startswith("hf_bert_impl-encoder"))
    gone = weakref.ref(encoder)
    del encoder
    for _ in range(SECONDS):  # the thread may still be on its way out of the call
        gc.collect()
        thread.join(1)
        if not thread.is_alive():
            break
    assert gone() is None and not thread.is_alive()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_a_thread_of_its_own(gated):
    """Also where the parent's is at work."""
    context = multiprocessing.get_context("fork")

    def child():
        gated.gate = threading.Event()
        gated.gate.set()
        assert asyncio.run(gathered(gated.joined.run(["c"]))) == [["C"]]

    async def calls():
        held = await gated.hold("a")
        process = context.Process(target=child)
        process.start()
        process.join(SECONDS)
        process.kill()
        assert process.exitcode == 0
        gated.gate.set()
        return await held

    assert asyncio.run(calls()) == ["A"]
