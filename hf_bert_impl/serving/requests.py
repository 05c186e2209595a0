"""Bodies of requests, in the shapes of the clients that exist.

`/v1/embeddings` is OpenAI's. `/rerank` is Cohere's and text-embeddings-inference's (TEI's), and
`/embed` is TEI's. All others are those of the hub's inference API. A null field counts as not sent.
Fields that change no number here are ignored. Types are strict: neither true nor "8" is a number.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1)]
#: A text or a list of texts, as a list.
Texts = Annotated[
    list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Body(_Strict):
    @model_validator(mode="before")
    @classmethod
    def _sent(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        if isinstance(body.get("parameters"), dict):  # of the hub's clients
            body = {**body, **body["parameters"]}
        sent = {name: value for name, value in body.items() if value is not None}
        # A question and its context may be in `inputs` or in the body itself.
        return {"inputs": sent, **sent} if "question" in sent else sent


class _Cut(_Body):
    """How to cut texts that are longer than the model takes."""

    truncate: bool = True
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None

    def cut(self) -> dict[str, Any]:
        """These fields as options of a task."""
        return self.model_dump(include={"truncate", "truncation_direction"})


class _Vectors(_Cut):
    dimensions: int | None = None
    prompt_name: str | None = None

    def options(self) -> dict[str, Any]:
        """The options of the task."""
        return {"prompt_name": self.prompt_name, "dimensions": self.dimensions, **self.cut()}


class EmbeddingsRequest(_Vectors):
    """OpenAI's."""

    input: Texts
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"


class Comparison(_Strict):
    """A sentence, and others to compare it with: the hub's."""

    source_sentence: str
    sentences: list[str]


class EmbedRequest(_Vectors):
    """TEI's and the hub's."""

    inputs: Texts | Comparison
    normalize: bool | None = None


class Document(_Strict):
    """Cohere's document with fields, of which one is the text."""

    text: str


class RerankRequest(_Cut):
    """Cohere's, with `documents`, or TEI's, with `texts`."""

    query: str
    documents: list[str | Document] | None = None
    texts: list[str] | None = None
    model: str | None = None
    top_n: Count | None = None
    return_documents: bool = False
    return_text: bool = False
    raw_scores: bool = False
    rank_fields: list[Literal["text"]] | None = None
    max_tokens_per_doc: Count | None = None


class ClassifyRequest(_Cut):
    """The hub's and TEI's: a text, or several, or pairs of texts."""

    inputs: str | list[str | list[str]]
    parameters: dict[str, Any] | None = None
    top_k: Count | None = None
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None
    raw_scores: bool = False


class Question(_Strict):
    """A question, and the text that has its answer."""

    question: str
    context: str


class AnswerRequest(_Body):
    """The hub's `inputs`, one or several, or a question and its context."""

    inputs: Question | list[Question]
    top_k: Annotated[int, Field(ge=1, le=100)] = 1
    align_to_words: bool | None = None
    doc_stride: int | None = None
    handle_impossible_answer: bool | None = None
    max_answer_len: int | None = None
    max_question_len: int | None = None
    max_seq_len: int | None = None
