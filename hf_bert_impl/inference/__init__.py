"""Text in, answers out: models with their tokenizers, ready to use."""

from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline
from hf_bert_impl.inference.splade import splade_vectors
from hf_bert_impl.inference.text_encoder import TextEncoder

__all__ = ["QuestionAnsweringPipeline", "TextEncoder", "splade_vectors"]
