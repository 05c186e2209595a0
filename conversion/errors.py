"""The package's error for users, under the name by which callers of conversion know it."""

from hf_bert_impl.errors import InputError as ConversionError

__all__ = ["ConversionError"]
