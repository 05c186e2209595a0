"""Text in, answers out: models with their tokenizers, ready to use."""

from hf_bert_impl.inference.text_encoder import TextEncoder

__all__ = ["TextEncoder"]
