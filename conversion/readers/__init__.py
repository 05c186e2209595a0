"""Readers: a file format's bytes into named tensors. They know nothing of BERT."""
