"""`encode_async`: what is joined, what waits, and whom errors and cancellation concern.

The model's thread is held by events, so that no test depends on how quick anything is.
"""

import asyncio
import copy
import gc
import multiprocessing
import pickle
import threading
import weakref

import numpy as np
import pytest

from hf_bert_impl import TextEncoder
from hf_bert_impl.errors import InputError
from hf_bert_impl.inference import joined_calls
from hf_bert_impl.inference.joined_calls import JoinedCalls
from tests.inference.encoder_cases import LONG, SHORT, assert_near

TEXTS = [*SHORT, LONG]
SECONDS = 20  # after which a test fails that would hang


def run(coroutine):
    async def limited():
        return await asyncio.wait_for(coroutine, SECONDS)

    return asyncio.run(limited())


async def result(joined, items, kind, finish):
    return (await joined.run(items, kind, finish))[0]


@pytest.fixture
def encoder(tiny):
    return TextEncoder.from_pretrained(tiny, device="cpu")


class Watched:
    """The batches of an encoder, and a gate before each of them."""

    def __init__(self, encoder, monkeypatch):
        self.batches, self.threads = [], set()
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()
        vectors = encoder._vectors

        def watch(batch, kind):
            self.batches.append(len(batch))
            self.threads.add(threading.current_thread())
            self.begun.set()
            assert self.gate.wait(SECONDS)
            return vectors(batch, kind)

        joined = encoder._joined
        monkeypatch.setattr(joined, "_compute", watch)

    async def hold(self, encoder):
        """A call that is being computed until the gate opens."""
        self.gate.clear()
        self.begun.clear()
        call = asyncio.ensure_future(encoder.encode_async("held"))
        await asyncio.to_thread(self.begun.wait, SECONDS)
        return call


@pytest.fixture
def watched(encoder, monkeypatch):
    watched = Watched(encoder, monkeypatch)
    yield watched
    watched.gate.set()


# --- results -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_embeddings": True, "truncate_dim": 7},
        {"precision": "int8"},
        {"precision": "float16", "convert_to_tensor": True},
        {"prompt_name": "query"},
        {"prompt": "you and "},
    ],
    ids=str,
)
def test_results_are_those_of_encode(tiny, options):
    encoder = TextEncoder.from_pretrained(tiny, device="cpu", prompts={"query": "river "})

    async def calls():
        many = [encoder.encode_async(TEXTS[n:], **options) for n in range(3)]
        return await asyncio.gather(*many, encoder.encode_async([], **options))

    *many, empty = run(calls())
    for n, found in enumerate(many):
        expected = encoder.encode(TEXTS[n:], **options)
        assert type(found) is type(expected) and found.dtype == expected.dtype
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=1e-5)
    assert empty.shape == encoder.encode([], **options).shape
    rows = run(encoder.encode_async(TEXTS, convert_to_numpy=False))
    assert isinstance(rows, list) and not rows[0].is_inference()
    assert_near(run(encoder.encode_async(TEXTS[0])), encoder.encode(TEXTS[0]))


def test_the_same_bits_under_batch_invariance(tiny):
    encoder = TextEncoder.from_pretrained(tiny, device="cpu", batch_invariant=True)
    expected = encoder.encode(TEXTS)

    async def calls():
        return await asyncio.gather(*(encoder.encode_async(text) for text in TEXTS))

    assert np.array_equal(np.stack(run(calls())), expected)


# --- joining -----------------------------------------------------------------------------------


def test_calls_that_are_ready_together_are_one_batch(encoder, watched):
    async def calls():
        first = await asyncio.gather(*(encoder.encode_async(text) for text in TEXTS))
        held = await watched.hold(encoder)
        later = [asyncio.ensure_future(encoder.encode_async(TEXTS[:2])) for _ in range(3)]
        await asyncio.sleep(0)
        watched.gate.set()
        await asyncio.gather(held, *later)
        return first

    assert_near(np.stack(run(calls())), encoder.encode(TEXTS))
    assert watched.batches == [5, 1, 6]
    assert len(watched.threads) == 1
    assert threading.main_thread() not in watched.threads


def test_batches_keep_to_the_budget_and_the_order(encoder):
    batches = []

    def compute(batch, kind):
        batches.append([len(ids) for ids in batch])
        return encoder._vectors(batch, kind)

    joined = JoinedCalls(encoder._tokenize, compute, 20)

    async def calls():
        texts = ["a", "a a a", LONG, "a", "a", "a"]
        return await asyncio.gather(
            *(result(joined, [text], 0, lambda rows: rows) for text in texts)
        )

    run(calls())
    assert batches == [[3, 5], [31], [3, 3, 3]]


def test_tokens_are_counted(encoder):
    """Those of the call, whatever else was in its batches."""

    async def calls():
        given = ["a", ["a", "a a a"], []]
        return await asyncio.gather(
            *(encoder.encode_async(texts, return_tokens=True) for texts in given)
        )

    found = run(calls())
    assert [(vectors.shape, tokens) for vectors, tokens in found] == [
        ((encoder.width,), 3),
        ((2, encoder.width), 8),
        ((0, encoder.width), 0),
    ]


def test_calls_of_other_kinds_have_other_batches(encoder):
    batches = []

    def compute(batch, kind):
        batches.append((kind, len(batch)))
        return encoder._vectors(batch, kind)

    joined = JoinedCalls(encoder._tokenize, compute, 4096)

    async def calls():
        await asyncio.gather(*(result(joined, ["a"], kind, len) for kind in (0, 0, 3, 0)))

    run(calls())
    assert batches == [(0, 2), (3, 1), (0, 1)]


# --- waiting, cancellation and errors ----------------------------------------------------------


def test_a_full_queue_makes_calls_wait(encoder, watched, monkeypatch):
    monkeypatch.setattr(joined_calls, "QUEUED_TEXTS", 3)
    joined = encoder._joined

    async def calls():
        held = await watched.hold(encoder)
        others = [asyncio.ensure_future(encoder.encode_async(["a", "b"])) for _ in range(4)]
        for _ in range(5):
            await asyncio.sleep(0)
        # Two calls find room, the second of them the last of it; two wait in front of it.
        assert (joined._held, len(joined._queue), len(joined._waiting)) == (4, 4, 2)
        others[2].cancel()
        watched.gate.set()
        await held
        done = await asyncio.gather(*others, return_exceptions=True)
        assert isinstance(done.pop(2), asyncio.CancelledError)
        assert [len(vectors) for vectors in done] == [2, 2, 2]

    run(calls())
    assert (joined._held, len(joined._waiting)) == (0, 0)


def test_a_cancelled_call_is_not_computed_and_hurts_nobody(encoder, watched):
    async def calls():
        held = await watched.hold(encoder)
        dropped = asyncio.ensure_future(encoder.encode_async(TEXTS))
        kept = asyncio.ensure_future(encoder.encode_async(TEXTS[:2]))
        await asyncio.sleep(0)
        dropped.cancel()
        await asyncio.wait([dropped])
        watched.gate.set()
        await held
        return await kept

    assert_near(run(calls()), encoder.encode(TEXTS[:2]))
    assert watched.batches == [1, 2]
    assert encoder._joined._held == 0


def test_a_call_that_is_cancelled_while_it_is_computed(encoder, watched):
    async def calls():
        held = await watched.hold(encoder)
        held.cancel()
        await asyncio.wait([held])
        kept = asyncio.ensure_future(encoder.encode_async(TEXTS))
        watched.gate.set()
        return await kept

    assert_near(run(calls()), encoder.encode(TEXTS))


def test_a_cancelled_call_frees_its_slots_at_once(encoder, watched, monkeypatch):
    monkeypatch.setattr(joined_calls, "QUEUED_TEXTS", 3)
    joined = encoder._joined

    async def calls():
        held = await watched.hold(encoder)
        dropped = asyncio.ensure_future(encoder.encode_async(TEXTS))
        waits = asyncio.ensure_future(encoder.encode_async(TEXTS[:2]))
        await asyncio.sleep(0)
        assert (joined._held, len(joined._waiting)) == (len(TEXTS), 1)
        dropped.cancel()
        await asyncio.wait([dropped])
        # The model is held still.
        assert (joined._held, len(joined._waiting)) == (2, 0)
        watched.gate.set()
        await held
        return await waits

    assert_near(run(calls()), encoder.encode(TEXTS[:2]))
    assert watched.batches == [1, 2] and joined._held == 0


def test_an_error_comes_to_its_own_caller(encoder):
    def tokenize(texts):
        if "river" in texts:
            raise ZeroDivisionError
        return encoder._tokenize(texts)

    joined = JoinedCalls(tokenize, encoder._vectors, 4096)

    async def calls():
        texts = (SHORT, ["a", "river"], ["river"], TEXTS)
        every = (result(joined, text, 0, len) for text in texts)
        return await asyncio.gather(*every, return_exceptions=True)

    found = run(calls())
    assert [type(one) for one in found] == [int, ZeroDivisionError, ZeroDivisionError, int]
    assert joined._held == 0


@pytest.mark.parametrize("name", ["encode", "encode_async", "encode_stream"])
def test_half_a_character_is_named_by_its_index(encoder, name):
    texts = ["a"] * 122
    texts[77] = "nice \ud83d"
    with pytest.raises(InputError, match=r"texts\[77\] has half a surrogate pair \('\\ud83d'\)"):
        found = getattr(encoder, name)(texts)
        run(found) if name == "encode_async" else list(found)


def test_an_error_of_the_model_comes_to_its_own_caller(encoder):
    unlucky = encoder._tokenize(["river"])[0]

    def compute(batch, kind):
        if unlucky in batch:
            raise MemoryError("too much")
        return encoder._vectors(batch, kind)

    joined = JoinedCalls(encoder._tokenize, compute, 4096)

    async def calls():
        texts = (["a"], ["a", "river"], ["a", "a"])
        return await asyncio.gather(
            *(result(joined, text, 0, len) for text in texts), return_exceptions=True
        )

    one, failed, two = run(calls())
    assert (one, two) == (1, 2) and isinstance(failed, MemoryError)
    assert run(result(joined, ["a"], 0, len)) == 1
    assert joined._held == 0


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_no_call_waits_for_ever_where_the_thread_fails(encoder, monkeypatch, error):
    joined = JoinedCalls(encoder._tokenize, encoder._vectors, 4096)

    async def calls():
        runs = (result(joined, ["a", "b"], 0, len) for _ in range(3))
        return await asyncio.gather(*runs, return_exceptions=True)

    def fail(*_):
        raise error

    with monkeypatch.context() as patch:
        if error is RuntimeError:  # what an executor raises when the interpreter ends
            patch.setattr(joined._thread, "submit", fail)
        else:
            patch.setattr(joined, "_cut", fail)
        assert [type(found) for found in run(calls())] == [error] * 3
    assert joined._held == 0
    assert run(calls()) == [2, 2, 2]


def test_an_error_of_what_finishes_a_call(encoder):
    joined = JoinedCalls(encoder._tokenize, encoder._vectors, 4096)

    def fail(rows):
        raise ZeroDivisionError

    async def calls():
        return await asyncio.gather(
            result(joined, ["a"], 0, fail), result(joined, ["a"], 0, len), return_exceptions=True
        )

    failed, one = run(calls())
    assert isinstance(failed, ZeroDivisionError) and one == 1


def test_wrong_arguments_are_not_queued(encoder, watched):
    with pytest.raises(TypeError, match=r"texts\[1\] is int; give each text as a str"):
        run(encoder.encode_async(["a", 1]))
    with pytest.raises(TypeError, match="texts is generator"):
        run(encoder.encode_async(text for text in TEXTS))
    with pytest.raises(InputError, match="no prompt 'x'"):
        run(encoder.encode_async("a", "x"))
    with pytest.raises(InputError, match="there is one vector"):
        run(encoder.encode_async("a", precision="int8"))
    with pytest.raises(InputError, match="truncate_dim is 0"):
        run(encoder.encode_async("a", truncate_dim=0))
    assert not watched.batches


# --- event loops, threads and copies -----------------------------------------------------------


def test_the_event_loop_goes_on_while_the_model_works(encoder, watched):
    async def calls():
        held = await watched.hold(encoder)
        for _ in range(100):  # the model is held all the while
            await asyncio.sleep(0)
        assert not held.done()
        watched.gate.set()
        return await held

    assert run(calls()).shape == (30,)


def test_several_event_loops_share_batches(encoder, watched):
    results = {}

    def other(name):
        results[name] = run(encoder.encode_async(TEXTS))

    async def calls():
        held = await watched.hold(encoder)
        threads = [threading.Thread(target=other, args=(name,)) for name in range(2)]
        for thread in threads:
            thread.start()
        while len(encoder._joined._queue) < 2 * len(TEXTS):
            await asyncio.sleep(0)
        watched.gate.set()
        await held
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))

    run(calls())
    assert watched.batches == [1, 10]
    for found in results.values():
        assert_near(found, encoder.encode(TEXTS))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_is_closed_in_the_middle(encoder, watched, monkeypatch):
    """Its calls are dropped, those that waited for room too, and the next loop finds a free way."""
    monkeypatch.setattr(joined_calls, "QUEUED_TEXTS", 2)
    watched.gate.clear()
    loop = asyncio.new_event_loop()
    calls = [loop.create_task(encoder.encode_async(TEXTS)) for _ in range(3)]
    # The first is in the model, the second queued, and the third waits for room.
    while not watched.begun.is_set() or len(encoder._joined._waiting) != 1:
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    watched.gate.set()
    for call in calls:
        call._log_destroy_pending = False
    del calls, call
    gc.collect()
    assert_near(run(encoder.encode_async(TEXTS)), encoder.encode(TEXTS))
    assert (encoder._joined._held, len(encoder._joined._waiting)) == (0, 0)


def test_a_loop_that_is_closed_before_the_thread_was_called(encoder, monkeypatch):
    monkeypatch.setattr(joined_calls, "QUEUED_TEXTS", 2)
    loop = asyncio.new_event_loop()
    call = loop.create_task(encoder.encode_async(TEXTS))
    call._log_destroy_pending = False
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
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


def test_copies_have_a_queue_of_their_own(encoder):
    expected = run(encoder.encode_async(TEXTS))
    for other in (pickle.loads(pickle.dumps(encoder)), copy.deepcopy(encoder)):
        assert other._joined is not encoder._joined
        assert other._joined._compute.__self__ is other
        assert_near(run(other.encode_async(TEXTS)), expected)
