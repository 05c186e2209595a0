"""transformers' models that are almost BERT: a table of differences, and one adapter."""
