"""Text to training examples: reference tokenizer, documents, masking and collators."""
