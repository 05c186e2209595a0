"""What clients of a server see, in this process: results, limits and errors."""

import asyncio
import functools

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

import httpx
import sentence_transformers as library
import torch
from sentence_transformers import models as modules
from sentence_transformers.base.modules import Dense
from starlette.testclient import TestClient

from hf_bert_impl import TextEncoder
from hf_bert_impl.errors import InputError
from hf_bert_impl.finite import NotFinite
from hf_bert_impl.serving.app import make_app
from hf_bert_impl.serving.model_worker import ModelWorker, Unavailable, task_of
from hf_bert_impl.serving.options import ServingOptions
from tests.encoders.cases import save_family
from tests.serving.conftest import Slow
from tests.support.checkpoints import TEXTS


@pytest.fixture(scope="module")
def worker(served):
    return functools.cache(lambda task: ModelWorker("small", task_of(served(task)), served(task)))


def ask(backend, *requests, key=None, **limits):
    """The answers to requests (method, path, body) that are sent at once."""

    async def run():
        app = make_app(backend, ServingOptions(**limits), key)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await asyncio.gather(
                *(client.request(method, path, **body) for method, path, body in requests)
            )

    return asyncio.run(run())


def post(backend, path, body, **options):
    (answer,) = ask(backend, ("POST", path, {"json": body}), **options)
    return answer


def message(answer, status):
    """What an error of a status says, and that it is one line in OpenAI's shape."""
    error = answer.json()["error"]
    assert error["code"] == answer.status_code == status, error
    assert "\n" not in error["message"] and "secret" not in answer.text
    return error["message"]


# --- results -----------------------------------------------------------------------------------


def test_vectors_are_those_of_the_encoder(worker, served):
    """Of requests at once, each gets its own. Empty texts are computed, and long ones cut."""
    texts = [*TEXTS, "", " ", "night " * 600]
    expected = TextEncoder.from_pretrained(served("embed"), batch_invariant=True).encode(texts)
    parts = [slice(n, n + 1 + n % 3) for n in range(len(texts))]
    requests = [
        ("POST", "/v1/embeddings", {"json": {"input": texts[part], "model": "small"}})
        for part in parts
    ]
    tokenizer = worker("embed").task.model.tokenizer
    for part, answer in zip(parts, ask(worker("embed"), *requests), strict=True):
        found = answer.json()
        assert [row["index"] for row in found["data"]] == list(range(len(texts[part])))
        vectors = np.array([row["embedding"] for row in found["data"]], np.float32)
        assert np.array_equal(vectors, expected[part])
        tokens = sum(map(len, tokenizer(texts[part], truncation=True)["input_ids"]))
        assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


@pytest.fixture
def save_ranker(models, tmp_path):
    """Saves a cross-encoder of a kind by sentence-transformers itself; gives the folder."""

    def save(kind):
        options = {}
        if kind == "several modules":
            bert = modules.Transformer(models("BertModel"), transformer_task="feature-extraction")
            given = {"module_output_name": "scores", "activation_function": torch.nn.Tanh()}
            options["modules"] = [bert, modules.Pooling(30), Dense(30, 1, **given)]
        elif kind == "other family":
            name = "RobertaForSequenceClassification"
            options["model_name_or_path"] = str(save_family(tmp_path / name, name, num_labels=1))
        else:
            options["model_name_or_path"] = models("BertForSequenceClassification", 1)
            options |= {"activation_fn": torch.nn.Tanh(), "default_prompt_name": "query"}
            options["prompts"] = {"query": "nice to meet you "}
        library.CrossEncoder(**options, device="cpu").save_pretrained(str(tmp_path / kind))
        return str(tmp_path / kind)

    return save


@pytest.mark.parametrize("kind", ["activation and prompt", "other family", "several modules"])
def test_pairs_are_scored_by_the_cross_encoder(save_ranker, kind):
    """Best first, in both shapes, with the activation and the prompt that were saved."""
    folder = save_ranker(kind)
    worker = ModelWorker("small", task_of(folder), folder)
    stock = library.CrossEncoder(folder, device="cpu")
    pairs = [("who sat?", text) for text in TEXTS]
    plain = {"query": "who sat?", "texts": TEXTS}
    for raw in (False, True):
        function = torch.nn.Identity() if raw else None
        expected = stock.predict(pairs, activation_fn=function)
        order = np.argsort(-expected, kind="stable")
        tei = post(worker, "/rerank", plain | {"return_text": True, "raw_scores": raw}).json()
        scores = np.array([row["score"] for row in tei])
        np.testing.assert_allclose(scores, expected[order], atol=1e-5)
        assert (np.diff(scores) <= 0).all() and expected.std() > 1e-4
        assert [row["text"] for row in tei] == [TEXTS[row["index"]] for row in tei]
    best = post(worker, "/rerank", plain).json()[:4]
    documents = [{"text": text} if n % 2 else text for n, text in enumerate(TEXTS)]
    body = {"query": "who sat?", "documents": documents, "top_n": 4}
    found = post(worker, "/v2/rerank", body).json()["results"]
    found = [{"index": row["index"], "score": row["relevance_score"]} for row in found]
    assert found == best
    if kind != "other family":
        one = post(worker, "/rerank", plain | {"texts": [TEXTS[best[0]["index"]]]}).json()
        assert one[0]["score"] == best[0]["score"]  # the same bits, alone


def test_models_that_are_no_sentence_encoders(models, served, save_ranker, tmp_path):
    """They are refused in a line that names their class, as are classifiers of several labels."""
    for kind in (library.SparseEncoder, library.MultiVectorEncoder):
        folder = str(tmp_path / kind.__name__)
        kind(models("BertForMaskedLM"), device="cpu").save_pretrained(folder)
        with pytest.raises(InputError, match=f"is a {kind.__name__} of sentence-transformers"):
            ModelWorker("small", task_of(folder), folder)
    with pytest.raises(InputError, match="is a CrossEncoder of sentence-transformers"):
        TextEncoder(save_ranker("several modules"))
    with pytest.raises(InputError, match="3 labels; a reranker has one"):
        ModelWorker("small", "rerank", served("classify"))
    with pytest.raises(InputError, match="one label"):
        ModelWorker("small", "classify", served("rerank"))


def test_fields_that_clients_send(worker, served):
    """What is null or unknown changes nothing; what changes numbers is honoured."""
    scored = functools.partial(post, worker("rerank"), "/rerank")
    texts = ["river " * 50 + "rose", "", "the night"]
    plain = {"query": "nice to meet you", "texts": texts}
    usual = scored(plain).json()
    assert usual == scored(plain | {"truncation_direction": "Right", "new": 1}).json()
    assert usual == scored(plain | {"truncate": None, "return_text": None, "top_n": None}).json()
    first = scored(plain | {"max_tokens_per_doc": 3}).json()
    assert first == scored(plain | {"texts": ["river river river", *texts[1:]]}).json()
    null = {"input": TEXTS[0], "encoding_format": None, "dimensions": None, "store": True}
    answer = post(worker("embed"), "/v1/embeddings", null)
    assert answer.json() == post(worker("embed"), "/v1/embeddings", {"input": TEXTS[0]}).json()


def test_dimensions_are_at_most_those_of_the_served_vectors(models, tmp_path):
    parts = [modules.Transformer(models("BertModel")), modules.Pooling(30)]
    library.SentenceTransformer(modules=parts, truncate_dim=20).save_pretrained(str(tmp_path))
    asked = functools.partial(post, ModelWorker("small", "embed", str(tmp_path)), "/v1/embeddings")
    for dimensions in (20, None):
        answer = asked({"input": "a", "dimensions": dimensions})
        assert len(answer.json()["data"][0]["embedding"]) == 20
    answer = asked({"input": "a", "dimensions": 21})
    assert "`dimensions` is 21. Use a whole number from 1 to 20." in message(answer, 400)


def test_the_forms_of_tei(worker):
    predict = functools.partial(post, worker("classify"), "/classify")
    one = predict({"inputs": "a"}).json()
    assert predict({"inputs": [["a"]]}).json() == predict({"inputs": ["a"]}).json() == [one]
    assert predict({"inputs": [["a", "b"]]}).json() != [one]
    raw = predict({"inputs": "a", "raw_scores": True, "truncate": False}).json()
    assert raw[0]["label"] == one[0]["label"] and raw[0]["score"] != one[0]["score"]
    assert len(post(worker("embed"), "/embed", {"inputs": "a"}).json()) == 1


# --- what is refused ---------------------------------------------------------------------------


#: By task: where to, what is posted, the status, and words of the error.
REFUSED = {
    "embed": [
        ("/v1/embeddings", {"input": []}, 400, "no text"),
        ("/v1/embeddings", {"input": [1, 2]}, 400, "; send texts, not token ids (langchain"),
        ("/v1/embeddings", {"input": ["a", None]}, 400, "`input.1`: Input should be"),
        ("/v1/embeddings", {"input": "a", "model": "gpt"}, 404, "'gpt' here; name 'small'"),
        ("/embed", {"inputs": "a", "dimensions": 0}, 400, "a whole number from 1 to 30."),
        ("/", {"inputs": {"sentences": ["a"]}}, 400, "`inputs.source_sentence`: "),
        ("/v1/embeddings", {"input": "a", "dimensions": True}, 400, "`dimensions`: "),
        ("/similarity", {}, 404, "post to /v1/embeddings; this server's model is for embed"),
        ("/v1/embeddings", {"input": "a", "prompt_name": "x"}, 400, "Prompt name 'x' not found"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "x"}, 400, "'base64'"),
        ("/v1/embeddings", {"input": ["a"] * 8}, 413, "at most 7"),
        ("/v1/embeddings", {"input": "a" * 3000}, 413, "3,000 characters"),
        ("/v1/embeddings", {"input": "a" * 9000}, 413, "more than 8,192 bytes"),
    ],
    "rerank": [
        ("/rerank", {"query": "a", "texts": ["b"], "documents": ["b"]}, 400, "not both"),
        ("/rerank", {"query": "a", "documents": ["b", {}]}, 400, "`documents.1.text`: Field req"),
        ("/rerank", {"query": "a", "documents": ["b"], "rank_fields": ["c"]}, 400, "`rank_fields"),
        ("/rerank", {"query": "a", "texts": ["b", "b " * 90], "truncate": False}, 400, "1 has 94"),
        ("/rerank", {"query": " ", "texts": ["b"]}, 400, "`query` is empty"),
    ],
    "classify": [
        ("/classify", {"inputs": ["a", ["b", "c"]]}, 400, "mixes texts and pairs"),
        ("/classify", {"inputs": [["b"], ["b", "c", "d"]]}, 400, "input 1 has 3 texts; send"),
    ],
    "answer": [
        ("/answer", {"question": "a"}, 400, "`inputs.context`: Field required"),
        ("/answer", {"question": "a", "context": " "}, 400, "The context is empty (question 'a'"),
        ("/answer", {"question": "a", "context": "b", "max_seq_len": 99999}, 400, "max_seq_len"),
        ("/answer", {"question": "a", "context": "\u200b"}, 400, "question 'a' is empty"),
    ],
}


@pytest.mark.parametrize("task", REFUSED)
def test_bad_requests(worker, task):
    limits = {"max_texts": 7, "max_characters": 2000, "max_bytes": 8192}
    for path, body, status, words in REFUSED[task]:
        said = message(post(worker(task), path, body, **limits), status)
        assert words in said, (path, body, said)


async def endless():
    """A body of unknown length."""
    for _ in range(1000):
        yield b" " * 1000


AS_JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("method", "content", "headers", "status", "words"),
    [
        ("POST", b'{"input": "a', AS_JSON, 400, "no JSON: Unterminated string starting at"),
        ("POST", b"", AS_JSON, 400, "the body is no JSON object; send"),
        ("POST", b"[1]", AS_JSON, 400, "no JSON object"),
        ("POST", b'{"input": ["a", "\\ud83d"]}', AS_JSON, 400, "text 1 has half a surrogate pair"),
        ("POST", b"\xff\xfe{", AS_JSON, 400, "parsing the body; send JSON in UTF-8"),
        ("POST", b'{"input": "a"}', {}, 400, "send one with `Content-Type: application/json`"),
        # The limit holds for what comes, not for what is announced.
        ("POST", endless, AS_JSON, 413, "5,000 bytes"),
        ("GET", None, {}, 405, "use POST"),
    ],
)
def test_bad_bodies(worker, method, content, headers, status, words):
    given = {"content": content() if callable(content) else content, "headers": headers}
    (answer,) = ask(worker("embed"), (method, "/v1/embeddings", given), max_bytes=5000)
    assert words in message(answer, status)
    assert answer.headers.get("allow") == ("POST" if method == "GET" else None)


def test_the_key(worker):
    def asked(**headers):
        embeddings = ("POST", "/v1/embeddings", {"json": {"input": "a"}, "headers": headers})
        return ask(worker("embed"), embeddings, ("GET", "/health", {}), key="secret")

    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
        answer, health = asked(**headers)
        assert "Bearer KEY" in message(answer, 401) and health.status_code == 200
    assert asked(authorization="Bearer secret")[0].status_code == 200


# --- load --------------------------------------------------------------------------------------


def test_a_full_queue_says_when_to_come_again():
    """What waits is bounded, and everything that was let in is answered."""
    requests = [("POST", "/v1/embeddings", {"json": {"input": ["a"] * 3}})] * 9
    answers = sorted(ask(Slow(0.3), *requests, queue=10), key=lambda answer: answer.status_code)
    assert [answer.status_code for answer in answers[:3]] == [200] * 3
    for full in answers[3:]:
        assert int(full.headers["retry-after"]) >= 1
        assert "9 texts wait already, of at most 10" in message(full, 429)
    # One request is let in, however large.
    assert post(Slow(0), "/v1/embeddings", {"input": ["a"] * 30}, queue=10).status_code == 200
    late = post(Slow(30), "/v1/embeddings", {"input": "a"}, timeout=0.1)
    assert "0.1 s" in message(late, 504)


def test_no_worker_answers():
    dead = Slow(0, Unavailable())
    assert "started again" in message(post(dead, "/v1/embeddings", {"input": "a"}), 503)
    assert ask(dead, ("GET", "/health", {}))[0].status_code == 503


def test_faults_of_the_server_are_logged(worker, monkeypatch, caplog):
    """Their text is no client's business. The next request is answered."""

    def fail(*_, **options):
        raise error

    own = worker("embed").task.model
    for error in (ValueError("secret"), TypeError("secret"), NotFinite("secret"), InputError()):
        caplog.clear()
        with monkeypatch.context() as patch:
            patch.setattr(own, "forward", fail)
            answer = post(worker("embed"), "/v1/embeddings", {"input": "a"})
        assert "its log" in message(answer, 500)
        [record] = [one for one in caplog.records if one.name.startswith("hf_bert_impl.serving")]
        assert record.exc_info[1] is error
    assert post(worker("embed"), "/v1/embeddings", {"input": "a"}).status_code == 200


def test_metrics(worker):
    """Unknown paths share a series."""
    client = TestClient(make_app(worker("embed")))
    for texts in (["a b", "c"], []):
        client.post("/v1/embeddings", json={"input": texts})
    for path in ("/wp-admin", "/.env"):
        client.get(path)
    lines = client.get("/metrics").text.splitlines()
    assert {
        'hf_bert_requests_total{path="/v1/embeddings",status="200"} 1.0',
        'hf_bert_requests_total{path="/v1/embeddings",status="400"} 1.0',
        'hf_bert_requests_total{path="other",status="404"} 2.0',
        'hf_bert_request_seconds_count{path="/v1/embeddings"} 2.0',
        *("hf_bert_texts_total 2.0", "hf_bert_queued_texts 0.0", "hf_bert_tokens_total 7.0"),
    } <= {*lines}
