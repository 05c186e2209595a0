"""The clients that exist, each against a server of its own shape, without Ray."""

import base64
import contextlib
import functools
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

import httpx
import huggingface_hub
import openai
import uvicorn
from sentence_transformers import CrossEncoder

from hf_bert_impl import QuestionAnsweringPipeline, TextEncoder
from hf_bert_impl.inference.classifier import TextClassifier
from hf_bert_impl.inference.loading import load_prepared
from hf_bert_impl.serving.app import make_app
from hf_bert_impl.serving.model_worker import ModelWorker
from hf_bert_impl.serving.options import ServingOptions
from hf_bert_impl.serving.server import _bound_socket
from tests.serving.conftest import Slow
from tests.support.checkpoints import TEXTS

#: Longer than the models take.
LONG = "nice to meet you, " + "the river rose over " * 12 + "night and a."


@contextlib.contextmanager
def listening(app, **options):
    """A server in a thread: itself, its thread and its socket."""
    config = uvicorn.Config(app, log_level="error", lifespan="off", **options)
    server = uvicorn.Server(config)
    with _bound_socket("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield server, thread, listener
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def address(served):
    """The addresses of servers by task."""
    with contextlib.ExitStack() as running:

        @functools.cache
        def start(task):
            app = make_app(ModelWorker("small", task, served(task)))
            *_, listener = running.enter_context(listening(app))
            return f"http://127.0.0.1:{listener.getsockname()[1]}"

        yield start


WHOLE = (
    b"POST /v1/embeddings HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
    b'Content-Length: 14\r\n\r\n{"input": "a"}'
)


def test_requests_that_stop_coming():
    """Bodies have their time, and after SIGTERM what is left of the drain time."""

    def until_closed(listener, sent):
        with socket.create_connection(listener.getsockname()) as client:
            client.settimeout(30)
            client.sendall(sent)
            return b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")

    with listening(make_app(Slow(), ServingOptions(timeout=1))) as (*_, listener):
        start, _, found = until_closed(listener, WHOLE[:-3])
        assert b" 408 " in start and json.loads(found)["error"]["code"] == 408
    pool = ThreadPoolExecutor()
    with pool, listening(make_app(Slow()), timeout_graceful_shutdown=1) as running:
        server, thread, listener = running
        calls = [pool.submit(until_closed, listener, sent) for sent in (WHOLE[:-3], WHOLE)]
        time.sleep(0.5)
        begin, server.should_exit = time.monotonic(), True
        thread.join()
        assert time.monotonic() - begin < 5
        for call in calls:
            start, _, found = call.result()
            assert b" 503 " in start and b"\r\nretry-after: 5\r\n" in start
            assert json.loads(found)["error"]["type"] == "server_error"


@pytest.mark.timeout(50)  # less than an answer takes
def test_clients_that_go_away_free_their_places():
    """While their texts are computed, or while the body comes."""
    with listening(make_app(Slow())) as (*_, listener):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"

        def wait_for(*lines):
            while not {*lines} <= {*httpx.get(url, trust_env=False).text.splitlines()}:
                time.sleep(0.02)

        for sent, queued in ((WHOLE, 1), (WHOLE[:-3], 0)):
            with socket.create_connection(listener.getsockname()) as client:
                client.sendall(sent)
                wait_for(f"hf_bert_queued_texts {queued}.0")
        gone = 'hf_bert_requests_total{path="/v1/embeddings",status="499"} 2.0'
        wait_for(gone, "hf_bert_queued_texts 0.0")


@pytest.fixture(scope="module")
def encoder(served):
    return TextEncoder.from_pretrained(served("embed"), batch_invariant=True)


@pytest.fixture
def hub(address, monkeypatch):
    """Makes the hub's client of a served task, at the address alone or at a path."""
    # The servers are on this machine.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    huggingface_hub.close_session()
    yield lambda task, path="": huggingface_hub.InferenceClient(
        provider="hf-inference", model=address(task) + path
    )
    huggingface_hub.close_session()


@pytest.mark.parametrize("encoding_format", ["float", "base64", openai.omit])
def test_openai(address, encoder, encoding_format):
    client = openai.OpenAI(base_url=f"{address('embed')}/v1", api_key="any")
    found = client.embeddings.create(
        model="small", input=TEXTS, encoding_format=encoding_format, dimensions=5, user="me"
    )
    rows = [row.embedding for row in found.data]
    if encoding_format == "base64":  # then the client hands it on
        rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
    expected = encoder.encode(TEXTS, truncate_dim=5, normalize_embeddings=True)
    assert np.array_equal(np.array(rows, np.float32), expected)
    assert client.models.retrieve("small").id == "small"
    with pytest.raises(openai.NotFoundError, match="name 'small'"):
        client.models.retrieve("org/large")


@pytest.mark.parametrize("path", ["", "/embed"])
def test_feature_extraction_of_the_hub(hub, encoder, path):
    client, texts = hub("embed", path), [*TEXTS, LONG, ""]
    for normalize in (True, False, None):  # TEI's default, and the hub's
        found = client.feature_extraction(texts, normalize=normalize)
        is_normal = bool(path) if normalize is None else normalize
        assert np.array_equal(found, encoder.encode(texts, normalize_embeddings=is_normal))
    short = client.feature_extraction(LONG, dimensions=7, truncate=True)
    options = {"truncate_dim": 7, "normalize_embeddings": True}
    assert np.array_equal(short, encoder.encode([LONG], **options))
    ids = encoder.tokenizer(LONG, add_special_tokens=False)["input_ids"]
    last = encoder.tokenizer.decode(ids[2 - encoder.max_seq_length :])
    for side, text in (("left", last), ("right", LONG)):
        found = client.feature_extraction(LONG, truncation_direction=side, normalize=False)
        assert np.array_equal(found, encoder.encode([text]))
    if not path:
        found = client.sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])
        vectors = encoder.encode(TEXTS)
        assert np.allclose(found, encoder.similarity(vectors[:1], vectors[1:])[0], atol=1e-6)


@pytest.mark.parametrize("path", ["", "/classify"])
def test_text_classification_of_the_hub(hub, served, path):
    classifier = TextClassifier(*load_prepared(served("classify"), "sequence-classification"))
    logits = classifier.logits(TEXTS[:1])[0]
    client = hub("classify", path)
    for function, expected in (
        (None, np.exp(logits) / np.exp(logits).sum()),
        ("sigmoid", 1 / (1 + np.exp(-logits))),
        ("none", logits),
    ):
        found = client.text_classification(TEXTS[0], function_to_apply=function, top_k=2)
        assert np.allclose([one.score for one in found], np.sort(expected)[:0:-1], atol=1e-6)
    assert found[0].label == classifier.labels[int(logits.argmax())]


@pytest.mark.parametrize("path", ["", "/answer"])
def test_question_answering_of_the_hub(hub, served, path):
    asked = {"question": "who sat on the mat?", "context": TEXTS[6] * 9}
    own = QuestionAnsweringPipeline.from_pretrained(served("answer"), batch_invariant=True)
    for options in (
        {},
        {"max_answer_len": 1},
        {"doc_stride": 3, "max_seq_len": 20},
        {"top_k": 2, "align_to_words": False},
        {"handle_impossible_answer": True, "top_k": 9},
    ):
        found = hub("answer", path).question_answering(**asked, **options)
        found = [dict(one) for one in found] if isinstance(found, list) else dict(found)
        assert found == own(**asked, **options)


def test_what_the_hub_asks_of_a_server(hub):
    for task, kind in (("embed", "embedding"), ("rerank", "reranker"), ("classify", "classifier")):
        info = hub(task).get_endpoint_info()
        assert info["model_id"] == "small" and list(info["model_type"]) == [kind]
        assert info["max_input_length"] > 0
        assert hub(task).health_check()
    assert info["model_type"]["classifier"]["id2label"]["0"] == "LABEL_0"


@pytest.fixture
def best(served):
    """The places of texts and their scores, the best first."""
    ranker = CrossEncoder(served("rerank"), device="cpu")
    scores = ranker.predict([("who sat?", text) for text in TEXTS])
    order = np.argsort(-scores, kind="stable")
    return order, scores[order]


@pytest.mark.ecosystem
@pytest.mark.parametrize("version", ["Client", "ClientV2"])
def test_cohere(address, best, version):
    client = getattr(pytest.importorskip("cohere"), version)("any", base_url=address("rerank"))
    asked = functools.partial(client.rerank, model="small", query="who sat?")
    is_new = version == "ClientV2"
    options = {} if is_new else {"return_documents": True, "rank_fields": ["text"]}
    found, (order, scores) = asked(documents=TEXTS, top_n=4, **options).results, best
    assert [row.index for row in found] == order[:4].tolist()
    assert np.allclose([row.relevance_score for row in found], scores[:4])
    assert is_new or [row.document.text for row in found] == [TEXTS[n] for n in order[:4]]
    limit = {"max_tokens_per_doc": 2} if is_new else {}
    cut = asked(documents=["the river rose", "the river"], **limit).results
    assert (cut[0].relevance_score == cut[1].relevance_score) == is_new


@pytest.mark.ecosystem
def test_langchain(address, encoder, best):
    given = {"model": "small", "api_key": "any", "check_embedding_ctx_length": False}
    library = pytest.importorskip("langchain_openai")
    client = library.OpenAIEmbeddings(base_url=f"{address('embed')}/v1", **given)
    assert np.allclose(client.embed_documents(TEXTS), encoder.encode(TEXTS), atol=1e-6)
    given = {"model": "small", "cohere_api_key": "any", "top_n": 5}
    library = pytest.importorskip("langchain_cohere")
    found = library.CohereRerank(base_url=address("rerank"), **given).rerank(TEXTS, "who sat?")
    assert [row["index"] for row in found] == best[0][:5].tolist()
    assert np.allclose([row["relevance_score"] for row in found], best[1][:5])
