"""`encode_async`: what is joined, what waits, and whom errors and cancellation concern.

The model's thread is held by events, so that no test depends on how quick anything is.
"""

import asyncio
import gc
import multiprocessing
import threading
import weakref

import numpy as np
import pytest

from hf_bert_impl import TextEncoder
from hf_bert_impl.inference.joined_calls import JoinedCalls
from tests.inference.encoder_cases import TEXTS, assert_near

SECONDS = 20  # after which a test fails that would hang


def run(coroutine):
    async def limited():
        return await asyncio.wait_for(coroutine, SECONDS)

    return asyncio.run(limited())


def run_all(*coroutines):
    """The results and errors of calls that are made together."""

    async def gathered():
        return await asyncio.gather(*coroutines, return_exceptions=True)

    return run(gathered())


@pytest.fixture
def encoder(tiny):
    return TextEncoder.from_pretrained(tiny, device="cpu")


class Watched:
    """The batches of an encoder, and a gate before each of them."""

    def __init__(self, encoder, monkeypatch):
        self.batches, self.threads = [], set()
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()
        vectors = encoder._joined._compute

        def watch(batch, kind):
            self.batches.append(len(batch))
            self.threads.add(threading.current_thread())
            self.begun.set()
            assert self.gate.wait(SECONDS)
            return vectors(batch, kind)

        joined = encoder._joined
        monkeypatch.setattr(joined, "_compute", watch)

    async def hold(self, encoder, texts="held"):
        """A call that is being computed until the gate opens."""
        self.gate.clear()
        self.begun.clear()
        call = asyncio.ensure_future(encoder.encode_async(texts))
        await asyncio.to_thread(self.begun.wait, SECONDS)
        return call


@pytest.fixture
def watched(encoder, monkeypatch):
    watched = Watched(encoder, monkeypatch)
    yield watched
    watched.gate.set()


# --- results and batches -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_embeddings": True, "truncate_dim": 7},
        {"precision": "int8"},
        {"precision": "float16", "convert_to_tensor": True},
        {"prompt_name": "query"},
    ],
    ids=str,
)
def test_results_are_those_of_encode(tiny, options):
    encoder = TextEncoder.from_pretrained(tiny, device="cpu", prompts={"query": "river "})
    given = [TEXTS, TEXTS[1:], TEXTS[2:], []]
    for texts, found in zip(
        given, run_all(*(encoder.encode_async(texts, **options) for texts in given)), strict=True
    ):
        expected = encoder.encode(texts, **options)
        assert type(found) is type(expected) and found.dtype == expected.dtype
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=1e-5)


def test_calls_that_are_ready_together_are_one_batch(encoder, watched):
    async def calls():
        await asyncio.gather(*(encoder.encode_async(text) for text in TEXTS))
        held = await watched.hold(encoder)
        later = [asyncio.ensure_future(encoder.encode_async(TEXTS[:2])) for _ in range(3)]
        await asyncio.sleep(0)
        watched.gate.set()
        await asyncio.gather(held, *later)

    run(calls())
    assert watched.batches == [5, 1, 6]
    assert len(watched.threads) == 1
    assert threading.main_thread() not in watched.threads


def test_batches_keep_to_the_budget_the_order_and_the_kind():
    """A long call is cut into pieces, and short ones are joined."""
    batches = []

    def compute(items, kind):
        batches.append((kind, list(items)))
        return [item.upper() for item in items]

    joined = JoinedCalls(compute, len, 6)
    given = [(["a"], 0), (["bbb", "c"], 0), (["d" * 31], 0), (["e"], 0), (["f"], 0), (["g"], 3)]
    given += [(["hhh", "ii", "jj"], 3), ([], 3), (["k"], 0)]
    found = run_all(*(joined.run(items, kind) for items, kind in given))
    assert found == [[item.upper() for item in items] for items, _ in given]
    expected = [(0, ["a", "bbb", "c"]), (0, ["d" * 31]), (0, ["e", "f"])]
    assert batches == [*expected, (3, ["g", "hhh", "ii"]), (3, ["jj"]), (0, ["k"])]


# --- waiting, cancellation and errors ----------------------------------------------------------


def test_a_cancelled_call_is_not_computed(encoder, watched, monkeypatch):
    """Nor the rest of a call that is cut into batches."""
    monkeypatch.setattr(encoder._joined, "_characters", 40)

    async def calls():
        held = await watched.hold(encoder, TEXTS)
        dropped = asyncio.ensure_future(encoder.encode_async(TEXTS))
        waits = asyncio.ensure_future(encoder.encode_async(TEXTS[:2]))
        await asyncio.sleep(0)
        dropped.cancel()
        held.cancel()  # while it is computed
        await asyncio.wait([dropped, held])
        watched.gate.set()
        return await waits

    assert_near(run(calls()), encoder.encode(TEXTS[:2]))
    first, *others = watched.batches
    assert first < len(TEXTS) and others == [2]


@pytest.mark.parametrize("place", ["compute", "thread"])
def test_an_error_comes_to_its_own_caller(monkeypatch, place):
    def fail(*_):
        raise RuntimeError

    def compute(items, kind):
        return fail() if place == "compute" and "river" in items else items

    joined = JoinedCalls(compute, len, 4096)
    given = (["a"], ["a", "river", "a"], ["a", "a"])
    with monkeypatch.context() as patch:
        if place == "thread":  # as an executor when the interpreter ends
            patch.setattr(joined._thread, "submit", fail)
        found = run_all(*map(joined.run, given))
    is_failed = [isinstance(one, RuntimeError) for one in found]
    assert is_failed == ([True] * 3 if place == "thread" else [False, True, False])
    assert run(joined.run(["a"])) == ["a"]


# --- event loops, threads and copies -----------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_is_closed_in_the_middle(encoder, watched):
    """Its calls are dropped, and the next loop gets its results."""
    watched.gate.clear()
    loop = asyncio.new_event_loop()
    calls = [loop.create_task(encoder.encode_async(TEXTS)) for _ in range(3)]
    while not watched.begun.is_set():
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    watched.gate.set()
    for call in calls:
        call._log_destroy_pending = False
    del calls, call
    gc.collect()
    assert_near(run(encoder.encode_async(TEXTS)), encoder.encode(TEXTS))


def test_the_thread_ends_with_the_encoder(tiny):
    encoder = TextEncoder.from_pretrained(tiny, device="cpu")
    before = set(threading.enumerate())
    run(encoder.encode_async("a"))
    thread = (set(threading.enumerate()) - before).pop()
    assert thread.name.startswith("hf_bert_impl-encoder")
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
def test_a_forked_child_has_a_thread_of_its_own(encoder, watched):
    """Also where the parent's is at work."""
    context = multiprocessing.get_context("fork")

    def child(results):
        watched.gate = threading.Event()
        watched.gate.set()
        results.put(run(encoder.encode_async(TEXTS)))

    async def calls():
        held = await watched.hold(encoder)
        waits = asyncio.ensure_future(encoder.encode_async(TEXTS))
        await asyncio.sleep(0)
        results = context.SimpleQueue()
        process = context.Process(target=child, args=(results,))
        process.start()
        process.join(SECONDS)
        process.kill()
        assert process.exitcode == 0
        watched.gate.set()
        await held
        return results.get(), await waits

    found, waited = run(calls())
    assert_near(found, encoder.encode(TEXTS))
    assert_near(waited, found)
