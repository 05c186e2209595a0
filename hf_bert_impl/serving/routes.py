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
from hf_bert_impl.serving.model_worker import Computed, scores_in_order
from hf_bert_impl.serving.requests import (
    AnswerRequest,
    ClassifyRequest,
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

    async def compute(
        texts: list[str], body: EmbeddingsRequest | EmbedRequest, normalize: bool | None
    ) -> Computed:
        return await admission.compute(
            texts,
            prompt_name=body.prompt_name,
            normalize=normalize,
            dimensions=body.dimensions,
            **body.cut(),
        )

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsRequest) -> JSONResponse:
        check_model(admission, body.model)
        texts = [body.input] if isinstance(body.input, str) else body.input
        vectors, tokens = await compute(texts, body, None)
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
    @app.post("/similarity")
    async def embed(body: EmbedRequest, request: Request) -> JSONResponse:
        given, path = body.inputs, request.url.path
        if isinstance(given, dict):
            texts = [given["source_sentence"], *given["sentences"]]
            first, *others = (await compute(texts, body, True)).values
            return JSONResponse([float(first @ other) for other in others])
        if path == "/similarity":
            raise Problem(400, "`inputs` has no `source_sentence` and `sentences`; send both")
        normalize = body.normalize
        if normalize is None and path == "/embed":
            normalize = True  # TEI's default; at / the model's own length, as on the hub
        texts = [given] if isinstance(given, str) else given
        return JSONResponse((await compute(texts, body, normalize)).values.tolist())


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
        texts = [
            _text_of(index, document, body.rank_fields)
            for index, document in enumerate(body.documents or body.texts or [])
        ]
        result = await admission.compute(
            [(body.query, text) for text in texts],
            raw_scores=body.raw_scores,
            max_tokens_per_doc=body.max_tokens_per_doc,
            **body.cut(),
        )
        order = scores_in_order(result.values)[: body.top_n]
        scores = [float(result.values[index]) for index in order]
        rows: list[dict[str, Any]]
        if body.texts is not None:
            rows = [{"index": i, "score": score} for i, score in zip(order, scores, strict=True)]
            for row in rows if body.return_text else ():
                row["text"] = texts[row["index"]]
            return JSONResponse(rows)
        rows = [
            {"index": i, "relevance_score": score} for i, score in zip(order, scores, strict=True)
        ]
        for row in rows if body.return_documents else ():
            row["document"] = {"text": texts[row["index"]]}
        meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
        return JSONResponse({"id": str(uuid.uuid4()), "results": rows, "meta": meta})


def add_classify(app: FastAPI, admission: Admission) -> None:
    """Adds the paths of a classifier: the hub's and TEI's."""

    @app.post("/")
    @app.post("/classify")
    @app.post("/predict")
    async def classify(body: ClassifyRequest, request: Request) -> JSONResponse:
        items, is_one = body.items(as_tei=request.url.path == "/predict")
        if any(len(item) > 2 for item in items if not isinstance(item, str)):
            raise Problem(400, "there are more than two texts; send each in a list of its own")
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
        if (body.inputs is None) == (body.question is None) or (
            (body.question is None) != (body.context is None)
        ):
            raise Problem(400, "give `question` and `context`, or `inputs` of such")
        asked = body.inputs
        if asked is None:
            asked = {"question": body.question, "context": body.context}
        several = asked if isinstance(asked, list) else [asked]
        options = body.model_dump(exclude={"inputs", "question", "context"}, exclude_none=True)
        result = await admission.compute(
            [(one["question"], one["context"]) for one in several], **options
        )
        rows = result.values if body.top_k > 1 else [answers[0] for answers in result.values]
        return JSONResponse(rows if isinstance(asked, list) else rows[0])


#: Adds the paths of each task.
ROUTES: dict[str, Callable[[FastAPI, Admission], None]] = {
    "embed": add_embed,
    "rerank": add_rerank,
    "classify": add_classify,
    "answer": add_answer,
}


def _text_of(index: int, document: str | dict[str, Any], fields: list[str]) -> str:
    if isinstance(document, str):
        return document
    values = [document[field] for field in fields if field in document]
    if not values or not all(isinstance(value, str) for value in values):
        names = " or ".join(f"`{field}`" for field in fields)
        raise Problem(
            400,
            f'document {index} has no {names} that is a text; give it as a text or {{"text": ...}}',
        )
    return "\n".join(values)


def _base64(vector: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes()).decode("ascii")
