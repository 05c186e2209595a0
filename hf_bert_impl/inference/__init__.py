"""Models with their tokenizers: text in, results out.

Names are imported on first use, since the driver of a job needs none of them.
"""

from typing import TYPE_CHECKING

from hf_bert_impl.lazy import lazy_names

if TYPE_CHECKING:
    from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline
    from hf_bert_impl.inference.splade import splade_vectors

__all__ = ["QuestionAnsweringPipeline", "splade_vectors"]

__getattr__ = lazy_names(
    __name__,
    {
        "QuestionAnsweringPipeline": ".question_answering",
        "splade_vectors": ".splade",
    },
)
