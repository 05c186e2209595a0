"""Models of transformers that are almost BERT: what differs in each, and one adapter for all."""
