"""Readers of file formats into named tensors, for any model."""
