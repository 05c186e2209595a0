"""The paths of each task, in the shapes of the clients that exist."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from hf_bert_impl.serving.admission import Admission, Problem
from hf_bert_impl.serving.model_worker import scores_in_order
from hf_bert_impl.serving.requests import (
    AnswerRequest,
    ClassifyRequest,
    Comparison,
    EmbeddingsRequest,
    EmbedRequest,
    RerankRequest,
)


def check_model(admission: Admission, model: str | None) -> None:
    """Raises Problem if a client names another model; None is any model."""
    name = admission.backend.info.name
    if model not in (None, name):
        raise Problem(404, f"there is no model {model!r:.100} here; name {name!r}")


def add_embed(app: FastAPI, admission: Admission) -> None:
    """Adds the paths of a sentence encoder: OpenAI's, TEI's and the hub's."""

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsRequest) -> JSONResponse:
        check_model(admission, body.model)
        vectors, tokens = await admission.compute(body.input, **body.options())
        is_packed = body.encoding_format == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _base64(vector) if is_packed else vector.tolist(),
            }
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        name = admission.backend.info.name
        return JSONResponse({"object": "list", "data": data, "model": name, "usage": usage})

    @app.post("/")
    @app.post("/embed")
    async def embed(body: EmbedRequest, request: Request) -> JSONResponse:
        given, normalize = body.inputs, body.normalize
        compared = given if isinstance(given, Comparison) else None
        texts: Any = [compared.source_sentence, *compared.sentences] if compared else given
        if compared or (normalize is None and request["path"] == "/embed"):
            normalize = True  # TEI's default; at / the model's own length, as on the hub
        vectors = (await admission.compute(texts, normalize=normalize, **body.options())).values
        return JSONResponse((vectors[1:] @ vectors[0] if compared else vectors).tolist())


def add_rerank(app: FastAPI, admission: Admission) -> None:
    """Adds the paths of a cross-encoder: Cohere's and TEI's."""

    @app.post("/")
    @app.post("/rerank")
    @app.post("/v1/rerank")
    @app.post("/v2/rerank")
    async def rerank(body: RerankRequest) -> JSONResponse:
        check_model(admission, body.model)
        if (body.documents is None) == (body.texts is None):
            raise Problem(400, "give `documents` (as Cohere) or `texts` (as TEI), and not both")
        if not body.query.strip():
            raise Problem(400, "`query` is empty; send a text")
        documents = body.documents or body.texts or []
        texts = [document if isinstance(document, str) else document.text for document in documents]
        result = await admission.compute(
            [(body.query, text) for text in texts],
            raw_scores=body.raw_scores,
            max_tokens_per_doc=body.max_tokens_per_doc,
            **body.cut(),
        )
        is_tei = body.texts is not None
        score = "score" if is_tei else "relevance_score"
        order = scores_in_order(result.values)[: body.top_n]
        rows: list[dict[str, Any]] = [{"index": n, score: float(result.values[n])} for n in order]
        if body.return_text if is_tei else body.return_documents:
            for row in rows:
                text = {"text": texts[row["index"]]}
                row.update(text if is_tei else {"document": text})
        if is_tei:
            return JSONResponse(rows)
        meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
        return JSONResponse({"id": str(uuid.uuid4()), "results": rows, "meta": meta})


def add_classify(app: FastAPI, admission: Admission) -> None:
    """Adds the paths of a classifier: the hub's and TEI's."""

    @app.post("/")
    @app.post("/classify")
    async def classify(body: ClassifyRequest) -> JSONResponse:
        is_one = isinstance(body.inputs, str)
        inputs = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        items: list[Any] = []
        for index, item in enumerate(inputs):
            texts = (item,) if isinstance(item, str) else tuple(item)
            if len(texts) not in (1, 2):
                raise Problem(400, f"input {index} has {len(texts)} texts; send one, or a pair")
            items.append(texts if len(texts) == 2 else texts[0])
        function = "none" if body.raw_scores else body.function_to_apply
        result = await admission.compute(items, function=function, **body.cut())
        labels = admission.backend.info.labels
        rows = [
            [
                {"label": labels[index], "score": float(scores[index])}
                for index in scores_in_order(scores)[: body.top_k]
            ]
            for scores in result.values
        ]
        # The hub's clients, which always send `parameters`, expect a list for each text.
        return JSONResponse(rows[0] if is_one and body.parameters is None else rows)


def add_answer(app: FastAPI, admission: Admission) -> None:
    """Adds the paths of a question-answering model: the hub's."""

    @app.post("/")
    @app.post("/answer")
    async def answer(body: AnswerRequest) -> JSONResponse:
        asked = body.inputs if isinstance(body.inputs, list) else [body.inputs]
        options = body.model_dump(exclude={"inputs"}, exclude_none=True)
        pairs = [(one.question, one.context) for one in asked]
        result = await admission.compute(pairs, **options)
        rows = result.values if body.top_k > 1 else [answers[0] for answers in result.values]
        return JSONResponse(rows if isinstance(body.inputs, list) else rows[0])


#: Adds the paths of each task.
ROUTES: dict[str, Callable[[FastAPI, Admission], None]] = {
    "embed": add_embed,
    "rerank": add_rerank,
    "classify": add_classify,
    "answer": add_answer,
}


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes()).decode("ascii")
