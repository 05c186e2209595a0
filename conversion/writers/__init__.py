"""Writers: named tensors into a file format's bytes. They know nothing of BERT."""
