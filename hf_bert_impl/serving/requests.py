"""Bodies of requests, in the shapes of the clients that exist.

`/v1/embeddings` is OpenAI's. `/rerank` is Cohere's and text-embeddings-inference's (TEI). `/embed`,
`/similarity` and `/predict` are TEI's, all others those of the hub's inference. A null field counts
as not sent. Fields that change no number here are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

TOKEN_IDS = (
    "holds token ids; send texts (langchain's OpenAIEmbeddings does with "
    "check_embedding_ctx_length=False)"
)


def _check_each(items: list[Any]) -> None:
    """Raises ValueError for the first item that is no text."""
    for index, item in enumerate(items):
        if not isinstance(item, str):
            ids = item if isinstance(item, list) else [item]
            if all(type(number) is int for number in ids):
                raise ValueError(TOKEN_IDS)
            raise ValueError(f"text {index} is {_kind(item)}; send each as a text")


def _kind(value: Any) -> str:
    names = {dict: "an object", bool: "a boolean", type(None): "null", list: "a list"}
    return names.get(type(value), "a number")


def _texts(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise ValueError(f"it is {_kind(value)}; send a text or a list of texts")
    if not isinstance(value, str):
        _check_each(value)
    return value


def _compared(value: Any) -> Any:
    if not isinstance(value, dict):
        return _texts(value)
    source, others = value.get("source_sentence"), value.get("sentences")
    if not isinstance(source, str) or not isinstance(others, list):
        raise ValueError("send `source_sentence`, a text, and `sentences`, a list of texts")
    _check_each(others)
    return value


def _documents(value: Any) -> Any:
    if not isinstance(value, list):
        raise ValueError("send a list of texts")
    for index, item in enumerate(value):
        if not isinstance(item, str | dict):
            raise ValueError(f"document {index} is {_kind(item)}; send each as a text")
    return value


def _classified(value: Any) -> Any:
    if not isinstance(value, list):
        return _texts(value)
    for index, item in enumerate(value):
        texts = item if isinstance(item, list) and len(item) in (1, 2) else [item]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"input {index} is no text and no pair of texts; send one")
    return value


def _asked(value: Any) -> Any:
    for index, item in enumerate(value if isinstance(value, list) else [value]):
        texts = [item.get(name) for name in ("question", "context")] if type(item) is dict else [""]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise ValueError(
                f"input {index} lacks a question or a context; "
                'send {"question": TEXT, "context": TEXT}'
            )
    return value


def _query(value: str) -> str:
    if not value.strip():
        raise ValueError("it is empty; send a text")
    return value


Count = Annotated[int, Field(ge=1)]


class _Body(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def _sent(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        if isinstance(body.get("parameters"), dict):  # of the hub's clients
            body = {**body, **body["parameters"]}
        return {name: value for name, value in body.items() if value is not None}


class _Cut(_Body):
    """How to cut texts that are longer than the model takes."""

    truncate: bool = True
    truncation_direction: Annotated[
        Literal["left", "right"] | None,
        BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
    ] = None

    def cut(self) -> dict[str, Any]:
        """These fields as options of a worker."""
        return {"truncate": self.truncate, "direction": self.truncation_direction}


class EmbeddingsRequest(_Cut):
    """OpenAI's."""

    input: Annotated[Any, AfterValidator(_texts)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    prompt_name: str | None = None


class EmbedRequest(_Cut):
    """TEI's and the hub's: texts, or a sentence and others to compare it with."""

    inputs: Annotated[Any, AfterValidator(_compared)]
    normalize: bool | None = None
    dimensions: int | None = None
    prompt_name: str | None = None


class RerankRequest(_Cut):
    """Cohere's, with `documents`, or TEI's, with `texts`."""

    query: Annotated[str, AfterValidator(_query)]
    documents: Annotated[Any, AfterValidator(_documents)] = None
    texts: Annotated[Any, AfterValidator(_documents)] = None
    model: str | None = None
    top_n: Count | None = None
    return_documents: bool = False
    return_text: bool = False
    raw_scores: bool = False
    rank_fields: list[str] = ["text"]
    max_tokens_per_doc: Count | None = None


class ClassifyRequest(_Cut):
    """The hub's and TEI's: a text, or several, or pairs of texts."""

    inputs: Annotated[Any, AfterValidator(_classified)]
    parameters: dict[str, Any] | None = None
    top_k: Count | None = None
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None
    raw_scores: bool = False

    def items(self, as_tei: bool) -> tuple[list[Any], bool]:
        """Texts and pairs, and whether the request has a single input.

        In TEI's form a list of texts is one input, a text or a pair; elsewhere it is many.
        """
        given = self.inputs
        is_one = isinstance(given, str)
        if as_tei and given and all(isinstance(item, str) for item in given):
            is_one = True
        several = [given] if is_one else given
        lists = [[item] if isinstance(item, str) else item for item in several]
        return [item[0] if len(item) == 1 else tuple(item) for item in lists], is_one


class AnswerRequest(_Body):
    """The hub's `inputs`, one or several, or a question and its context."""

    inputs: Annotated[Any, AfterValidator(_asked)] = None
    question: str | None = None
    context: str | None = None
    top_k: Annotated[int, Field(ge=1, le=100)] = 1
    align_to_words: bool | None = None
    doc_stride: int | None = None
    handle_impossible_answer: bool | None = None
    max_answer_len: int | None = None
    max_question_len: int | None = None
    max_seq_len: int | None = None
