"""What a request of each kind holds, in the shapes that clients exist for.

They are OpenAI's of `/v1/embeddings`, Cohere's and text embeddings inference's of `/rerank`, and
those of the hub's inference of `/classify` and `/answer`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


Texts = str | list[str]
#: Texts are cut at the length of the model, which some clients ask for.
Cut = Literal[True]


class EmbeddingsRequest(_Strict):
    """OpenAI's."""

    input: Texts
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None
    prompt_name: str | None = None


class RerankRequest(_Strict):
    """Cohere's, with `documents`, or text embeddings inference's, with `texts`."""

    query: str
    documents: list[str | dict[str, str]] | None = None
    texts: list[str] | None = None
    model: str | None = None
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = False
    return_text: bool = False
    raw_scores: bool = False
    truncate: Cut = True


class ClassifyRequest(_Strict):
    """The hub's: a text, or several, or pairs of texts."""

    inputs: str | list[str | tuple[str, str]]
    top_k: Annotated[int, Field(ge=1)] | None = None
    truncate: Cut = True


class Asked(_Strict):
    """A question and the text that answers it."""

    question: str
    context: str


class AnswerRequest(_Strict):
    """The hub's `inputs`, one or several, or a question and its context."""

    inputs: Asked | list[Asked] | None = None
    question: str | None = None
    context: str | None = None
    top_k: Annotated[int, Field(ge=1, le=100)] = 1
